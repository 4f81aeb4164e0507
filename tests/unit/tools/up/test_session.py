"""The start of a run: load begins once the whole first fleet is ready.

If an instance does not become ready, the run names it.
"""

from __future__ import annotations

import asyncio
import functools
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError
from rich.console import Console

from autoscaler.domain.cluster import Mode
from streams.files.shoal_yaml import Config, load_config
from streams.machine_load import IdleTime
from streams.tools.up import session as session_module
from streams.tools.up import status_view as shown_module
from streams.tools.up.child_processes import ChildFailed
from streams.tools.up.live_view import View
from streams.tools.up.run_options import Wishes
from streams.tools.up.run_state import Picture
from streams.tools.up.session import Session
from streams.tools.up.trace_facts import Traffic
from topics.records import (
    Assignment,
    Decision,
    DesiredInstance,
    Endpoint,
    InstanceState,
    ObservedInstance,
    PlannedCombo,
    PlanRecord,
    RouteGroup,
    Routes,
    Status,
)
from topics.time_base import TimeBase

SAMPLE = Path(__file__).parents[2] / "files" / "sample.yaml"
POOL = "eu-west/l4/spot"
SPEED = 10.0


class FakeTime:
    """A monotonic clock that advances only in sleeps. Events happen at some of its seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.script: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def at(self, second: float, event: Callable[[], None]) -> None:
        self.script.append((second, event))

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds
        while self.script and self.script[0][0] <= self.now_s:
            self.script.pop(0)[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (session_module, shown_module):
        monkeypatch.setattr(module, "time", fake)
    idle_machine = functools.partial(IdleTime, fake.monotonic, lambda: 1.0)
    monkeypatch.setattr(session_module, "IdleTime", idle_machine)
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        fake.pass_(seconds)
        await real_sleep(0)

    monkeypatch.setattr(session_module.asyncio, "sleep", sleep)
    return fake


def config(**modes: Mode) -> Config:
    """The sample configuration. mini and chat have a minimum of 1; the other models have no initial
    demand.
    """
    found = load_config(SAMPLE, Mode.ACT)
    services = tuple(
        replace(
            service,
            min_instances=int(service.model in ("mini", "chat")),
            req_per_s=0.0,
            mode=modes.get(service.model, Mode.ACT),
        )
        for service in found.cluster.services
    )
    return replace(found, cluster=replace(found.cluster, services=services))


def wishes(found: Config) -> Wishes:
    """Options for a run with a minute of traffic at ten times real time."""
    return Wishes(found, SAMPLE, SAMPLE, Traffic(1, 60.0), SPEED, 0.0, "", 0, 1)


class Start:
    """A session before its load, its view, and the result of the wait."""

    def __init__(self, found: Config) -> None:
        self.session = Session(wishes(found), View(Console(file=io.StringIO())))
        self.session._shown.time_base = TimeBase(SPEED, 0, 0)
        self.picture: Picture = self.session.picture
        timeout_s = found.cluster.policy.start_timeout_s
        self.limit_s = session_module._FIRST_FLEET_REAL_S + timeout_s / SPEED

    async def wait(self, deadline: float = float("inf")) -> bool:
        return await self.session._first_fleet(deadline)

    def plan(self, **counts: int) -> None:
        targets = tuple(PlannedCombo(m, f"{m}:a1@{POOL}", n, 1.0, 1.0) for m, n in counts.items())
        self.picture.add(PlanRecord(1, 1, 0, "urgent", 1.0, -1.0, targets))
        for model, count in counts.items():
            for number in range(count):
                name = f"{model}-{number}"
                desired = DesiredInstance(name, model, "aggregated", f"g:{name}", (0,))
                self.picture.add(Assignment(f"n-{name}", POOL, 1, 1, 0, (desired,)))

    def ready(self, model: str, count: int) -> None:
        names = [f"{model}-{number}" for number in range(count)]
        for name in names:
            seen = ObservedInstance(
                name, model, "aggregated", f"g:{name}", InstanceState.READY, (0,), "127.0.0.1:1"
            )
            self.picture.add(Status(f"n-{name}", POOL, "e", 1, 0, (seen,)))
        groups = tuple(RouteGroup(f"g:{n}", 1.0, (Endpoint(n, "127.0.0.1:1"),)) for n in names)
        self.picture.add(Routes(model, count, 1, 0, 500, 30, groups))

    def infeasible(self, model: str) -> None:
        self.picture.add(Decision(1, 1, model, "infeasible", 0, False, "no room"))


async def test_the_load_waits_for_every_instance_of_the_first_fleet(clock: FakeTime) -> None:
    """Load does not wait for models without a minimum and a declared rate."""
    start = Start(config())
    clock.at(1.0, lambda: start.plan(mini=2, chat=1))
    clock.at(2.0, lambda: start.ready("mini", 1))
    clock.at(3.0, lambda: start.ready("chat", 1))
    headlines: list[str] = []
    clock.at(4.0, lambda: headlines.append(start.session._shown.state))
    clock.at(5.0, lambda: start.ready("mini", 2))
    assert await start.wait()
    (headline,) = headlines
    assert headline.startswith("waiting for the first fleet: 2 of 3 instances ready, at most ")
    assert 5.0 < clock.now_s < 6.0
    assert list(start.picture.story) == []


async def test_load_does_not_wait_for_models_without_permission_or_capacity(
    clock: FakeTime,
) -> None:
    start = Start(config(chat=Mode.RECOMMEND))
    clock.at(1.0, lambda: start.infeasible("mini"))
    assert await start.wait()
    assert clock.now_s < 2.0


async def test_load_waits_for_a_model_whose_promise_cannot_be_kept(
    clock: FakeTime,
) -> None:
    start = Start(config())
    start.infeasible("mini")
    start.plan(mini=1, chat=1)
    start.ready("chat", 1)
    clock.at(5.0, lambda: start.ready("mini", 1))
    assert await start.wait()
    assert clock.now_s > 5.0


async def test_after_the_limit_load_starts_with_the_ready_instances_and_a_notice(
    clock: FakeTime,
) -> None:
    start = Start(config())
    start.plan(mini=2, chat=1)
    start.ready("mini", 1)
    start.ready("chat", 1)
    assert await start.wait()
    assert clock.now_s == pytest.approx(start.limit_s, abs=0.2)
    said = f"first fleet incomplete after {start.limit_s:.0f} s: 2 of 3 instances ready"
    assert [event.text for event in start.picture.story if event.bad] == [said]


async def test_a_model_without_a_ready_instance_ends_the_run(clock: FakeTime) -> None:
    start = Start(config())
    start.plan(mini=1, chat=1)
    start.ready("chat", 1)
    said = f"no instance of mini was ready within {start.limit_s:.0f} s"
    with pytest.raises(ChildFailed, match=said):
        await start.wait()


async def test_a_run_can_end_before_its_load(clock: FakeTime) -> None:
    """Either its deadline passes, or its user ends it."""
    start = Start(config())
    assert not await start.wait(deadline=3.0)
    assert clock.now_s == pytest.approx(3.0, abs=0.2)
    start.session.interrupt()
    assert not await start.wait()


def test_the_last_view_equals_the_summary(
    clock: FakeTime,
) -> None:
    """Processes take seconds to end. At ten times real time that would increase the cost."""
    out = io.StringIO()
    session = Session(wishes(config()), View(Console(file=out, force_terminal=True, width=100)))
    shown = session._shown
    clock.pass_(10.0)
    shown.time_base = TimeBase(SPEED, 0, 0)
    shown._visible = True
    shown._view.start()
    assert shown.stop() == 100_000
    clock.pass_(4.0)
    shown.end()
    assert "+01:40" in out.getvalue() and "+02:20" not in out.getvalue()
    assert shown.now_ms() == 100_000


@pytest.mark.parametrize(
    ("task", "error", "raised", "said"),
    [
        ("_following", KafkaConnectionError("no broker"), ChildFailed, "no broker"),
        ("_drawing", ZeroDivisionError("a row"), ZeroDivisionError, "a row"),
    ],
)
async def test_a_failed_screen_ends_the_wait_with_its_reason(
    clock: FakeTime, task: str, error: Exception, raised: type[Exception], said: str
) -> None:
    """The message names this failure, not the missing instances."""

    async def fail() -> None:
        raise error

    start = Start(config())
    setattr(start.session, task, asyncio.create_task(fail()))
    with pytest.raises(raised, match=said):
        await start.wait()
    assert clock.now_s < 1.0
