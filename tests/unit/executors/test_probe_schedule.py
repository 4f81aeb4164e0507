"""Which probe an engine gets in each state, and how often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from executors.engines.engine_protocol import Contact, EngineKind, Load
from executors.node.engine_probes import ProbeTimeouts
from executors.node.node_state import InstanceRecord
from executors.node.probe_schedule import ProbeSchedule
from topics.fleet import DesiredInstance, InstanceState
from topics.instance_ranks import GangRank, GangStage

NOW = 1_700_000_000_000
STAGES = (GangStage("L4", 1, 2), GangStage("L4", 1, 2))
WISH = DesiredInstance("a", "m", "aggregated", "g", (0,), engine="fake")
ENGINE = object()


class FakeKind:
    """Notes the calls, and answers each with yes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.contacts: set[tuple[str, str, str]] = set()
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(engine: Contact) -> object:
            self.calls.append(name)
            self.contacts.add((engine.endpoint, engine.model, engine.api_key))
            if self.error is not None:
                raise self.error
            return Load(1, 0, tokens=len(self.calls)) if name == "load" else True

        return call


class Bench:
    """The schedule of one node; its engine has an address unless `address` is None."""

    def __init__(self) -> None:
        self.kind = FakeKind()
        self.address: tuple[str, str] | None = ("10.0.0.1:1", "key")
        client = cast(aiohttp.ClientSession, object())
        kinds = {"fake": cast(EngineKind, self.kind)}
        self.schedule = ProbeSchedule(
            kinds, client, lambda _item, _engine: self.address, ProbeTimeouts()
        )

    async def probe(self, at_s: float, engine: object = ENGINE, **changes: Any) -> list[str]:
        """The calls of one step at `at_s`."""
        self.kind.calls.clear()
        item = InstanceRecord(WISH, InstanceState.READY, NOW, "aggregated", has_process=True)
        self.schedule.start_probe(replace(item, **changes), engine, NOW, at_s)
        while self.schedule._tasks:
            await asyncio.sleep(0)
        return list(self.kind.calls)


STARTING, READY = InstanceState.STARTING, InstanceState.READY
SWITCHING, DRAINING = InstanceState.SWITCHING, InstanceState.DRAINING


@pytest.mark.parametrize(
    ("state", "changes", "calls"),
    [
        (STARTING, {}, {"ready", "alive"}),
        (STARTING, {"sleep_ms": NOW}, {"wake"}),
        (READY, {}, {"load"}),
        (SWITCHING, {}, {"ready", "load"}),
        (DRAINING, {}, {"load"}),
        (DRAINING, {"sleep_ms": NOW}, {"sleep"}),
        (DRAINING, {"sleep_ms": NOW, "terminated_ms": NOW}, {"load"}),
        (SWITCHING, {"terminated_ms": NOW}, {"load"}),
        (InstanceState.STOPPED, {}, set()),
        (InstanceState.ASLEEP, {}, set()),
        (InstanceState.FAILED, {}, set()),
    ],
)
async def test_the_probe_follows_the_state(
    state: InstanceState, changes: dict[str, Any], calls: set[str]
) -> None:
    bench = Bench()
    made = set(await bench.probe(1.0, state=state, **changes))
    assert calls <= made if calls else not made
    if calls == {"load"} and state is not READY:
        assert made == calls, "a leaving engine is not asked for its health"
    assert "sleep" not in made or calls == {"sleep"}
    assert bench.kind.contacts <= {("10.0.0.1:1", "m", "key")}


@pytest.mark.parametrize(
    ("state", "every_s"), [(STARTING, 0.1), (READY, 2.0), (SWITCHING, 0.1), (DRAINING, 0.1)]
)
async def test_probes_are_due_after_the_interval_of_the_state(
    state: InstanceState, every_s: float
) -> None:
    bench = Bench()
    assert await bench.probe(1.0, state=state)
    assert not await bench.probe(1.0 + 0.99 * every_s, state=state)
    assert await bench.probe(1.0 + every_s, state=state)
    bench.schedule.forget("a")
    assert await bench.probe(1.0 + every_s, state=state), "a new engine is probed at once"


async def test_one_probe_of_an_engine_runs_at_a_time() -> None:
    bench = Bench()
    item = InstanceRecord(WISH, READY, NOW, "aggregated", has_process=True)
    for at_s in (1.0, 9.0):
        bench.schedule.start_probe(item, ENGINE, NOW, at_s)
    assert len(bench.schedule._tasks) == 1
    await bench.schedule.close()
    assert bench.schedule.take_result("a", ENGINE) is None


async def test_results_belong_to_one_engine_and_are_taken_once() -> None:
    bench = Bench()
    await bench.probe(1.0)
    assert bench.schedule.take_result("a", object()) is None
    await bench.probe(9.0)
    taken = bench.schedule.take_result("a", ENGINE)
    assert taken is not None and taken[1] == NOW
    assert taken[0].load is not None and taken[0].load.running == 1
    assert bench.schedule.take_result("a", ENGINE) is None


async def test_a_following_rank_needs_no_probe() -> None:
    bench = Bench()
    follower = replace(WISH, gang=GangRank("gang", 1, STAGES))
    assert await bench.probe(1.0, desired=follower, state=STARTING) == []
    taken = bench.schedule.take_result("a", ENGINE)
    assert taken is not None and taken[0].healthy is True and taken[0].load == Load(0, 0)
    leader = replace(WISH, gang=GangRank("gang", 0, STAGES))
    assert await bench.probe(9.0, desired=leader, state=STARTING)


async def test_nothing_is_probed_without_an_address_or_a_known_kind() -> None:
    bench = Bench()
    bench.address = None
    assert await bench.probe(1.0) == []
    bench.address = ("10.0.0.1:1", "key")
    assert await bench.probe(3.0)
    assert await bench.probe(5.0, desired=replace(WISH, engine="other")) == []


async def test_a_relaunched_engine_is_reached_at_its_own_address() -> None:
    bench = Bench()
    await bench.probe(1.0)
    bench.address = ("10.0.0.1:2", "key")
    await bench.probe(3.0)
    assert {endpoint for endpoint, _, _ in bench.kind.contacts} == {"10.0.0.1:1"}
    await bench.probe(5.0, engine=object())
    assert {endpoint for endpoint, _, _ in bench.kind.contacts} == {"10.0.0.1:1", "10.0.0.1:2"}


async def test_a_probe_that_raises_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.kind.error = RuntimeError("a bug of the kind")
    await bench.probe(1.0, state=STARTING)
    await asyncio.sleep(0)
    bench.kind.error = None
    assert await bench.probe(3.0, state=STARTING)
    assert "a: probe failed" in caplog.text and "a bug of the kind" in caplog.text
