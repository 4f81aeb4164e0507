"""A minimum counts instances that can serve requests, not the cheapest ones that can load the
model.
"""

from __future__ import annotations

import pytest

from autoscaler.domain.reason import codes_of
from autoscaler.domain.workload import Demand
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.answer_requests import H100, L4, one_model
from tests.unit.planning.planning_clusters import CONVERSATION, combo
from topics.reason_codes import ReasonCode

LEAST = 1.0 / (4.0 + 211.0 * 0.150)
"""Rate of consecutive requests, each as slow as the SLO of these clusters allows, in requests/s."""


def planned(
    tiny: float,
    large: float = 1.0,
    floor: int = 1,
    demand: float = 0.0,
    fleet: int = 0,
    large_nodes: int = 4,
    additions_only: bool = False,
) -> Plan:
    cluster = one_model((L4, H100), min_instances=floor)
    small = combo("m:tiny", tiny, 0.85, L4.id)
    problem = PlanningProblem(
        cluster,
        {"m": Demand("m", demand, CONVERSATION)},
        {"m": (small, combo("m:large", large, 12.0, H100.id, 4))},
        fleet={"m:tiny": fleet} if fleet else {},
        running={"m:tiny": small} if fleet else {},
        rented_nodes={L4.id: fleet},
        obtainable={H100.id: large_nodes},
        additions_only=additions_only,
    )
    return STRATEGIES["shoal"].solve(problem)


@pytest.mark.parametrize("additions_only", [False, True])
@pytest.mark.parametrize("tiny", [1e-8, 0.9 * LEAST])
def test_an_instance_too_slow_for_consecutive_requests_does_not_count_for_the_minimum(
    tiny: float, additions_only: bool
) -> None:
    plan = planned(tiny, additions_only=additions_only)
    assert plan.counts() == {"m:large": 1}
    assert not plan.violations


def test_an_instance_that_serves_consecutive_requests_counts_for_the_minimum() -> None:
    assert planned(1.1 * LEAST).counts() == {"m:tiny": 1}


def test_without_a_minimum_little_traffic_gets_the_cheapest_instance() -> None:
    assert planned(0.9 * LEAST, floor=0, demand=0.1 * LEAST).counts() == {"m:tiny": 1}


def test_the_cheapest_slow_instance_keeps_the_minimum_if_none_is_faster() -> None:
    plan = planned(0.5 * LEAST, large=0.9 * LEAST)
    assert plan.counts() == {"m:tiny": 1}
    assert ReasonCode.ONE_AFTER_ANOTHER in codes_of(plan.notes)


def test_slow_instances_keep_the_minimum_if_no_other_node_is_left() -> None:
    plan = planned(0.5 * LEAST, large_nodes=0)
    assert plan.counts() == {"m:tiny": 1}
    (broken,) = plan.violations
    assert (broken.code, broken.subject) == (ReasonCode.PROMISED_USEFUL_FLOOR, "m")


def test_a_running_instance_is_replaced_only_if_it_is_much_too_slow() -> None:
    assert planned(0.6 * LEAST, fleet=1).counts() == {"m:tiny": 1}
    assert planned(0.4 * LEAST, fleet=1).counts() == {"m:large": 1}
