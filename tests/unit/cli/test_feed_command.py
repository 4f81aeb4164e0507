"""`shoal feed` reads prices and offers strictly: if one entry is wrong, it publishes no record."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streams.cli.controller_client import ask
from streams.cli.feed import fetch
from streams.files.feed_files import read_feed
from streams.files.user_errors import UserError
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
        ("prices", b"us/l4/spot: 1\nus/l 4/spot: 1", "f:2: us/l 4/spot: .* is not allowed"),
        ("availability", b"us/l4/spot: 1.5", "us/l4/spot"),
        ("availability", b"us/l4/spot: -1", "us/l4/spot"),
        ("availability", b"us/l4/spot: 1\nus/l4/spot: 2", "twice"),
        ("prices", b"[1, 2]", "mapping"),
        ("prices", b"", "empty"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_place(kind: str, raw: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_feed(kind, raw, "f", 5)


@contextmanager
def served(answer: bytes) -> Iterator[str]:
    """The address of a server that sends `answer` to its first client and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(5.0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"nothing that is HTTP\r\n\r\n", "nothing that is HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nus/l4: 1\n", "IncompleteRead"),
    ],
)
def test_a_truncated_answer_is_refused(answer: bytes, said: str) -> None:
    with served(answer) as url, pytest.raises(UserError, match=f"--from {url}.*{said}"):
        fetch(url)
    with served(answer) as url, pytest.raises(UserError, match=f"--url {url}: no controller"):
        ask(url, "/v1/status")


@pytest.mark.parametrize("rest", ["127.0.0.1:9/x", "127.0.0.1/x@y", "[::1]/x", "h:abc/x"])
def test_a_password_in_an_address_is_not_printed(rest: str) -> None:
    for call, option in ((fetch, "--from"), (lambda url: ask(url, "/v1/status"), "--url")):
        with pytest.raises(UserError) as caught:
            call(f"http://ann:hush@{rest}")
        assert str(caught.value) == f"{option} http://{rest}: a user and password are not sent"


@pytest.mark.parametrize("url", ["http://127.0.0.1:abc", "http://127.0.0.1/a b", "http://[::1"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--from {url}: cannot be read: ")):
        fetch(url)
    with pytest.raises(UserError, match=re.escape(f"--url {url}: no controller")):
        ask(url, "/v1/status")


def test_an_unreachable_server_and_a_missing_file_give_one_error_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for source, why in ((url, "Connection refused"), ("/nope", "No such file or directory")):
        with pytest.raises(UserError) as caught:
            fetch(source)
        assert str(caught.value) == f"--from {source}: cannot be read: {why}"
