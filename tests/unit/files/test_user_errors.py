"""Addresses in errors are printed without their login."""

from __future__ import annotations

import pytest

from streams.files.user_errors import without_login


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no answer from http://ann:hush@h:9090/x", "no answer from http://h:9090/x"),
        ("http://hush@h", "http://h"),
        ("http://ann:hu/sh@h:9090", "http://h:9090"),
        ("https://ann:hu?sh#@h/x", "https://h/x"),
        ("http://:hu/sh@h", "http://h"),
        ("http://ann:hush@h/x@y", "http://h/x@y"),
    ],
)
def test_a_login_is_not_printed_whatever_its_password_contains(text: str, shown: str) -> None:
    assert without_login(text) == shown


@pytest.mark.parametrize(
    "text",
    ["http://h:9090/x@y", "http://h/a:b@c", "http://h?x=a:b@c", "http://[::1]:80/a@b", "http://h:"],
)
def test_an_address_without_a_login_stays_as_it_is(text: str) -> None:
    assert without_login(text) == text
