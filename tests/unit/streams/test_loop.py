"""The tick: observation in, effects out, each to its port."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.decide import rebuild
from autoscaler.demand.windows import TelemetryWindows
from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.effects import ScaleOutTablesRequested
from autoscaler.performance import catalog
from streams.clock import Clock
from streams.controller.compose import _sinks
from streams.controller.latest import Latest
from streams.controller.loop import Loop, Ports
from streams.ports.actuator import ExecutorActuator, WithheldActuator
from streams.ports.observed import ExecutorStatuses
from streams.ports.routes import GatewayRoutes, WithheldRoutes
from streams.solver.client import Answers
from streams.solver.work import solve
from topics.records import Assignment, Decision, PlanRecord, Price, Routes, Telemetry
from topics.timebase import TimeBase

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


class Records:
    """Remembers what was put."""

    def __init__(self) -> None:
        self.put_: list[Any] = []

    def put(self, record: Any) -> None:
        self.put_.append(record)

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.put_ if isinstance(record, kind)]


class InlineSolver:
    """Answers at once, into the next observation."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Cluster]] = []
        self._tables: tuple[Any, ...] = ()

    def ask(self, question: Any, cluster: Cluster) -> None:
        self.asked.append((question, cluster))
        if isinstance(question, ScaleOutTablesRequested):
            found = solve(question, cluster)
            assert isinstance(found, tuple)
            self._tables += found

    def take(self) -> Answers:
        found, self._tables = self._tables, ()
        return Answers(found)


def make_loop(cluster: Cluster, records: Records) -> tuple[Loop, InlineSolver]:
    latest, solver = Latest(), InlineSolver()
    actuator, routes = _sinks(cluster, records)  # type: ignore[arg-type]
    ports = Ports(
        ExecutorStatuses(latest.statuses),
        actuator,
        routes,
        records,
        solver,  # type: ignore[arg-type]
    )
    return (
        Loop(
            rebuild(cluster, {}, {}, {}, (), NOW_MS, leader_token=3),
            cluster,
            TelemetryWindows(),
            latest,
            ports,
            Clock(TimeBase(1.0, NOW_MS, 0)),
            leads=lambda: True,
        ),
        solver,
    )


def feed(loop: Loop, second: int, arrivals: int) -> None:
    end_ms = NOW_MS + second * 1000
    record = Telemetry(
        "tiny", "g", "b", second, end_ms, 1000, 0, arrivals, arrivals, *[0] * 2, arrivals, *[0] * 5
    )
    loop.windows.add(record, end_ms)


def test_a_floor_becomes_an_assignment_through_the_ports() -> None:
    """Tables are asked for first; the decision, the plan and the assignment follow the answer."""
    records = Records()
    loop, solver = make_loop(CLUSTER, records)
    for second in range(1, 4):
        loop.tick(NOW_MS + second * 1000)
    assert solver.asked, "no tables were asked for"
    (assignment,) = records.of(Assignment)
    assert assignment.leader_token == 3
    assert [i.model for i in assignment.instances] == ["tiny"]
    assert [d.kind for d in records.of(Decision)] == ["scale_out"]
    assert records.of(PlanRecord)
    assert records.of(Routes)[0].model == "tiny"
    order = [type(record) for record in records.put_]
    assert order.index(Decision) < order.index(Assignment)


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.APPROVE])
def test_without_leave_to_act_nothing_leaves_but_words(mode: Mode) -> None:
    """Decisions are published as not applied; no assignment and no routes, under any load."""
    cluster = replace(CLUSTER, services=(replace(SERVICE, mode=mode),))
    records = Records()
    loop, _ = make_loop(cluster, records)
    for second in range(1, 400):
        feed(loop, second, 9)
        loop.tick(NOW_MS + second * 1000)
    loop.republish_now()
    decisions = records.of(Decision)
    assert decisions
    assert not any(decision.applied for decision in decisions)
    assert records.of(Assignment) == []
    assert records.of(Routes) == []


def test_the_second_lock_holds_assignments_back_even_if_they_were_decided() -> None:
    """Where no model may act, the ports themselves withhold."""
    records = Records()
    cluster = replace(CLUSTER, services=(replace(SERVICE, mode=Mode.RECOMMEND),))
    actuator, routes = _sinks(cluster, records)  # type: ignore[arg-type]
    actuator.apply(Assignment("n", "p", 1, 1, 0))
    routes.apply(Routes("tiny", 1, 1, 0, 1.0, 1.0))
    assert records.put_ == []
    assert isinstance(actuator, WithheldActuator)
    assert isinstance(routes, WithheldRoutes)
    assert (actuator.withheld, routes.withheld) == (1, 1)
    assert isinstance(_sinks(CLUSTER, records)[0], ExecutorActuator)  # type: ignore[arg-type]
    assert isinstance(_sinks(CLUSTER, records)[1], GatewayRoutes)  # type: ignore[arg-type]


def test_saying_it_again_says_the_same() -> None:
    """Copies of the latest desired state: same generation, same token."""
    records = Records()
    loop, _ = make_loop(CLUSTER, records)
    for second in range(1, 4):
        loop.tick(NOW_MS + second * 1000)
    before = {*records.of(Assignment), *records.of(Routes)}
    latest = {a.node: a for a in records.of(Assignment)}
    records.put_.clear()
    loop.republish_now()
    assert {*records.of(Assignment), *records.of(Routes)} <= before
    assert {a.node: a for a in records.of(Assignment)} == latest


def test_prices_of_the_moment_reach_the_solver() -> None:
    """A feed's price counts from the next tick on."""
    records = Records()
    loop, solver = make_loop(CLUSTER, records)
    pool = CLUSTER.pools[0].id
    loop.latest.take(Price(pool, 3.0, NOW_MS), 0)
    loop.tick(NOW_MS + 1000)
    assert solver.asked[0][1].pool(pool).price_usd_per_h == 3.0
