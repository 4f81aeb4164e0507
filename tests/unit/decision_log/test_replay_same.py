"""A replay of a recorded time span gives byte-identical decisions, whatever events it contains."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoscaler.decide import ControllerState, Observation
from autoscaler.domain.cluster import Market, Mode
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.sketch_cells import CELLS
from autoscaler.estimate.sketches import SketchSnapshot
from autoscaler.estimate.window_stats import WindowLengths
from autoscaler.state.controller_state import Term
from autoscaler.state.effects import PublishLedger
from streams.decision_log.log_reader import Gap, read_spans, segments
from streams.decision_log.log_replay import Rerun, rerun
from streams.decision_log.log_writer import DecisionLog
from streams.files.user_errors import UserError
from streams.loop.tick_loop import TickResult
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import T0, World, world
from tests.unit.decision_log.recorded_worlds import record, some_ticks, write
from topics.alerts import Alert
from topics.supply import Availability, Price

FOREVER = 1 << 60
ONE = pool("one", nodes=12, per_node=1)
SPOT = pool("two", nodes=6, market=Market.SPOT, usd=3.0)


def again(folder: Path) -> Rerun:
    return rerun(segments(folder), 0, FOREVER)


def eventful(seed: int) -> World:
    """A world with surges, silence, a lost pool, prices, offers, alerts and a change of mode."""
    w = world(
        lambda model, t: 40.0 if model == "chat" and 100 <= t < 260 else 6.0,
        service("chat", spot_share=0.5),
        service("mini", mode=Mode.RECOMMEND),
        pools=(ONE, SPOT),
        seed=seed,
        full_s=4,
    )

    def happen(w: World) -> None:
        t = w.t_s
        if t == 40:
            w.prices[SPOT.id] = Price(SPOT.id, 4.5, w.now_ms)
        if t == 80:
            w.availability[ONE.id] = Availability(ONE.id, 3, w.now_ms)
            w.alerts.append(Alert("a", "HighLatency", "firing", w.now_ms, ("chat",)))
        if t == 150:
            w.cut.add(SPOT.id)
        if t == 240:
            w.cut.discard(SPOT.id)
        if t in (180, 200):
            (w.silent.add if t == 180 else w.silent.discard)("g1")
        if t == 300:
            services = tuple(replace(s, mode=Mode.ACT) for s in w.cluster.services)
            w.cluster = replace(w.cluster, services=services)

    tick = w.tick

    def ticking(seconds: int = 1) -> object:
        happen(w)
        return tick(seconds)

    w.tick = ticking  # type: ignore[assignment,method-assign]
    return w


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_replayed_tick_has_its_recorded_effects(seed: int, tmp_path: Path) -> None:
    w = eventful(seed)
    record(w, tmp_path, 400)
    found = again(tmp_path)
    assert found.same and found.ticks == 400
    assert found.decisions == len(w.decisions) > 5
    assert found.first_ms == T0 + 1000 and found.last_ms == T0 + 400_000


def test_a_replay_of_a_part_starts_from_the_state_recorded_before_it(tmp_path: Path) -> None:
    record(eventful(4), tmp_path, 400)
    found = rerun(segments(tmp_path), T0 + 300_000, T0 + 350_000)
    assert found.same and found.ticks == 51


def test_a_different_decision_is_reported_with_its_time(tmp_path: Path) -> None:
    """The effects of one tick are recorded otherwise, so the replay decides differently."""
    ticks = list(some_ticks())
    at = next(k for k, done in enumerate(ticks) if done.effects)
    ticks[at] = replace(ticks[at], effects=ticks[at].effects[1:])
    write(tmp_path, ticks)
    found = again(tmp_path)
    assert [one.now_ms for one in found.differs] == [ticks[at].now_ms]


def test_a_different_entry_of_the_ledger_is_reported(tmp_path: Path) -> None:
    ticks = list(some_ticks())
    at, told = next(
        (k, one)
        for k, done in enumerate(ticks[5:], 5)
        for one in done.effects
        if isinstance(one, PublishLedger)
    )
    record_ = replace(told.record, value=told.record.value.replace(":0", ":1", 1))
    assert record_ != told.record
    effects = tuple(PublishLedger(record_) if e is told else e for e in ticks[at].effects)
    ticks[at] = replace(ticks[at], effects=effects)
    write(tmp_path, ticks)
    assert [one.now_ms for one in again(tmp_path).differs] == [ticks[at].now_ms]


def test_a_controller_killed_during_a_write_loses_only_the_last_line(tmp_path: Path) -> None:
    record(world(5.0, pools=(ONE,), seed=1), tmp_path, 60)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 40])
    found = again(tmp_path)
    assert found.same and 50 <= found.ticks <= 60


def test_the_log_stays_within_its_size_limit(tmp_path: Path) -> None:
    """The log deletes its oldest segments; the others can be replayed."""
    record(world(20.0, pools=(ONE,), seed=1), tmp_path, 400, segment_s=20, most_bytes=60_000)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) > 2
    assert sum(sizes) <= 60_000 + 2 * max(sizes)
    found = again(tmp_path)
    assert found.same and found.last_ms == T0 + 400_000 and found.first_ms > T0 + 1000


def test_an_unwritable_folder_does_not_delay_decisions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault is logged, the ticks count as lost, and the controller continues to decide."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    w = world(5.0, pools=(ONE,))
    record(w, blocked, 50)
    assert w.ready("chat") == 0 and w.assigned_count("chat") >= 1
    assert "decision log" in caplog.text


@pytest.mark.parametrize("controller", ["team/ctl-1", "a.b:c@d+e_f-1"])
def test_segments_are_named_after_any_valid_controller_id(tmp_path: Path, controller: str) -> None:
    log, state = DecisionLog(tmp_path, controller), ControllerState(Term(T0))
    log.start()
    log.tick(TickResult(state, state, Observation(), world(5.0, pools=(ONE,)).cluster, T0, (), 0.0))
    log.close(30.0)
    (segment,) = segments(tmp_path)
    assert (
        log.lost == 0
        and segment.controller == next(read_spans([segment], [])).start.controller == controller
    )


def test_segments_that_another_controller_deletes_meanwhile_cause_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controllers on one machine share the default folder and its size limit."""
    (tmp_path / "2-other.jsonl.gz").write_bytes(b"x" * 100)
    there = [tmp_path / "1-gone.jsonl.gz", tmp_path / "2-other.jsonl.gz"]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(there))
    log, state = DecisionLog(tmp_path, "ctl-1", most_bytes=10), ControllerState(Term(T0))
    log.start()
    log.tick(TickResult(state, state, Observation(), world(5.0, pools=(ONE,)).cluster, T0, (), 0.0))
    log.close(30.0)
    assert log.lost == 0 and not there[1].exists()


def test_a_value_that_cannot_be_written_loses_only_its_tick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock_s = iter(range(0, 1000, 100))
    log = DecisionLog(tmp_path, "ctl-1", monotonic_s=lambda: next(clock_s))
    log.start()
    state, cluster = ControllerState(Term(T0)), world(5.0, pools=(ONE,)).cluster
    for second, shape in enumerate(
        (SketchSnapshot(np.zeros(CELLS, np.int64)).sketch("shapes", 0), object(), {})
    ):
        lengths = WindowLengths(shapes=shape)  # type: ignore[arg-type]
        seen = Observation(demand={"chat": ModelDemand(long_lengths=lengths)})
        log.tick(TickResult(state, state, seen, cluster, T0 + 1000 * second, (), 0.0))
    log.close(30.0)
    assert log.lost == 1 and caplog.text.count("decisions continue") == 1
    assert [len(list(span.ticks)) for span in read_spans(segments(tmp_path), [])] == [1, 1]


def test_after_a_fault_a_new_segment_begins_with_the_current_state(tmp_path: Path) -> None:
    w = world(5.0, pools=(ONE,), seed=1)
    record(w, tmp_path, 40)
    w.run(25)  # these ticks are not recorded
    record(w, tmp_path, 40)
    found = again(tmp_path)
    assert found.same and found.ticks == 80


def test_a_folder_without_a_valid_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no decision log here"):
        segments(tmp_path)
    for data, why in (
        (b"not gzip at all", "incorrect header check"),
        (b"", "empty"),
        (
            zlib.compress(b'{"form":6,"version":"0.1"}\n', wbits=31),
            "written in form 6; this version",
        ),
        (zlib.compress(b"null\n{}\n", wbits=31), "not a record"),
    ):
        (tmp_path / "1-x.jsonl.gz").write_bytes(data)
        gaps: list[Gap] = []
        assert list(read_spans(segments(tmp_path), gaps)) == []
        assert len(gaps) == 1 and why in gaps[0].why


def test_an_overrun_log_counts_its_lost_ticks(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, "ctl-1")  # not started, so its queue is not emptied
    for _ in range(200):
        log.tick(None)  # type: ignore[arg-type]
    assert log.lost == 80
