"""Limits of logs, notices, starts, drains and restarts on a node, at the value where they begin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.engines.engine_protocol import Load
from executors.node import start_reports
from executors.node.engine_logs import EngineLogs
from executors.node.instance_lifecycle import apply_observation, can_reuse_process, stop_if_due
from executors.node.node_state import (
    Command,
    InstanceRecord,
    Kill,
    ProcessObservation,
    Rules,
    Terminate,
)
from executors.node.os_processes import EngineProcess
from executors.node.procfs import starved_s
from executors.node.reclaim_hook import read_notice
from executors.node.scripted_faults import FaultsFile
from executors.node.start_reports import read_report, repeats, with_blocks
from tests.unit.executors.test_engine_probes import Bench as ProbedEngine
from tests.unit.executors.test_probe_schedule import NOW, WISH, Bench
from tests.unit.executors.test_reclaim_hook import command
from tests.unit.executors.test_scripted_faults import write
from tests.unit.executors.test_worker_with_engines import Bench as Node
from topics.checks import InvalidValue
from topics.engine_start import EngineStart
from topics.fleet import InstanceState

RULES = Rules()
ITEM = InstanceRecord(
    WISH, InstanceState.READY, NOW, "aggregated", has_process=True, was_ready=True, launched_ms=NOW
)
MIB = 1024 * 1024


def due(item: InstanceRecord, after_ms: int, rules: Rules = RULES) -> tuple[str, list[Command]]:
    """(reason, commands) for an instance of which nothing was observed."""
    commands: list[Command] = []
    after = stop_if_due(item, None, NOW + after_ms, 120_000, rules, commands)
    return after.reason, commands


def test_a_log_of_8_mib_is_kept_whole(tmp_path: Path) -> None:
    logs = EngineLogs(tmp_path)
    path = logs.open_new("a", 1)
    for size, kept in ((8 * MIB, 8 * MIB), (8 * MIB + 1, 4 * MIB)):
        path.write_bytes(b"")
        with path.open("r+b") as file:
            file.truncate(size)
        logs.truncate([path])
        assert path.stat().st_size == kept


def test_the_last_line_of_a_log_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "log"
    engine = EngineProcess(2**22 - 1, 0, "", "", path)
    path.write_text("first\n" + "x" * 400 + "\n\n")
    assert engine._last_line() == "x" * 300
    path.write_text("first\n" + " " * 1990)
    assert engine._last_line() == "first"
    path.write_text("first\n" + " " * 2000)
    assert engine._last_line() == "", "only the end of a long log is read"
    path.unlink()
    assert engine._last_line() == ""


@pytest.mark.parametrize(("seconds", "fits"), [(86_400, True), (86_401, False)])
async def test_a_notice_is_at_most_a_day_ahead(seconds: int, fits: bool) -> None:
    told = command(f"print(json.dumps({{'seconds_left': {seconds}}}))")
    if fits:
        assert await read_notice(told, "n1", 30.0) == seconds
    else:
        with pytest.raises(InvalidValue, match="seconds_left"):
            await read_notice(told, "n1", 30.0)


def test_a_file_of_faults_is_empty_until_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    file = FaultsFile(path)
    assert file.faults.lost == frozenset() and file.faults.reclaim_ms == {}
    path.write_bytes(b"{")
    assert not file.refresh() and file.faults.failing == frozenset()
    write(path, {"failing": ["n1"]}, 5)
    assert file.refresh() and file.faults.failing == {"n1"}


def test_of_a_long_log_the_beginning_and_the_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_reports, "_MOST_BYTES", 1000)
    path = tmp_path / "log"
    states = b"Available KV cache memory: 2.00 GiB\n"
    half = 1000
    for before, after, found in (
        (0, 2 * half, True),
        (half - len(states), half + 1, True),
        (half + 1, half, False),
        (2 * half, half - 2 * len(states), True),
        (2 * half, 0, True),
    ):
        path.write_bytes(b"\n" * before + states + b"\n" * after)
        assert (read_report(path, "a") is not None) is found, (before, after)
    path.unlink()
    assert read_report(path, "a") is None


def test_blocks_of_the_metrics_complete_a_report() -> None:
    assert with_blocks(None, None) is None and with_blocks(None, Load(1, 0)) is None
    load = Load(0, 0, blocks=10, block_tokens=16)
    assert with_blocks(None, load) == EngineStart(blocks=10, block_tokens=16)
    known = EngineStart(kv_bytes=7)
    assert with_blocks(known, load) == replace(known, blocks=10, block_tokens=16)
    assert with_blocks(known, Load(0, 0)) is known
    assert [repeats(EngineStart(refused=why)) for why in ("", "out_of_memory", "too_long")] == [
        False, False, True,
    ]  # fmt: skip
    assert not repeats(None)


def test_a_process_without_accounts_has_waited_for_no_processor() -> None:
    assert starved_s(2**22 - 1) == 0.0 and starved_s(1) >= 0.0


async def test_a_token_is_overdue_after_exactly_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ProbedEngine(monkeypatch)
    assert await bench.after(1.0) is True
    assert await bench.after(5.0) is None, "5 s without progress"
    assert await bench.after(4.9) is None
    assert await bench.after(0.1) is False
    bench.watch.close()
    monkeypatch.undo()


async def test_a_closed_schedule_probes_anew() -> None:
    bench = Bench()
    await bench.probe(1.0)
    await bench.schedule.close()
    assert bench.schedule._probes == {} and bench.schedule.take_result("a", object()) is None


async def test_a_switching_engine_is_asked_for_its_load_until_it_is_terminated() -> None:
    bench = Bench()
    switching = {"state": InstanceState.SWITCHING}
    assert await bench.probe(1.0, **switching) == ["ready", "alive", "load"]
    assert await bench.probe(9.0, terminated_ms=NOW, **switching) == ["load"]
    starting = {"state": InstanceState.STARTING}
    assert await bench.probe(19.0, terminated_ms=NOW, **starting) == ["load"]


@pytest.mark.parametrize(
    ("item", "late_ms", "why"),
    [
        (replace(ITEM, state=InstanceState.STARTING), 600_000, "not ready 600 s"),
        (replace(ITEM, unhealthy_since_ms=NOW), 30_000, "no answer for 30 s"),
        (replace(ITEM, state=InstanceState.STARTING, sleep_ms=1), 30_000, "did not wake in 30 s"),
    ],
)
def test_an_instance_is_killed_at_its_deadline(
    item: InstanceRecord, late_ms: int, why: str
) -> None:
    assert due(item, late_ms - 1) == ("", [])
    reason, commands = due(item, late_ms)
    assert reason.startswith(why) and commands == [Kill("a")]
    assert due(replace(item, has_process=False), late_ms)[1] == []


@pytest.mark.parametrize(("sent", "limit_ms"), [("terminated_ms", 20_000), ("killed_ms", 15_000)])
def test_a_kill_follows_a_stop_that_takes_too_long(sent: str, limit_ms: int) -> None:
    """The kind of engine states the time of a stop; kills are repeated at a fixed interval."""
    rules = replace(RULES, stop_ms={"fake": 20_000})
    stopping = replace(ITEM, state=InstanceState.STOPPING, **{sent: NOW})  # type: ignore[arg-type]
    assert due(stopping, limit_ms - 1, rules)[1] == []
    assert due(stopping, limit_ms, rules)[1] == [Kill("a")]


def test_a_drain_ends_at_the_earlier_of_its_deadlines() -> None:
    busy = replace(ITEM, state=InstanceState.DRAINING, drain_ms=NOW, in_flight=2)
    assert due(busy, 119_999)[1] == []
    assert due(busy, 120_000) == ("drain deadline with 2 in flight", [Terminate("a")])
    reclaimed = replace(RULES, drain_by_ms=NOW + 1)
    assert due(busy, 0, reclaimed)[1] == [] and due(busy, 1, reclaimed)[1] == [Terminate("a")]
    never = replace(busy, was_ready=False)
    assert due(never, 0) == ("drained", [Terminate("a")]), "it had no route"


DEAD = ProcessObservation(alive=False, end_reason="exit code 1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "exit code 1"),
        ({"reason": "no answer for 30 s"}, "exit code 1"),
        ({"reason": "no answer for 30 s", "killed_ms": NOW}, "no answer for 30 s"),
        ({"killed_ms": NOW}, "exit code 1"),
    ],
)
def test_the_reason_of_a_kill_replaces_the_exit_code(changes: dict[str, Any], reason: str) -> None:
    after = apply_observation(replace(ITEM, **changes), DEAD, NOW + 1000, RULES)
    assert after.reason == reason and not after.has_process
    silent = replace(DEAD, end_reason="")
    assert apply_observation(ITEM, silent, NOW, RULES).reason == "the process ended"


@pytest.mark.parametrize(
    ("failures", "ready_ms", "pause_ms"),
    [(0, 299_999, 5_000), (1, 299_999, 10_000), (1, 300_000, 0), (0, 300_000, 0)],
)
def test_an_instance_that_lasted_restarts_at_once(
    failures: int, ready_ms: int, pause_ms: int
) -> None:
    after = apply_observation(replace(ITEM, failures=failures), DEAD, NOW + ready_ms, RULES)
    assert after.retry_ms - (NOW + ready_ms) == pause_ms
    assert after.failures == (1 if ready_ms == 300_000 else failures + 1)
    assert after.restarts == 1
    patient = replace(RULES, max_attempts=9)
    late = apply_observation(replace(ITEM, failures=7), DEAD, NOW, patient)
    assert late.retry_ms - NOW == 60_000, "the pause has a limit"


def test_the_end_of_a_process_clears_all_of_it() -> None:
    busy = replace(
        ITEM, endpoint="h:1", ports=(1,), in_flight=1, held_kv=2, finished=3, unhealthy_since_ms=4,
        starved_ms=5,
    )  # fmt: skip
    gone = apply_observation(busy, DEAD, NOW + 1, RULES)
    assert (gone.endpoint, gone.ports, gone.has_process) == ("", (), False)
    assert (gone.in_flight, gone.held_kv, gone.finished) == (0, 0, 0)
    assert (gone.unhealthy_since_ms, gone.starved_ms, gone.sleep_ms) == (0, 0, 0)


def test_a_version_that_is_unknown_fits_any_process() -> None:
    for old, new, fits in (("", "", True), ("", "v", True), ("v", "", True), ("v", "w", False)):
        pair = replace(WISH, version=old), replace(WISH, version=new)
        assert can_reuse_process(*pair) is fits
    for other in ({"model": "x"}, {"gpus": (1,)}, {"engine": "x"}):
        assert not can_reuse_process(WISH, replace(WISH, **other))
    assert can_reuse_process(WISH, replace(WISH, group="x", phase="decode"))


async def test_a_node_without_a_published_status_gives_up_its_claim_in_time() -> None:
    """After two thirds of the time after which others take over: 20 of 30 s."""
    for silent_s, claimed in ((20.0, True), (20.1, False)):
        node = Node()
        node.node_lock.claimed = True
        await node.step(1.0)
        assert node.told
        await node.step(1.0 + silent_s)
        assert node.node_lock.claimed is claimed
