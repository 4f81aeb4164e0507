"""The table of topics: record keys and retention."""

from __future__ import annotations

import pytest

from topics import records
from topics.checks import InvalidValue
from topics.topic_table import TABLE, Cleanup, key_of, short_name, topic


def test_record_keys_equal_those_of_the_table() -> None:
    """Claims share a key, so a renewal never removes the highest claim."""
    assert key_of(records.Telemetry("m", "g", "b", 1, 1000, 1000, 5, *[0] * 10)) == b"m"
    assert key_of(records.Status("n", "p", "x", 1, 1000)) == b"n"
    assert key_of(records.Leadership("c", "x", "claim", 1)) == b"claim"
    assert key_of(records.Leadership("c", "x", "renewal", 1)) == b"c"
    assert key_of(records.DeadLetter("t", 0, 0, "why", "", "r")) is None


def test_each_topic_is_listed_once_with_its_clean_up() -> None:
    """A topic with deletion by age has a retention time. A compacted topic never deletes by age."""
    assert len({t.name for t in TABLE}) == len(TABLE)
    for one in TABLE:
        assert topic(one.name) is one
        assert short_name(one.wire_name("x."), "x.") == one.name
        assert one.partitions >= 1
        assert (one.retention_ms > 0) == (one.cleanup is Cleanup.DELETE)
        assert one.settings()["message.timestamp.type"] == "LogAppendTime"
        assert ("retention.ms" in one.settings()) == (one.cleanup is Cleanup.DELETE)
    with pytest.raises(InvalidValue, match="begins with"):
        short_name("foreign.telemetry")
