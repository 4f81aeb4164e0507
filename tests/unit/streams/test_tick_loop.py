"""The tick loop reads an observation and sends each effect to its port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance import catalog
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency
from streams.clock import Clock
from streams.controller.composition import published
from streams.loop import tick_schedule
from streams.loop.control_state import ControlState
from streams.loop.tick_loop import Loop, Ports
from streams.ports.record_signing import Seal
from streams.solver.solver_client import plan_here
from topics.keys import Keys
from topics.reason_codes import ReasonCode
from topics.records import (
    Alert,
    Assignment,
    Availability,
    Control,
    Decision,
    LedgerEntry,
    PlanRecord,
    Price,
    Routes,
    Telemetry,
)
from topics.time_base import TimeBase

NOW_MS = 1_700_000_000_000
MODEL = catalog.quantized(catalog.model("meta-llama/Llama-3.1-8B-Instruct"), "fp8")
SERVICE = Service(
    model="tiny",
    architecture=MODEL,
    slo=Slo(2000.0, 100.0),
    min_instances=1,
    mode=Mode.ACT,
    lengths=Lengths(512.0, 128.0),
)
CLUSTER = Cluster((Pool("r", "l4", catalog.gpu("L4"), 1, 2, Market.ON_DEMAND, 1.0),), (SERVICE,))
POOL = CLUSTER.pools[0].id
KEYS = Keys(cluster="k" * 32)
FROZEN = Clock(TimeBase(1.0, NOW_MS, 0), mono_ns=lambda: 0)
SEAL = Seal(KEYS, FROZEN)


class Records:
    """Stores the records that it gets."""

    def __init__(self) -> None:
        self.put_: list[Any] = []

    def put(self, record: Any) -> None:
        self.put_.append(record)

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.put_ if isinstance(record, kind)]


class InlineSolver:
    """A solver that answers each request at once. The next observation contains the answer."""

    def __init__(self) -> None:
        self.asked: list[PlanRequest] = []
        self.news = asyncio.Event()
        self._answers: tuple[PlanAnswer, ...] = ()

    def ask(self, request: PlanRequest, cluster: Cluster) -> None:
        self.asked.append(request)
        self._answers += (plan_here(request, cluster),)

    def take(self) -> tuple[PlanAnswer, ...]:
        found, self._answers = self._answers, ()
        self.news.clear()
        return found

    def of(self, urgency: Urgency) -> list[PlanRequest]:
        return [request for request in self.asked if request.urgency is urgency]


class Declared:
    """A declaration that a test can change."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __call__(self) -> Cluster:
        return self.cluster


def make_loop(
    cluster: Cluster, records: Records, leads: Callable[[], bool] = lambda: True
) -> tuple[Loop, InlineSolver, Declared]:
    latest, solver, declared = ControlState(), InlineSolver(), Declared(cluster)
    desired = published(declared, records, SEAL)  # type: ignore[arg-type]
    ports = Ports(
        desired,
        records,
        solver,  # type: ignore[arg-type]
    )
    loop = Loop(
        restore(cluster, {}, {}, {}, (), NOW_MS, leader_token=3),
        declared,
        TelemetryWindows(),
        latest,
        ports,
        Clock(TimeBase(1.0, NOW_MS, 0), mono_ns=lambda: 0),
        leads=leads,
    )
    return loop, solver, declared


def feed(loop: Loop, second: int, arrivals: int) -> None:
    end_ms = NOW_MS + second * 1000
    record = Telemetry(
        "tiny", "g", "b", second, end_ms, 1000, 0, arrivals, arrivals, *[0] * 2, arrivals, *[0] * 5
    )
    loop.windows.add(record, end_ms)


def settle(loop: Loop, seconds: int = 5) -> int:
    """Tick until the first plans are applied. Returns the second of the last tick."""
    for second in range(1, seconds + 1):
        loop.tick(NOW_MS + second * 1000)
    return seconds


def reasons(loop: Loop) -> list[tuple[ReasonCode, str]]:
    """Triggers of the pending full plan, as (code, subject)."""
    return [(why.code, why.subject) for why in loop.state.pending[Urgency.FULL].reasons]


def test_a_minimum_becomes_an_assignment_through_the_ports() -> None:
    """First comes the plan request. Decision, plan and assignment follow the answer."""
    records = Records()
    loop, solver, _ = make_loop(CLUSTER, records)
    loop.tick(NOW_MS + 1000)
    assert solver.of(Urgency.URGENT)[0].scope == ("tiny",)
    assert records.of(Assignment) == []
    loop.tick(NOW_MS + 2000)
    (assignment,) = records.of(Assignment)
    assert assignment.leader_token == 3
    assert [i.model for i in assignment.instances] == ["tiny"]
    assert [d.kind for d in records.of(Decision)] == ["scale_out"]
    assert records.of(PlanRecord)
    assert records.of(Routes)[0].model == "tiny"
    order = [type(record) for record in records.put_]
    assert order.index(Decision) < order.index(Assignment)


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.APPROVE])
def test_a_mode_that_does_not_act_publishes_only_decisions(mode: Mode) -> None:
    """Decisions are published with applied False. No assignment or route is
    published at any load.
    """
    cluster = replace(CLUSTER, services=(replace(SERVICE, mode=mode),))
    records = Records()
    loop, _, _ = make_loop(cluster, records)
    for second in range(1, 400):
        feed(loop, second, 9)
        loop.tick(NOW_MS + second * 1000)
    loop.say_again(NOW_MS + 10**9)
    decisions = records.of(Decision)
    assert {"scale_out"} <= {decision.kind for decision in decisions}
    assert not any(decision.applied for decision in decisions)
    assert records.of(Assignment) == []
    assert records.of(Routes) == []


def test_ports_block_assignments_if_no_model_may_act() -> None:
    """They block even an assignment that was decided. A service in mode act opens them."""
    records = Records()
    declared = Declared(replace(CLUSTER, services=(replace(SERVICE, mode=Mode.RECOMMEND),)))
    desired = published(declared, records, SEAL)  # type: ignore[arg-type]
    assignment, route = Assignment("n", "p", 1, 1, 0), Routes("tiny", 1, 1, 0, 1.0, 1.0)
    desired.apply(assignment)
    desired.apply(route)
    assert records.put_ == []
    declared.cluster = CLUSTER
    desired.apply(assignment)
    desired.apply(route)
    assert records.put_ == [SEAL(assignment), SEAL(route)]
    assert all(record.signature for record in records.put_)


def test_a_repeated_record_has_the_same_generation_and_token() -> None:
    """The loop repeats the latest desired state."""
    records = Records()
    loop, _, _ = make_loop(CLUSTER, records)
    settle(loop)
    before = {*records.of(Assignment), *records.of(Routes)}
    latest = {a.node: a for a in records.of(Assignment)}
    assert latest
    records.put_.clear()
    loop.say_again(NOW_MS + 10**9)
    assert {*records.of(Assignment), *records.of(Routes)} <= before
    assert {a.node: a for a in records.of(Assignment)} == latest


def test_a_recreated_ledger_is_written_again_with_the_next_tick() -> None:
    records = Records()
    loop, _, _ = make_loop(CLUSTER, records)
    second = settle(loop)
    known = {record.key for record in records.of(LedgerEntry)}
    records.put_.clear()
    loop.say_ledger_again()
    loop.tick(NOW_MS + (second + 1) * 1000)
    assert {record.key for record in records.of(LedgerEntry)} >= known


def test_a_price_reaches_the_planner_in_the_next_tick() -> None:
    """A tenfold price triggers a full plan at that price."""
    loop, solver, _ = make_loop(CLUSTER, Records())
    second = settle(loop)
    asked = len(solver.of(Urgency.FULL))
    loop.latest.take(Price(POOL, 10.0, NOW_MS), 0)
    loop.tick(NOW_MS + (second + 1) * 1000)
    assert solver.of(Urgency.FULL)[asked].prices_usd_per_h == ((POOL, 10.0),)
    assert (ReasonCode.PRICE, POOL) in reasons(loop)


def test_an_offer_reaches_the_planner_in_the_next_tick() -> None:
    """A pool without free nodes triggers a full plan that rents none of them."""
    loop, solver, _ = make_loop(CLUSTER, Records())
    second = settle(loop)
    loop.latest.take(Availability(POOL, 0, NOW_MS), 0)
    loop.tick(NOW_MS + (second + 1) * 1000)
    assert solver.of(Urgency.FULL)[-1].obtainable == ((POOL, 0),)
    assert (ReasonCode.AVAILABILITY, POOL) in reasons(loop)


def test_a_changed_service_reaches_the_planner_in_the_next_tick() -> None:
    """The loop reads the present cluster in every tick, whatever the source of
    the declaration is.
    """
    loop, solver, declared = make_loop(CLUSTER, Records())
    second = settle(loop)
    declared.cluster = replace(CLUSTER, services=(replace(SERVICE, slo=Slo(1000.0, 50.0)),))
    loop.tick(NOW_MS + (second + 1) * 1000)
    assert solver.of(Urgency.FULL)[-1].scope == ("tiny",)
    assert (ReasonCode.SERVICE_CHANGED, "tiny") in reasons(loop)


def test_an_alert_reaches_the_planner_in_the_next_tick_and_once() -> None:
    """Only one tick triggers a plan. A resolved alert never does."""
    loop, solver, _ = make_loop(CLUSTER, Records())
    second = settle(loop)
    asked = len(solver.of(Urgency.FULL))
    for state in ("resolved", "firing"):
        loop.latest.take(Alert(f"a-{state}", "HighLatency", state, NOW_MS, ("tiny",)), 0)
    loop.tick(NOW_MS + (second + 1) * 1000)
    assert reasons(loop) == [(ReasonCode.ALERT, "HighLatency")]
    for later in range(second + 2, second + 5):
        loop.tick(NOW_MS + later * 1000)
    assert len(solver.of(Urgency.FULL)) == asked + 1


@pytest.mark.parametrize("token", [2, 3, 1_000_000])
def test_a_forged_record_is_overwritten_whatever_token_it_carries(token: int) -> None:
    """The forged record has the controller's own token. Compaction keeps the last record of a key,
    which must be the controller's.
    """
    records = Records()
    loop, _, _ = make_loop(CLUSTER, records)
    settle(loop)
    ours = records.of(Assignment)[-1]
    records.put_.clear()
    forged = replace(ours, instances=(), generation=10**6, leader_token=token, signature="")
    loop.overwrite_forged(forged)
    said = records.of(Assignment)
    assert [(one.instances, one.generation) for one in said] == [(ours.instances, ours.generation)]


async def passes(times: int = 20) -> None:
    """Run all ready tasks without advancing the clock of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_an_answer_is_applied_before_the_next_second() -> None:
    """The clock does not advance. The tick happens because the planner has answered."""
    records = Records()
    loop, solver, _ = make_loop(CLUSTER, records)
    loop.tick(NOW_MS)
    assert records.of(Assignment) == []
    running = asyncio.create_task(loop.run(lambda: None))
    await passes()
    assert records.of(Assignment) == [], "no second went by and no answer came"
    solver.news.set()
    await passes()
    assert len(records.of(Assignment)) == 1
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_new_telemetry_is_read_before_the_next_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gateways end their spans on whole seconds too. A tick on the second would read each record a
    second late. One tick reads all records of a second.
    """
    monkeypatch.setattr(tick_schedule, "_GATHER_S", 0.0)
    loop, _, _ = make_loop(CLUSTER, Records())
    running = asyncio.create_task(loop.run(lambda: None))
    await passes()
    assert loop.ticks.count == 0, "no second went by and nothing came"
    for _ in range(3):
        loop.pace.fresh.set()
    await passes()
    assert loop.ticks.count == 1
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_controller_that_does_not_lead_applies_no_answer() -> None:
    """A standby does not apply it later either. Its loop pauses between ticks."""
    records = Records()
    loop, solver, _ = make_loop(CLUSTER, records, leads=lambda: False)
    loop.tick(NOW_MS)
    records.put_.clear()
    running = asyncio.create_task(loop.run(lambda: None))
    solver.news.set()
    await passes()
    assert not solver.news.is_set()
    assert records.put_ == []
    assert solver.take() == ()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def test_controls_of_undeclared_models_cause_no_decision() -> None:
    """Thousands of them cause none. A control of a declared model counts at once."""
    records = Records()
    loop, _, _ = make_loop(CLUSTER, records)
    for number in range(3000):
        loop.latest.take(Control(f"m{number}", "pause", True, "ann", "", NOW_MS), number)
    loop.latest.take(Control("tiny", "pause", True, "ann", "", NOW_MS), 1)
    loop.tick(NOW_MS + 1000)
    assert [one for one in loop.state.declared.controls if "pause" in one] == ["tiny/pause"]
    assert len(records.of(Decision)) < 10
