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
