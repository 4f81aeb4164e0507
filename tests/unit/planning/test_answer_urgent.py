"""Urgent requests add missing capacity and keep the running fleet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from autoscaler.domain.cluster import Cluster, Policy
from autoscaler.domain.reason import Reason, codes_of
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.planning.binding_constraints import POOLS
from autoscaler.planning.plan import Plan
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import Outcome, PlanRequest
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.answer_requests import (
    FULL,
    H100,
    L4,
    L4_SPOT,
    PROFILE,
    URGENT,
    ask,
    capacity,
    mini,
    one_model,
    usd,
)
from tests.unit.planning.planning_clusters import CONVERSATION, small_cluster
from topics.reason_codes import ReasonCode


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_an_urgent_plan_keeps_the_fleet_and_adds_missing_capacity(strategy: str) -> None:
    """The expensive L40S stays although a full plan would never rent it."""
    cluster = small_cluster()
    fleet = {"mini:a1@us-east/l40s/on-demand": 1, "code:a4@us-east/l40s/spot": 1}
    got = ask(cluster, URGENT, {"mini": 12.0}, fleet, strategy)
    counts = dict(got.counts)
    assert got.outcome is Outcome.PLANNED
    assert counts["mini:a1@us-east/l40s/on-demand"] >= 1
    assert not any(combo_id.startswith("code:") for combo_id in counts)
    assert capacity(cluster, got.counts, "mini") * 0.8 >= 12.0 - 1e-6
    assert got.change.switches == ()


def test_an_urgent_plan_adds_nothing_to_a_sufficient_fleet() -> None:
    cluster = one_model((L4,))
    fleet = {"m:a1@r/l4/on-demand": 9}
    got = ask(cluster, URGENT, {"m": 0.1}, fleet)
    assert got.counts == tuple(fleet.items())
    assert usd(got) == got.now_usd_per_h == pytest.approx(9 * 0.85)


@dataclass
class Noting:
    """The strategy of Shoal. It also records its candidates."""

    offered: dict[str, int] = field(default_factory=dict)
    name: str = "noting"

    def solve(self, problem: PlanningProblem) -> Plan:
        self.offered = {model: len(combos) for model, combos in problem.candidates.items()}
        return ShoalStrategy().solve(problem)


@pytest.mark.parametrize(("lost", "chooses"), [(0, False), (11, True)])
def test_an_urgent_plan_builds_candidates_only_for_models_with_a_shortfall(
    lost: int, chooses: bool
) -> None:
    """Model m needs nine L4. After the loss of 11 of 12 nodes it has one."""
    request = PlanRequest(
        number=1,
        urgency=URGENT,
        at_ms=0,
        demands=(Demand("m", 3.0, CONVERSATION), Demand("n", 1.0, CONVERSATION)),
        fleet=(("m:a1@r/l4/on-demand", 9),),
        rented_nodes=(("r/l4/on-demand", min(9, 12 - lost)),),
        unusable_nodes=(("r/l4/on-demand", lost),) if lost else (),
        scope=("m", "n"),
    )
    noting = Noting()
    answer_request(request, Cluster((L4, H100), (mini("m"), mini("n"))), PROFILE, noting)
    assert bool(noting.offered["m"]) is chooses
    assert noting.offered["n"]


def test_a_fleet_is_sufficient_only_within_its_spot_share() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.5)
    got = ask(cluster, URGENT, {"m": 3.0}, {"m:a1@r/l4/spot": 9})
    assert got.outcome is Outcome.PLANNED
    assert dict(got.counts)["m:a1@r/l4/on-demand"] >= 1


def test_a_fleet_is_sufficient_only_if_it_can_serve_consecutive_requests() -> None:
    """An L4 meets this SLO only if it is almost idle. It may start a request every 39 s, and a
    request takes up to 4 s.
    """
    fleet, lengths = {"m:a1@r/l4/on-demand": 1}, Lengths(4000.0, 20.0)
    tight = replace(mini("m", min_instances=1), slo=Slo(2000.0, 100.0))
    got = ask(Cluster((L4, H100), (tight,)), URGENT, {"m": 0.01}, fleet, lengths=lengths)
    assert got.outcome is Outcome.PLANNED
    assert any("h100" in combo_id for combo_id, _ in got.counts)


def test_an_urgent_plan_fills_rented_nodes_before_it_rents_another() -> None:
    cluster = Cluster((H100,), (mini("m"), mini("n")))
    fleet = {"n:a1@r/h100/on-demand": 1}
    got = ask(cluster, URGENT, {"m": 1.0}, fleet)
    assert dict(got.counts) == {"m:a1@r/h100/on-demand": 1}
    assert usd(got) == 12.0


# All constraints together


def test_an_urgent_plan_does_not_exceed_the_budget() -> None:
    cluster = one_model((L4,), Policy(budget_usd_per_h=2.0))
    fleet = {"m:a1@r/l4/on-demand": 2}
    got = ask(cluster, URGENT, {"m": 9.0}, fleet)
    assert got.counts == tuple(fleet.items())
    assert got.outcome is Outcome.BEST_EFFORT
    assert Reason(ReasonCode.BUDGET, "*", quantities=(2.0,)) in got.binding
    assert got.shortfall_req_per_s


def test_the_budget_includes_nodes_of_other_models() -> None:
    """Model n uses two nodes. The budget of 4 USD/h leaves room for two nodes of m, not four."""
    cluster = Cluster((L4,), (mini("m"), mini("n")), Policy(budget_usd_per_h=4 * 0.85 + 0.1))
    for urgency in (URGENT, FULL):
        got = ask(
            cluster,
            urgency,
            {"m": 9.0},
            {"n:a1@r/l4/on-demand": 2},
        )
        got = ask(
            cluster,
            urgency,
            {"m": 9.0},
            {"n:a1@r/l4/on-demand": 2},
            rented_nodes=(("r/l4/on-demand", 2),),
        )
        assert dict(got.counts) == {"m:a1@r/l4/on-demand": 2}
        assert usd(got) <= cluster.policy.budget_usd_per_h
        assert ReasonCode.BUDGET in codes_of(got.binding)


def test_available_nodes_limit_an_urgent_plan() -> None:
    cluster = one_model((L4,))
    got = ask(cluster, URGENT, {"m": 9.0}, obtainable=(("r/l4/on-demand", 1),))
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 1}
    assert got.outcome is Outcome.BEST_EFFORT
    assert any(limit.code in POOLS for limit in got.binding)
