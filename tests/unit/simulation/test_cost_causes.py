"""The parts of cost and misses, on timelines that were written by hand and on simulated runs."""

from __future__ import annotations

import pytest

from autoscaler.serving.billing import NodeSpan
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.cost_causes import Causes, CostCause, MissCause, causes
from autoscaler.simulation.decider import PlannedRates
from autoscaler.simulation.instance_spans import InstanceSpan, Use
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import score
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.run_measures import ComboCapacity
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import NodeLost, NodesLimited, PriceChanged
from autoscaler.simulation.timeline import FlowRow, Timeline
from tests.unit.simulation.simulation_builders import LENGTHS, OD, ONE, cluster, evenly, service

END_S = 1200.0
CAPACITY = ComboCapacity(cluster(), {"mini": LENGTHS})
ONE_INSTANCE = CAPACITY.of(ONE)[1]


def flows(share: float, attained: float = 1.0) -> list[FlowRow]:
    """Demand of `share` of an instance's capacity from 0 to END_S, as one row a second."""
    rate = share * ONE_INSTANCE
    return [FlowRow("mini", s + 0.5, rate, rate, rate * attained, 1.0) for s in range(int(END_S))]  # type: ignore[arg-type]


def split(timeline: Timeline, rows: list[FlowRow]) -> Causes:
    scenario = Scenario(cluster(), (), END_S, 0.0)
    return causes(timeline, scenario, {"mini": rows}, CAPACITY)


def span(group: int, use: Use, from_s: float, to_s: float) -> InstanceSpan:
    return InstanceSpan(f"{OD}/{group}", f"{ONE}:{group}", 1, use, from_s, to_s)


def test_every_use_of_a_node_has_its_part() -> None:
    """One node of 3 USD/h: 5 minutes of a start, 10 of service at half load, 2 of a drain."""
    timeline = Timeline(
        nodes=[NodeSpan(f"{OD}/1", OD, 3.0, 0.0, END_S)],
        instances=[
            span(1, Use.STARTS, 0.0, 300.0),
            span(1, Use.SERVES, 300.0, 900.0),
            span(1, Use.LEAVES, 900.0, 1020.0),
        ],
    )
    minute = 3.0 / 60.0
    usd = split(timeline, flows(0.4)).usd
    expected = dict.fromkeys(CostCause, 0.0) | {
        CostCause.STARTS: 5 * minute,
        CostCause.DEMAND: 0.4 * 10 * minute,
        CostCause.RESERVE: (0.4 / 0.8 - 0.4) * 10 * minute,
        CostCause.SPARE: 0.5 * 10 * minute,
        CostCause.OVERLAPS: 2 * minute,
        CostCause.IDLE_GPUS: 3 * minute,
    }
    assert usd == pytest.approx(expected)


def test_surplus_is_split_by_what_the_controller_planned_for() -> None:
    """Four instances at a demand of one. The need is 1.6, the target 2, at a derating of 0.8."""
    timeline = Timeline(
        nodes=[NodeSpan(f"{OD}/{k}", OD, 3.0, 0.0, END_S) for k in range(4)],
        instances=[span(k, Use.SERVES, 0.0, END_S) for k in range(4)],
        planned=[
            (0.0, {"mini": PlannedRates(1.6 * ONE_INSTANCE, 2.0 * ONE_INSTANCE, 0.8)}),
            (600.0, {"other": PlannedRates(9.0, 9.0, 1.0)}),
        ],
    )
    usd = split(timeline, flows(1.0)).usd
    one = 3.0 * END_S / 3600.0
    parts = {
        CostCause.DEMAND: 1.0,
        CostCause.RESERVE: 0.25,
        CostCause.FORECAST: 1.6 / 0.8 - 1.25,
        CostCause.HOLDS: 2.0 / 0.8 - 2.0,
        CostCause.DERATING: 2.0 / 0.8 / 0.8 - 2.5,
        CostCause.SPARE: 4.0 - 3.125,
    }
    assert {cause: usd[cause] for cause in parts} == pytest.approx(
        {cause: part * one for cause, part in parts.items()}
    )


def test_a_miss_belongs_to_the_state_of_the_fleet() -> None:
    """Half of the demand of two instances is met by one; the second is ordered late, and then the
    queue has to drain."""
    timeline = Timeline(
        nodes=[NodeSpan(f"{OD}/{k}", OD, 3.0, 0.0, END_S) for k in range(4)],
        instances=[
            span(0, Use.SERVES, 0.0, END_S),
            span(1, Use.STARTS, 120.0, 240.0),
            span(1, Use.SERVES, 240.0, END_S),
            span(2, Use.SERVES, 240.0, END_S),
        ],
    )
    missed = split(timeline, flows(2.0, attained=0.5)).missed
    each = 0.5 * 2.0 * ONE_INSTANCE
    # 240 s of a shortage of one instance leave a queue that three instances need 240 s to serve.
    assert missed == pytest.approx(
        {
            MissCause.NOT_ORDERED: 120 * each,
            MissCause.STARTING: 120 * each,
            MissCause.QUEUE: 240 * each,
            MissCause.SUFFICIENT: (END_S - 480) * each,
        }
    )


@pytest.mark.parametrize("fluid", [False, True])
@pytest.mark.parametrize("name", ["shoal", "hpa-rate"])
def test_the_parts_add_up_to_cost_and_misses(name: str, fluid: bool) -> None:
    """Prices move, a node is lost, and spot nodes are reclaimed."""
    arrivals = sorted(
        [*evenly(900, 0.5), *evenly(3000, 0.1, first_s=120.0)], key=lambda one: one.at_s
    )
    script = (
        PriceChanged(200.0, OD, 3.5),
        NodeLost(260.0, f"{OD.replace('/', '.')}.0"),
        NodesLimited(400.0, OD.replace("on-demand", "spot"), 0, 30.0),
    )
    scenario = Scenario(cluster(service(min_instances=1)), arrivals, 600.0, 120.0, script)
    context = policy_context(scenario, fluid)
    policy = POLICIES[name]
    trial = policy.build(context, policy.default)
    run = simulate_rates if fluid else simulate
    decider = ControllerUnderTest() if name == "shoal" else trial.decider
    result = score(run(trial.scenario, decider, trial.plan), scenario, context.lengths)
    parts = result.causes
    assert sum(parts.usd.values()) == pytest.approx(result.cost_usd)
    assert min(parts.usd.values()) > -1e-9
    assert parts.usd[CostCause.STARTS] > 0.0 and parts.usd[CostCause.DEMAND] > 0.0
    missed = result.requests - sum(one.attained for one in result.models.values())
    assert sum(parts.missed.values()) == pytest.approx(missed, abs=1.0)
    assert missed > 0
