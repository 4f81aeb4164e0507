"""A floor counts instances that can serve, not the cheapest instances that can only load the
model."""

from __future__ import annotations

import pytest

from autoscaler.domain.reason import codes_of
from autoscaler.domain.workload import Demand
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.strategies.registry import STRATEGIES
from tests.unit.planning.answer_requests import H100, L4, one_model
from tests.unit.planning.planning_clusters import CONVERSATION, combo
from topics.reason_codes import ReasonCode

LEAST = 1.0 / (4.0 + 211.0 * 0.150)
"""Requests/s of one after another, each as slow as the SLO of these clusters allows."""


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
def test_a_floor_is_not_kept_with_what_cannot_serve_one_request_after_another(
    tiny: float, additions_only: bool
) -> None:
    plan = planned(tiny, additions_only=additions_only)
    assert plan.counts() == {"m:large": 1}
    assert not plan.violations


def test_what_serves_one_request_after_another_is_enough_for_a_floor() -> None:
    assert planned(1.1 * LEAST).counts() == {"m:tiny": 1}


def test_without_a_floor_a_trickle_goes_to_the_cheapest() -> None:
    assert planned(0.9 * LEAST, floor=0, demand=0.1 * LEAST).counts() == {"m:tiny": 1}


def test_where_nothing_serves_more_the_cheapest_keeps_the_floor_and_that_is_said() -> None:
    plan = planned(0.5 * LEAST, large=0.9 * LEAST)
    assert plan.counts() == {"m:tiny": 1}
    assert ReasonCode.ONE_AFTER_ANOTHER in codes_of(plan.notes)


def test_where_no_node_of_the_others_is_left_the_floor_is_kept_as_well_as_it_can_be() -> None:
    plan = planned(0.5 * LEAST, large_nodes=0)
    assert plan.counts() == {"m:tiny": 1}
    (broken,) = plan.violations
    assert (broken.code, broken.subject) == (ReasonCode.PROMISED_USEFUL_FLOOR, "m")


def test_what_runs_is_exchanged_only_when_it_has_fallen_well_below() -> None:
    assert planned(0.6 * LEAST, fleet=1).counts() == {"m:tiny": 1}
    assert planned(0.4 * LEAST, fleet=1).counts() == {"m:large": 1}
