"""Component models through `decide` and the simulator.

Cells and paths follow the request mix, the rate and the available nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Pool
from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.domain.workload import Slo
from autoscaler.performance import catalog
from autoscaler.serving.component_paths import planned_shares
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Call, Ending
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodeLost, ScriptEvent
from tests.unit.decide.decide_catalogue import service
from topics.reason_codes import ReasonCode

IMAGE = frozenset({"image"})
LEAD_S, CHANGE_S, END_S = 150.0, 300.0, 1000.0
RATE, PHOTOS = 3.0, 0.3
GRAPH = ComponentGraph(
    "omni",
    {"image": frozenset(), "llm": IMAGE},
    (
        RequestType("text", 1.0 - PHOTOS, frozenset({"llm"})),
        RequestType("photo", PHOTOS, frozenset({"image", "llm"}), IMAGE),
    ),
    (
        Deployment("image", IMAGE, 1, {"L40S": 3.0}, 20.0),
        Deployment("llm", frozenset({"llm"}), 1, {"L40S": 2.0}, 20.0),
        Deployment("both", frozenset({"image", "llm"}), 1, {"L40S": 0.8}, 20.0),
    ),
    RATE,
)


def cluster() -> Cluster:
    pool = Pool("r", "l40s", catalog.gpu("L40S"), 1, 30, Market.ON_DEMAND, 1.8)
    omni = replace(
        service("omni"), mode=Mode.ACT, graph=GRAPH,
        slo=Slo(15_000.0, 1_000.0), req_per_s=RATE, scale_in_after_s=120.0,
        max_disruption=0.5,
    )  # fmt: skip
    return Cluster((pool,), (omni,))


def arrivals(steps: Sequence[tuple[float, float, float]]) -> list[Arrival]:
    """Poisson arrivals; steps: (end in s, requests/s, share of requests with photos)."""
    random, since, found = np.random.default_rng(3), 0.0, []
    for until, rate, photos in steps:
        times = np.sort(random.uniform(since, until, int(rate * (until - since))))
        for at in times:
            media = IMAGE if random.random() < photos else frozenset[str]()
            found.append(Arrival(float(at), "omni", 100, 50, media))
        since = until
    return found


def started(
    steps: Sequence[tuple[float, float, float]], script: tuple[ScriptEvent, ...] = ()
) -> Simulator:
    return Simulator(
        Scenario(cluster(), arrivals(steps), steps[-1][0], LEAD_S, script), ControllerUnderTest()
    )


@cache
def shifted() -> Simulator:
    """A run during which the share of requests with photos rises from 30% to 80%."""
    world = started([(CHANGE_S, RATE, PHOTOS), (END_S, RATE, 0.8)])
    world.run()
    return world


def running(world: Simulator) -> Counter[str]:
    """The assigned instances, by deployment."""
    return Counter(
        one.engine.removeprefix("omni.")
        for record in world.assignments.values()
        for one in record.instances
        if not one.drain
    )


def since(world: Simulator, at_s: float) -> list[Call]:
    return [call for call in world.timeline.calls if call.arrival_ms / 1000.0 >= LEAD_S + at_s]


def test_a_shift_of_request_kinds_changes_cells_and_paths() -> None:
    before = started([(CHANGE_S, RATE, PHOTOS)])
    before.run()
    world = shifted()
    asked = [dict(ask.demands[0].mix)["photo"] for _, ask in world.timeline.plan_requests]
    assert asked[0] == pytest.approx(PHOTOS)
    assert asked[-1] == pytest.approx(0.8, abs=0.05)
    first = next(
        at for at, ask in world.timeline.plan_requests if dict(ask.demands[0].mix)["photo"] > 0.5
    )
    assert first < LEAD_S + CHANGE_S + 90.0
    assert running(world)["image"] > running(before)["image"]
    rates = Counter[str]()
    for group in world.routes["omni"].groups:
        for path in group.paths:
            rates[path.type] += path.req_per_s
    assert rates["photo"] / rates.total() == pytest.approx(0.8, abs=0.05)


def test_requests_are_served_during_an_exchange_of_cells_and_as_quickly_after_it() -> None:
    world = shifted()
    assert {call.ending for call in world.timeline.calls} == {Ending.SERVED}
    late = [c.end_ms - c.arrival_ms for c in since(world, END_S - 300.0) if c.end_ms]
    assert np.quantile(late, 0.95) < 10_000.0


def test_the_share_of_each_path_matches_the_plan_within_two_points() -> None:
    world = shifted()
    planned = planned_shares(world.routes["omni"].groups)
    last = Counter((call.kind, call.group) for call in since(world, END_S - 200.0))
    for kind, ways in planned.items():
        total = sum(n for (name, _), n in last.items() if name == kind)
        for way, share in ways.items():
            assert abs(last[kind, way] / total - share) <= max(0.02, 1.0 / total), (kind, way)


def test_the_fleet_grows_and_shrinks_with_the_rate() -> None:
    world = started([(CHANGE_S, RATE, PHOTOS), (700.0, 9.0, PHOTOS), (1500.0, 2.0, PHOTOS)])
    fleets = []
    for at_s in (CHANGE_S, 700.0, 1499.0):
        world.advance(LEAD_S + at_s)
        fleets.append(running(world).total())
    world.finish()
    assert fleets[1] >= 2 * fleets[0]
    assert fleets[2] < fleets[0]
    assert sum(call.ending is not Ending.SERVED for call in world.timeline.calls) == 0


def test_a_lost_node_is_replaced_and_its_cell_serves_again() -> None:
    steady = [(CHANGE_S + 300.0, RATE, PHOTOS)]
    before = started(steady)
    before.advance(LEAD_S + CHANGE_S)
    used = sorted(n for n, record in before.assignments.items() if record.instances)
    world = started(steady, (NodeLost(LEAD_S + CHANGE_S, used[0]),))
    world.run()
    there = {n for n, record in world.assignments.items() if record.instances} - {used[0]}
    assert len(there) >= len(used)
    assert {call.ending for call in since(world, CHANGE_S + 150.0)} == {Ending.SERVED}
    lost = {ReasonCode.NODE_LOST, ReasonCode.CAPACITY_LOST}
    assert any(lost.intersection(decision.codes) for decision in world.timeline.decisions)
