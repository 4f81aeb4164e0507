"""`shoal feed` reads prices and offers strictly: one wrong entry and nothing is published."""

from __future__ import annotations

import pytest

from streams.files.errors import UserError
from streams.files.feeds import read_feed
from topics.records import Availability, Price


def test_pools_are_read_with_on_demand_as_the_default_market() -> None:
    raw = b"us/l40s/spot: 2.9\nus/l40s: 7\n"
    assert read_feed("prices", raw, "f", 5) == [
        Price("us/l40s/spot", 2.9, 5),
        Price("us/l40s/on-demand", 7.0, 5),
    ]
    assert read_feed("availability", b'{"us/l4/spot": 3}', "f", 5) == [
        Availability("us/l4/spot", 3, 5)
    ]


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        ("prices", b"us/l4/spot: .nan", "line 1|f:1: us/l4/spot"),
        ("prices", b"us/l4/spot: .inf", "us/l4/spot"),
        ("prices", b"us/l4/spot: -1", "us/l4/spot"),
        ("prices", b"us/l4/spot: cheap", "us/l4/spot"),
        ("prices", b"us/l4/spot: 1000000", "us/l4/spot"),
        ("prices", b"l4: 1", "not a pool"),
        ("prices", b"us//spot: 1", "not a pool"),
        ("availability", b"us/l4/spot: 1.5", "us/l4/spot"),
        ("availability", b"us/l4/spot: -1", "us/l4/spot"),
        ("availability", b"us/l4/spot: 1\nus/l4/spot: 2", "twice"),
        ("prices", b"[1, 2]", "mapping"),
        ("prices", b"", "empty"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(kind: str, raw: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_feed(kind, raw, "f", 5)
