"""A request names instances that may not stop yet. An answer names the
instances that it replaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest

from autoscaler.domain.cluster import Cluster, Policy
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Demand
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planner import OPTIONS, answer_request
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, RouteTraffic
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.answer_requests import (
    FULL,
    H100,
    L4,
    L4_SPOT,
    PROFILE,
    URGENT,
    ask,
    at,
    capacity,
    leaving,
    mini,
    one_model,
    running_groups,
)
from tests.unit.planning.planning_clusters import CONVERSATION

COMBO = "a1@r/l4/on-demand"
SMALL, LARGE = f"m:{COMBO}", "m:a1@r/h100/on-demand"


def test_a_full_plan_removes_no_more_than_the_request_allows() -> None:
    """Nine instances run although one would be enough."""
    cluster = one_model((L4,))
    got = ask(cluster, FULL, {"m": 0.1}, {SMALL: 9}, scale_in_locked=("m",))
    assert dict(got.counts) == {SMALL: 9}
    assert dict(ask(cluster, FULL, {"m": 0.1}, {SMALL: 9}).counts) == {SMALL: 1}


def test_a_model_without_demand_keeps_instances_that_may_not_stop() -> None:
    got = ask(one_model((L4,)), FULL, {"m": 0.0}, {SMALL: 2}, scale_in_locked=("m",))
    assert dict(got.counts) == {SMALL: 2}


@pytest.mark.parametrize("priority", [5, 0])
def test_instances_that_may_not_stop_take_no_node_that_another_model_needs(priority: int) -> None:
    """After a price rise the budget pays for eleven of fourteen nodes. Model `hi` needs two of its
    ten nodes.
    """
    pool = replace(L4, max_nodes=20, price_usd_per_h=1.0)
    models = (mini("hi", priority=priority), mini("lo"))
    cluster = Cluster((pool,), models, Policy(budget_usd_per_h=11.0))
    fleet = {f"hi:{COMBO}": 10, f"lo:{COMBO}": 4}
    each = 0.8 * at(cluster, f"hi:{COMBO}").req_per_s
    rented = ((pool.id, 14),)
    got = ask(
        cluster,
        FULL,
        {"hi": 2 * each, "lo": 4 * each},
        fleet,
        rented_nodes=rented,
        scale_in_locked=("hi",),
    )
    assert got.shortfall_req_per_s == ()
    assert dict(got.counts) == {f"hi:{COMBO}": 2, f"lo:{COMBO}": 4}


def test_instances_removed_by_a_lower_maximum_are_not_replaced() -> None:
    cluster = one_model((replace(L4, max_nodes=20), H100), max_instances=3)
    wanted = 0.8 * capacity(cluster, {SMALL: 2}.items())
    rented = (("r/l4/on-demand", 9),)
    got = ask(cluster, FULL, {"m": wanted}, {SMALL: 9}, rented_nodes=rented, scale_in_locked=("m",))
    assert dict(got.counts) == {SMALL: 2}


def test_thresholds_do_not_depend_on_instances_that_may_not_stop_yet() -> None:
    """They are equal whether or not both models must keep their capacity."""
    scores = [(i + 0.5) / 100 for i in range(100)]
    quality = [[100.0 * (1.0 - score), 90.0] for score in scores]
    route = QualityRoute.from_sample("auto", ("m", "n"), scores, quality, 70.0, 10.0, 10)
    cluster = Cluster((replace(L4, max_nodes=40),), (mini("m"), mini("n")), routes=(route,))
    fleet = {SMALL: 10, f"n:{COMBO}": 10}
    each = 0.8 * capacity(cluster, {SMALL: 1}.items())
    routes = (RouteTraffic("auto", 6 * each, route.sample),)

    def answer_keeping(*keeps: str) -> PlanAnswer:
        return ask(cluster, FULL, {"m": 0.0, "n": 0.0}, fleet, routes=routes, scale_in_locked=keeps)

    assert answer_keeping("m", "n").splits[0].cuts == answer_keeping().splits[0].cuts
    assert dict(answer_keeping("m", "n").counts) == fleet != dict(answer_keeping().counts)


def test_each_search_for_a_split_gets_an_equal_part_of_the_time() -> None:
    """A search that uses all of its time leaves the same time to the next one. The last part is for
    the plan that keeps instances that may not stop yet.
    """
    scores = [(i + 0.5) / 100 for i in range(100)]
    quality = [[100.0 * (1.0 - score), 90.0] for score in scores]
    route = QualityRoute.from_sample("auto", ("m", "n"), scores, quality, 70.0, 10.0, 10)
    cluster = Cluster((replace(L4, max_nodes=40),), (mini("m"), mini("n")), routes=(route,))
    took = [0.0]

    class Slow:
        name = "slow"

        def solve(self, problem: PlanningProblem) -> Plan:
            took.append(max(0.0, problem.options.left_s()))
            return ShoalStrategy().solve(replace(problem, options=PlanOptions()))

    wanted = tuple(Demand(model, 0.0, CONVERSATION) for model in ("m", "n"))
    asks = (RouteTraffic("auto", 6.0, route.sample),)
    request = PlanRequest(1, FULL, 0, wanted, scope=("m", "n"), routes=asks, scale_in_locked=("m",))
    options = PlanOptions(time_limit_s=30.0, elapsed_s=lambda: sum(took))
    assert answer_request(request, cluster, PROFILE, Slow(), options).outcome is Outcome.PLANNED
    assert len(took) > 5
    assert max(took[1:-1]) < 1.01 * min(took[1:-1])
    assert took[-1] > 0.0


def test_an_urgent_answer_names_the_instances_that_its_additions_replace() -> None:
    """Many small nodes cost more than one large node. The large node is rented at once. The answer
    lists the small nodes' instances as replaced.
    """
    cluster = one_model((replace(L4, max_nodes=60), H100))
    wanted = 0.8 * 24.0 * capacity(cluster, {SMALL: 1}.items())
    got = ask(cluster, URGENT, {"m": wanted}, {SMALL: 20})
    counts, replaced = dict(got.counts), leaving(got)
    assert counts[LARGE] >= 1 and counts[SMALL] == 20
    left = {LARGE: counts[LARGE], SMALL: 20 - replaced[SMALL]}
    assert left[SMALL] < 20 and 0.8 * capacity(cluster, left.items()) >= wanted
    assert got.cost_usd_per_h < got.now_usd_per_h + H100.price_usd_per_h


def test_an_urgent_plan_only_adds_if_the_maximum_leaves_no_room_for_a_replacement() -> None:
    cluster = one_model((L4, H100), max_instances=3)
    each = capacity(cluster, {SMALL: 1}.items())
    got = ask(cluster, URGENT, {"m": 0.8 * each * 3.5}, {SMALL: 3})
    assert not got.change.leaves and dict(got.counts) == {SMALL: 3}


def test_an_urgent_plan_only_adds_if_a_node_loss_must_be_survived() -> None:
    """The proof for a whole fleet that survives a node loss takes longer than a surge allows."""
    cluster = one_model((replace(L4, max_nodes=60), H100), survive="one-node")
    wanted = 0.8 * 24.0 * capacity(cluster, {SMALL: 1}.items())
    assert ask(cluster, URGENT, {"m": wanted}, {SMALL: 20}).change.leaves == ()


@dataclass
class _Stopped:
    """A strategy that reaches its limit in each search for a whole fleet."""

    name: str = "shoal"
    asked: list[PlanningProblem] = field(default_factory=list)

    def solve(self, problem: PlanningProblem) -> Plan:
        self.asked.append(problem)
        made = ShoalStrategy().solve(problem)
        return made if problem.additions_only else replace(made, status=PlanStatus.LIMIT)


def test_an_urgent_plan_does_not_wait_for_a_replacement_without_proof() -> None:
    cluster = one_model((replace(L4, max_nodes=60), H100))
    wanted = 0.8 * 24.0 * capacity(cluster, {SMALL: 1}.items())
    request = PlanRequest(
        1, URGENT, 0, (Demand("m", wanted, CONVERSATION),), ((SMALL, 20),),
        groups=running_groups({SMALL: 20}),
    )  # fmt: skip
    stopped = _Stopped()
    options = replace(OPTIONS, time_limit_s=8.0, elapsed_s=lambda: 0.0)
    got = answer_request(request, cluster, PROFILE, stopped, options)
    assert got.outcome is Outcome.PLANNED and not got.change.leaves
    whole, added = stopped.asked
    assert whole.options.time_limit_s <= 1.0 and whole.options.mip_nodes <= 50
    assert added.additions_only and added.options == options


def test_a_model_with_enough_capacity_is_not_replaced_for_another() -> None:
    """The instances of the other model would fit on the large node too."""
    pools = (replace(L4, max_nodes=60), H100)
    cluster = Cluster(pools, (mini("m"), mini("n")))
    other = "n:a1@r/l4/on-demand"
    wanted = 0.8 * 24.0 * capacity(cluster, {SMALL: 1}.items())
    got = ask(cluster, URGENT, {"m": wanted, "n": 0.001}, {SMALL: 20, other: 4})
    assert dict(got.counts)[other] == 4 and dict(got.counts)[LARGE] >= 1
    left = {**dict(got.counts), SMALL: dict(got.counts)[SMALL] - leaving(got)[SMALL]}
    nodes = math.ceil(left[LARGE] / 4) * H100.price_usd_per_h
    assert got.cost_usd_per_h == pytest.approx(
        nodes + (left[SMALL] + left[other]) * L4.price_usd_per_h
    )


def test_a_spot_only_model_may_have_all_capacity_on_spot() -> None:
    spot = {"m:a1@r/l4/spot": 2}
    asked = _Stopped()
    request = PlanRequest(1, URGENT, 0, (Demand("m", 0.01, CONVERSATION),), tuple(spot.items()))
    answer_request(request, one_model((L4_SPOT,), spot_share=0.5), PROFILE, asked)
    assert not any(asked.asked[0].candidates.values())
    answer_request(request, one_model((L4_SPOT, L4), spot_share=0.5), PROFILE, asked)
    assert any(asked.asked[-1].candidates.values())


@pytest.mark.parametrize(
    ("start_s", "k_start", "share"),
    [(60.0, 0.1, 0.1), (240.0, 0.1, 0.4), (1200.0, 0.1, 1.0), (240.0, 0.5, 0.5), (240.0, 0.0, 0.0)],
)
def test_the_cost_of_a_start_is_spread_over_the_least_time_that_it_stays(
    start_s: float, k_start: float, share: float
) -> None:
    service = replace(one_model((L4,)).services[0], scale_in_after_s=600.0)
    assert service.start_penalty(Policy(k_start=k_start), start_s) == pytest.approx(share)
