"""A log on a disk that fails: each write of a run of 200 ticks in turn.

The ticks before and after the fault can be read, the reader and `verify` name the gap, and the
fault is reported until the disk works again. `SHOAL_EVERY_WRITE=1` tries every write, not a sample.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from autoscaler.decide import Observation
from streams.decision_log.log_lines import Kind, Line, read_lines
from streams.decision_log.log_reader import Gap, read_spans, segments
from streams.decision_log.log_replay import rerun
from streams.decision_log.log_verify import verify
from streams.decision_log.log_writer import DecisionLog
from tests.unit.decision_log.recorded_worlds import some_ticks, write
from tests.unit.storage.faulty_disk import Fault, FaultyDisk, Killed, disk
from topics.keys import Keys

KEYS = Keys(cluster="k" * 40)
OPTIONS = {"keys": KEYS, "segment_s": 80, "start_s": 30}
SAMPLE = 4


@functools.cache
def steps() -> int:
    """Number of calls to the disk in a run without a fault."""
    with disk(FaultyDisk(Fault.FULL, first=0)) as counted:
        write(Path(os.environ["SHOAL_TEST_FOLDER"]), some_ticks(), **OPTIONS)
    return counted.calls


def sample(seed: int) -> Iterable[int]:
    everything = range(1, steps() + 1)
    if os.environ.get("SHOAL_EVERY_WRITE"):
        return everything
    return [1, 2, 3, *random.Random(seed).sample(everything[3:], SAMPLE)]


@pytest.fixture(autouse=True)
def folder_for_steps(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["SHOAL_TEST_FOLDER"] = str(tmp_path_factory.mktemp("steps"))


def read(folder: Path, gaps: list[Gap]) -> dict[int, Observation]:
    spans = read_spans(segments(folder), gaps)
    return {tick.now_ms: tick.observation for span in spans for tick in span.ticks}


def times(folder: Path) -> set[int]:
    """The times of the ticks, without decoding them; `verify` checks that they are unchanged."""
    lines = [one for segment in segments(folder) for one in read_lines(segment.path)]
    return {one.head.at_ms for one in lines if isinstance(one, Line) and one.head.kind is Kind.TICK}


@pytest.mark.parametrize(
    ("fault", "calls"), [(Fault.FULL, 1), (Fault.FULL, 5), (Fault.BROKEN, 5), (Fault.SHORT, 5)]
)
def test_only_the_ticks_of_a_fault_are_missing_and_the_gap_is_named(
    fault: Fault, calls: int, tmp_path: Path
) -> None:
    """The fault lasts for one call, or for five."""
    ticks = some_ticks()
    for first in sample(seed=calls):
        folder = tmp_path / f"{first}"
        with disk(FaultyDisk(fault, first, first + calls - 1, seed=first)):
            log = write(folder, ticks, **OPTIONS)
        found = times(folder)
        (report,) = verify(folder, KEYS)
        assert report.faults == [] and report.unsigned == report.wrong == 0
        assert len(found) >= len(ticks) - log.lost
        assert log.lost <= (2 if calls == 1 else 40), first
        assert not any(path.stat().st_size == 0 for path in folder.iterdir())
        if fault is Fault.SHORT:
            assert log.lost == 0
        if log.status().fault:  # the run ended before the next try
            assert ticks[-1].now_ms not in found
            continue
        assert report.lost == log.lost


def test_what_was_recorded_before_and_after_a_fault_is_what_was_observed(tmp_path: Path) -> None:
    ticks = some_ticks()
    with disk(FaultyDisk(Fault.BROKEN, 90, 96, seed=2)):
        log = write(tmp_path, ticks, **OPTIONS)
    gaps: list[Gap] = []
    found = read(tmp_path, gaps)
    assert found == {d.now_ms: d.observation for d in ticks if d.now_ms in found}
    assert len(found) == len(ticks) - log.lost and min(found) == ticks[0].now_ms
    (gap,) = gaps
    assert gap.records == log.lost and max(found) == ticks[-1].now_ms
    assert not [at_ms for at_ms in found if gap.from_ms < at_ms < gap.to_ms]


def test_a_killed_controller_continues_its_chain(tmp_path: Path) -> None:
    """It is killed at any call; a part of a write may be on the disk."""
    ticks = some_ticks()
    for first in sample(seed=9):
        folder = tmp_path / f"{first}"
        done_ms: list[int] = []

        def noted(folder: Path, first: int, done_ms: list[int]) -> None:
            log = DecisionLog(folder, "ctl-1", **OPTIONS)  # type: ignore[arg-type]
            with disk(FaultyDisk(Fault.KILLED, first, seed=first)):
                for done in ticks[:150]:
                    log.record(done)
                    done_ms.append(done.now_ms)
                log.end()

        with contextlib.suppress(Killed):
            noted(folder, first, done_ms)
        write(folder, ticks[150:], **OPTIONS)
        assert set(done_ms) | {done.now_ms for done in ticks[150:]} <= times(folder)
        (report,) = verify(folder, KEYS)
        assert report.faults == [], first


def test_the_fault_is_reported_until_the_disk_has_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    log = DecisionLog(tmp_path, "ctl-1", monotonic_s=lambda: now_s)
    ticks = some_ticks()
    with disk(FaultyDisk(Fault.FULL, 1, 1000)):
        for done in ticks[:20]:
            now_s += 1.0
            log.record(done)
            status = log.status()
            assert "No space left on device" in status.fault and str(tmp_path) in status.fault
    assert log.lost == 20 and list(tmp_path.iterdir()) == []
    for done in ticks[20:60]:
        now_s += 1.0
        log.record(done)
    assert log.status().fault == "" and log.lost < 60
    assert "written again" in caplog.text and caplog.text.count("decisions continue") == 1
    gaps: list[Gap] = []
    assert set(read(tmp_path, gaps)) == {done.now_ms for done in ticks[log.lost : 60]}
    assert [gap.records for gap in gaps] == [log.lost]


def test_a_replay_continues_after_a_gap_from_the_next_recorded_state(tmp_path: Path) -> None:
    ticks = some_ticks()[:90]
    with disk(FaultyDisk(Fault.FULL, 50, 56)):
        log = write(tmp_path, ticks, **OPTIONS)
    found = rerun(segments(tmp_path), 0, 1 << 60)
    assert found.same and found.ticks == len(ticks) - log.lost and len(found.gaps) == 1
    gap = found.gaps[0]
    assert "could not write" in gap.why and gap.records == log.lost > 0
    assert gap.to_ms - gap.from_ms == 1000 * (log.lost + 1)
