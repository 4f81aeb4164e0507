"""Requests by kind: each counts once, in its window."""

from __future__ import annotations

from autoscaler.estimate.windows import TelemetryWindows
from topics.records import Telemetry


def _record(sequence: int, sent: dict[str, dict[str, int]]) -> Telemetry:
    return Telemetry("omni", "g", "b", sequence, 0, 1000, 0, *[0] * 10, sent=sent)


def test_kinds_are_summed_over_paths_in_the_window_and_duplicates_count_once() -> None:
    windows = TelemetryWindows()
    windows.advance(200_000)
    early = _record(1, {"text": {"llm": 7}})
    late = _record(2, {"text": {"llm": 2, "all": 1}, "photo": {"image/llm": 4}})
    assert windows.add(early, 100_000)
    assert windows.add(late, 199_000)
    assert not windows.add(late, 199_000)
    assert windows.kinds("omni", 200_000, 60) == {"photo": 4, "text": 3}
    assert windows.kinds("omni", 200_000, 150) == {"photo": 4, "text": 10}
    assert windows.add(_record(3, {"photo": {"image/llm": 0}, "video": {}}), 190_000)
    assert windows.kinds("omni", 200_000, 60) == {"photo": 4, "text": 3}
    assert windows.kinds("other", 200_000, 60) == {}


def test_counts_by_version_are_complete_blocks_and_no_kinds() -> None:
    windows = TelemetryWindows()
    windows.advance(200_000)
    for sequence, (second, number) in enumerate(((171, 2), (179, 3), (181, 5), (195, 7)), 1):
        sent = {"version:a-1:completed": {"all": number}, "version:a-1:later": {"all": 1}}
        assert windows.add(_record(sequence, sent), second * 1000 + 500)
    blocks = windows.versions("omni", 200_000)
    found = [(block.end_ms, block.counts["a-1"].completed) for block in blocks]
    assert found == [(180_000, 5), (190_000, 5)]
    assert windows.versions("omni", 209_000) == blocks
    assert [block.end_ms for block in windows.versions("omni", 210_000)][-1] == 200_000
    assert windows.kinds("omni", 200_000, 60) == {}
    assert windows.versions("other", 200_000) == ()
