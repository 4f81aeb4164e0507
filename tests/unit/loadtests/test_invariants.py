"""Simulation of the control loop under faults: promises hold, violations are detected, and runs can
be repeated.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtests.invariants import faults
from loadtests.invariants.__main__ import Outcome, main, outcome
from loadtests.invariants.controller import KEYS
from loadtests.invariants.log import Entry, Log
from loadtests.invariants.scenario import COVER, KINDS, SUBJECTS, Fault, scenario
from loadtests.invariants.simulated_run import World
from topics.codec import decode
from topics.macs import Headers, Signer, signature_header
from topics.signing import _mac


@pytest.mark.parametrize("seed", [16, 33, 39, 58])
def test_every_promise_holds_under_the_faults_of_a_seed(seed: int) -> None:
    """`python -m loadtests.invariants --seeds 300` runs more of them."""
    assert once(seed)[1].broken == ()


@cache
def once(seed: int) -> tuple[World, Outcome]:
    """The world of `seed` after its run, and the result. All tests that only read them share one
    run."""
    world = World(scenario(seed))
    return world, outcome(world)


def test_a_seed_gives_the_same_run_each_time() -> None:
    """Two runs write the same records and have equal checks, so a failing seed fails again."""
    world, first = once(39)
    again = World(scenario(39))
    assert replace(outcome(again), cpu_s=0.0) == replace(first, cpu_s=0.0)
    assert again.log.parts == world.log.parts


def launches(world: World) -> dict[str, int]:
    """Number of launches of each instance."""
    return {f"{n}/{i}": c for n, node in world.nodes.items() for i, c in node.launches.items()}


def test_an_upgrade_and_its_rollback_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while every process writes records of a later version, with unknown fields. No decision
    is lost, and no additional engine starts.
    """
    write, written = Log.append, Counter[str]()

    def later(
        log: Log, name: str, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> Entry:
        if value is not None and 60.0 <= log.now_s() < 160.0:
            with suppress(orjson.JSONDecodeError, AttributeError):
                value = orjson.dumps(_later(name, (key or b"").decode(), orjson.loads(value)))
                headers = _signed_again(name, key, value, headers)
                written[name] += 1
        return write(log, name, key, value, headers)

    plain, _ = once(39)
    monkeypatch.setattr(Log, "append", later)
    world = World(scenario(39))
    assert world.run() == []
    assert launches(world) == launches(plain)
    assert {"telemetry", "status", "leadership", "assignments", "routes"} <= written.keys()


def _later(name: str, key: str, record: dict[str, Any]) -> dict[str, Any]:
    """`record` with unknown fields at its top and in its lists. A signed record is signed again."""
    for value in record.values():
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                item["of_a_later_version"] = {"deep": [1, None]}
    record["of_a_later_version"] = "x"
    if record.get("signature"):
        secret = KEYS.record_keys(name, key)[0]
        record["signature"] = _mac(secret, name, record)
    return record


def _signed_again(name: str, key: bytes | None, value: bytes, headers: Headers) -> Headers:
    """The signature of the same signer and time for another value."""
    given = signature_header(headers)
    if given is None:
        return headers
    signed_ms, signer = int.from_bytes(given[16:24], "big"), given[24:].decode()
    return Signer(KEYS, lambda: signed_ms, signer).headers(name, key, value)


def test_every_kind_of_fault_is_drawn_and_can_be_injected() -> None:
    """A kind of fault that no seed draws would stay untested. Each kind comes together with each
    fault that a promise is about."""
    together = {
        (subject, fault.kind)
        for seed in range(1, 1 + COVER)
        for fault in scenario(seed).faults
        for subject in {one.kind for one in scenario(seed).faults} & set(SUBJECTS)
    }
    assert together == {(subject, kind) for subject in SUBJECTS for kind in KINDS}


def test_a_broken_promise_is_detected() -> None:
    """One node has two processes on one GPU, and it follows a leader without a claim."""
    world = World(replace(scenario(33), faults=(), end_s=60.0))
    assert world.run() == []
    node = next(n for n in world.nodes.values() if n.processes and n.state.assignment)
    one = next(iter(node.processes.values()))
    node.processes["twin"] = one
    assert node.state.assignment is not None
    ghost = replace(node.state.assignment, leader_token=faults.GHOST)
    node.state = replace(node.state, assignment=ghost)
    world.promises.second()
    assert {broken.line for broken in world.promises.broken} == {"8", "9"}


def test_a_failing_seed_is_printed_with_its_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The output has the command that repeats the run, and the figures as JSON.
    The exit code is 1.
    """

    def broken(world: World) -> list[object]:
        world.promises._hold("8", False, "twice")
        return list(world.promises.broken)

    monkeypatch.setattr(World, "run", broken)
    assert main(["--seeds", "2", "--first", "5", "--json", str(tmp_path / "out.json")]) == 1
    said = capsys.readouterr().out
    assert "seed 6 FAILED; reproduce with --seed 6" in said and "line 8 at 0.0 s: twice" in said
    assert orjson.loads((tmp_path / "out.json").read_bytes())["failed"] == [5, 6]


@pytest.mark.parametrize(
    "words", [["--seeds", "0"], ["--seed", "-1"], ["--jobs", "x"], ["--faults", "flood"]]
)
def test_bad_numbers_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_fault_is_printed_with_its_time() -> None:
    assert str(Fault("pause", 10.0, 20.0, 0.5)) == "pause at 10 s until 20 s"


@dataclass(frozen=True)
class Clocks:
    """Seconds by which each clock is ahead from the start on."""

    broker: int = 0
    hosts: tuple[float, float] = (0.0, 0.0)
    executors: int = 0

    def decided(self) -> list[tuple[str, str]]:
        """(kind, model) of each decision in a run without faults. All promises hold in this run."""
        quiet = replace(scenario(11), faults=(), end_s=100.0, skew_s=self.hosts)
        world = World(quiet)
        world.log.skew_ms = self.broker * 1000
        for number, node in enumerate(world.nodes.values()):
            node.wall_skew_ms = self.executors * 1000 * (-1) ** number
        assert world.run() == []
        found = (
            decode("decisions", e.value or b"") for e in world.log.parts["decisions", 0].entries
        )
        return [(decision.kind, decision.model) for decision in found]


@pytest.mark.parametrize(
    "wrong",
    [
        Clocks(broker=60),
        Clocks(broker=-3600),
        Clocks(hosts=(3600.0, -3600.0)),
        Clocks(executors=3600),
        Clocks(broker=60, hosts=(-3600.0, 3600.0), executors=-3600),
    ],
    ids=str,
)
def test_wrong_clocks_change_no_decision(wrong: Clocks) -> None:
    """The broker's clock is ahead, or executors' clocks are an hour wrong, so every assignment
    could look expired.
    """
    assert wrong.decided() == by_clocks_that_are_right()


@cache
def by_clocks_that_are_right() -> list[tuple[str, str]]:
    """The decisions with correct clocks, as the reference for all wrong clocks."""
    return Clocks().decided()
