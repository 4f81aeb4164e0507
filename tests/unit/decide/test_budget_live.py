"""Budget mode through `decide` and the simulator.

The controller applies its plans, and plans again after a shift of the mix or the loss of a node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Objective, Policy, Pool, Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths, Slo, WorkloadType
from autoscaler.explain.plan_explanation import explain
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.planner import explained_plan
from autoscaler.planning.planner_messages import Urgency
from autoscaler.planning.strategies.registry import strategy_for
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodeLost
from topics.reason_codes import ReasonCode

LONG, CHAT = (2400, 20), (400, 300)
LEAD_S, SHIFT_S, END_S = 300.0, 400.0, 800.0
RATE = 3.0


def cluster() -> Cluster:
    pools = (
        Pool("r", "l40s", catalog.gpu("L40S"), 1, 8, Market.ON_DEMAND, 1.8),
        Pool("r", "l4", catalog.gpu("L4"), 1, 8, Market.ON_DEMAND, 0.85),
    )
    service = Service(
        model="m",
        architecture=catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
        slo=Slo(3000.0, 80.0),
        max_len_tokens=8192,
        mode=Mode.ACT,
        min_instances=1,
        req_per_s=RATE,
        types=(
            WorkloadType("long", 0.2, Lengths(*LONG)),
            WorkloadType("chat", 0.8, Lengths(*CHAT)),
        ),
        lengths=Lengths(800, 244),
    )
    policy = Policy(budget_usd_per_h=6.0, objective=Objective.THROUGHPUT)
    return Cluster(pools, (service,), policy)


def arrivals(after: float, until_s: float = END_S) -> list[Arrival]:
    """Poisson arrivals. The share of long requests is 20% until SHIFT_S and
    `after` from then on.
    """
    random = np.random.default_rng(7)
    times = np.sort(random.uniform(0.0, until_s, int(RATE * until_s)))
    return [
        Arrival(float(t), "m", *(LONG if random.random() < share else CHAT))
        for t in times
        for share in [after if t >= SHIFT_S else 0.2]
    ]


@pytest.fixture(scope="module")
def shifted() -> Simulator:
    world = Simulator(Scenario(cluster(), arrivals(0.7), END_S, LEAD_S), ControllerUnderTest())
    world.run()
    return world


def test_served_shares_match_the_plan_within_two_points(shifted: Simulator) -> None:
    """Checked until the shift, for each request type on each combo."""
    routes = shifted.routes["m"]
    assert {kind.name for kind in routes.types} == {"long", "chat"}
    last = Counter[tuple[str, str]]()
    for call in shifted.timeline.calls:
        if call.arrival_ms / 1000.0 > LEAD_S + END_S - 150.0:
            last[call.kind, call.group] += 1
    for kind in routes.types:
        total = sum(n for (name, _), n in last.items() if name == kind.name)
        for group, share in zip(routes.groups, kind.shares, strict=True):
            assert abs(last[kind.name, group.group] / total - share) <= 0.02


def test_a_shift_of_the_mix_gets_a_plan_for_the_measured_mix(shifted: Simulator) -> None:
    full = [(at, ask) for at, ask in shifted.timeline.plan_requests if ask.urgency is Urgency.FULL]
    after = [dict(ask.demands[0].mix) for at, ask in full if at > LEAD_S + SHIFT_S + 150.0]
    first = next(at for at, ask in full if dict(ask.demands[0].mix)["long"] > 0.4)
    assert LEAD_S + SHIFT_S < first < LEAD_S + SHIFT_S + 120.0
    assert after[-1]["long"] == pytest.approx(0.7, abs=0.08)


def test_every_planned_fleet_keeps_the_budget(shifted: Simulator) -> None:
    """During an exchange the budget covers the old and the new instances together."""
    for plan in shifted.timeline.plans:
        assert sum(target.usd_per_h for target in plan.targets) <= 6.0


def test_the_last_serving_group_stays_until_another_one_serves(shifted: Simulator) -> None:
    """After the shift, a combo of two prefill instances and one decode instance would serve more.
    It takes the whole budget, so it could start only after every running group stops.
    """
    assert [sum(target.count for target in plan.targets) for plan in shifted.timeline.plans] == [3]
    notes = [note for _, answer in shifted.timeline.plan_answers for note in answer.notes]
    assert Reason(ReasonCode.BUDGET_STUCK, "m", ("m",)) in notes


def test_a_lost_node_is_planned_around_and_explained() -> None:
    """Its requests go to the other nodes at once, and the next plan replaces the node."""
    world = Simulator(
        Scenario(cluster(), arrivals(0.2, 300.0), 300.0, LEAD_S), ControllerUnderTest()
    )
    world.advance(LEAD_S + 100.0)
    used = sorted(n for n, record in world.assignments.items() if record.instances)
    script = (NodeLost(LEAD_S + 100.0, used[0]),)
    again = Simulator(
        Scenario(cluster(), arrivals(0.2, 300.0), 300.0, LEAD_S, script), ControllerUnderTest()
    )
    again.run()
    asked = [ask for at, ask in again.timeline.plan_requests if ask.urgency is Urgency.FULL]
    assert any(at > LEAD_S + 100.0 for at, ask in again.timeline.plan_requests)
    others = again.assignments.keys() - {used[0]}
    assert sum(bool(again.assignments[node].instances) for node in others) >= len(used)
    for kind in again.routes["m"].types:
        assert sum(kind.shares) == pytest.approx(1.0, abs=0.01)
    chosen = strategy_for(cluster().policy)
    made = explained_plan(asked[-1], cluster(), default_profile(), chosen, "m")
    assert made is not None
    reasons = explain(made[0], made[1], default_profile(), chosen).of("m")
    assert reasons is not None and "budget 6.00 USD/h" in reasons.bound_by


def test_without_the_throughput_objective_types_are_not_distinguished() -> None:
    plain = replace(cluster(), policy=Policy(budget_usd_per_h=6.0))
    world = Simulator(Scenario(plain, arrivals(0.2, 60.0), 60.0, 120.0), ControllerUnderTest())
    world.run()
    assert world.routes["m"].types == ()
    assert not any(ask.demands[0].mix for _, ask in world.timeline.plan_requests)
