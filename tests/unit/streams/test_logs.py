"""Limits on repeated log lines."""

from __future__ import annotations

import json
import logging
import sys

from topics.edge.logs import JsonLines, RepeatFilter


def record(name: str, message: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "f", 1, message, values, None)


def test_a_repeated_message_is_logged_rarely_and_others_are_not_delayed() -> None:
    """Logger and text without arguments identify a message. Another port number makes no new
    message.
    """
    now = [0.0]
    sparing = RepeatFilter(30.0, lambda: now[0])
    assert sparing.filter(record("a", "no broker at %s", 1))
    assert not sparing.filter(record("a", "no broker at %s", 2))
    assert sparing.filter(record("b", "no broker at %s", 1))
    assert sparing.filter(record("a", "something else"))
    now[0] = 29.9
    assert not sparing.filter(record("a", "no broker at %s", 3))
    now[0] = 30.1
    assert sparing.filter(record("a", "no broker at %s", 4))


def test_the_memory_of_messages_is_bounded() -> None:
    """Messages that all differ neither exhaust the memory nor are lost."""
    sparing = RepeatFilter(30.0, lambda: 0.0)
    assert all(sparing.filter(record("a", f"message {number}")) for number in range(2000))
    assert len(sparing._last_s) <= 500


def test_a_json_line_holds_the_message_and_the_traceback() -> None:
    """The log entry stays one line, however many lines the error has."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = logging.LogRecord("a", logging.ERROR, "f", 1, "at %s", ("x",), sys.exc_info())
    line = JsonLines().format(made)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("error", "a", "at x")
    assert "ValueError: two" in found["error"]
