"""Plans that the running fleet can reach within the free nodes and the budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Policy
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem, RolloutMode
from autoscaler.planning.rollout_feasibility import RollablePlan, best_rollable_plan
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.decide.decide_catalogue import AGGREGATED, BUCKET, combo, pool, service

BIG = pool("big", nodes=4, per_node=4, usd=6.0)
LONE = pool("lone", nodes=4, per_node=1, usd=4.0)
FULL = pool("full", nodes=1, per_node=4, usd=6.0)
SMALL = combo("chat", [(AGGREGATED, 1, FULL, 1, 10.0)])
LARGE = combo("chat", [(AGGREGATED, 4, FULL, 1, 44.0)])
WIDE = combo("chat", [(AGGREGATED, 2, FULL, 1, 34.0)])
ON_LONE = combo("chat", [(AGGREGATED, 1, LONE, 1, 10.0)])
ON_BIG = combo("chat", [(AGGREGATED, 1, BIG, 1, 10.0)])


def problem(
    req_per_s: float,
    fleet: dict[Combo, int],
    *offered: Combo,
    budget: float = 0.0,
    leaving: dict[str, int] | None = None,
) -> PlanningProblem:
    """A problem of `chat` at `req_per_s` of raw capacity.

    fleet: running count by combo. offered: the candidate combos.
    """
    pools = (BIG, LONE, FULL)
    chat = service("chat", utilization=1.0, min_instances=0, max_disruption=0.25)
    cluster = Cluster(pools, (chat,), Policy(budget_usd_per_h=budget))
    nodes: dict[str, int] = {}
    for one, count in fleet.items():
        for pool_id, gpus in one.gpus_by_pool().items():
            per_node = cluster.pool(pool_id).per_node
            nodes[pool_id] = -(-gpus * count // per_node)
    return PlanningProblem(
        cluster=cluster,
        demands={"chat": Demand("chat", req_per_s, BUCKET)},
        candidates={"chat": (*offered, *fleet)},
        fleet={one.id: count for one, count in fleet.items()},
        running={one.id: one for one in fleet},
        rented_nodes=nodes,
        leaving_gpus=leaving or {},
    )


def reached(asked: PlanningProblem) -> tuple[Plan, RollablePlan]:
    """(the best plan for an empty cluster, the best plan that the running fleet can reach)."""
    best = ShoalStrategy().solve(asked)
    return best, best_rollable_plan(asked, ShoalStrategy())


def test_an_exchange_that_fits_next_to_the_fleet_is_the_best_plan() -> None:
    best, found = reached(problem(40.0, {ON_LONE: 4}, ON_BIG, budget=22.0))
    assert best.counts() == {ON_BIG.id: 4}  # 6 instead of 16 USD/h, but 22 while both run
    assert found == RollablePlan(best)


def test_an_exchange_that_exceeds_the_budget_is_made_in_steps_or_not_at_all() -> None:
    """The exchange saves 10 of 16 USD/h, but a budget of 21.99 does not pay for both fleets at
    once. No capacity is stopped for it.
    """
    best, found = reached(problem(40.0, {ON_LONE: 4}, ON_BIG, budget=21.99))
    assert best.counts() == {ON_BIG.id: 4}
    assert found.plan.counts() == {ON_LONE.id: 4} and not found.needs_preemption


def test_a_plan_that_fits_next_to_the_fleet_gives_no_bound_for_others() -> None:
    """The large instance serves all demand, but has room only after other
    instances have stopped.
    """
    asked = problem(41.0, {SMALL: 4}, LARGE)
    for room in (RolloutMode.SURGE, RolloutMode.STEP):
        made = ShoalStrategy().solve(replace(asked, rollout_mode=room))
        assert made.shortfall_req_per_s
        assert made.served_fraction_bound == 1.0
    assert not ShoalStrategy().solve(asked).shortfall_req_per_s


def test_no_instance_leaves_a_full_pool_for_a_small_gain() -> None:
    """Four small instances serve 40 of 41 req/s. The large instance would serve all, but only after
    an outage.
    """
    best, found = reached(problem(41.0, {SMALL: 4}, LARGE))
    assert best.counts() == {LARGE.id: 1}
    assert found.plan.counts() == {SMALL.id: 4} and not found.needs_preemption


def test_small_instances_in_a_full_pool_are_not_replaced_by_larger_ones() -> None:
    """Two instances of 34 req/s could replace four of 10 req/s, but which GPUs become free first is
    unknown.
    """
    asked = problem(60.0, {SMALL: 4}, WIDE)
    bold = service("chat", utilization=1.0, min_instances=0, max_disruption=0.5)
    for cluster in (asked.cluster, replace(asked.cluster, services=(bold,))):
        _, found = reached(replace(asked, cluster=cluster))
        assert found.plan.counts() == {SMALL.id: 4} and not found.needs_preemption


def test_a_much_better_fleet_within_the_budget_replaces_the_present_one_in_steps() -> None:
    """Four instances of 10 req/s cost 16 USD/h, the whole budget. 6 USD/h would pay for four
    instances of 20 req/s. Half of the instances may stop at a time, which pays for the new ones.
    """
    better = combo("chat", [(AGGREGATED, 1, BIG, 1, 20.0)])
    asked = problem(80.0, {ON_LONE: 4}, better, budget=16.0)
    bold = service("chat", utilization=1.0, min_instances=0, max_disruption=0.5)
    _, found = reached(replace(asked, cluster=replace(asked.cluster, services=(bold,))))
    assert found.needs_preemption and found.plan.counts()[better.id] >= 3


def test_stopping_instances_still_use_gpus_and_budget() -> None:
    """One more instance fits on the node. With three stopping instances there, the addition goes to
    another node or is not made.
    """
    _, found = reached(problem(20.0, {SMALL: 1}, ON_LONE, budget=11.0))
    assert found.plan.counts() == {SMALL.id: 2}
    taken = {FULL.id: 3}
    _, found = reached(problem(20.0, {SMALL: 1}, ON_LONE, budget=11.0, leaving=taken))
    assert found.plan.counts() == {SMALL.id: 1, ON_LONE.id: 1}


def test_a_shared_node_is_not_planned_if_the_only_instance_would_have_to_stop_first() -> None:
    """Starts take no time. One node for 6 USD/h would serve both models, but the budget first needs
    the node of chat (4 USD/h) to stop.
    """
    asked = problem(10.0, {ON_LONE: 1}, replace(ON_BIG, start_s=0.0), budget=6.0)
    code = combo("code", [(AGGREGATED, 1, BIG, 1, 10.0)], start_s=0.0)
    first = service("chat", utilization=1.0, min_instances=0, max_disruption=0.0, priority=1)
    second = replace(first, model="code", priority=0)
    _, found = reached(
        replace(
            asked,
            cluster=replace(asked.cluster, services=(first, second)),
            demands={**asked.demands, "code": Demand("code", 10.0, BUCKET)},
            candidates={**asked.candidates, "code": (code,)},
        )
    )
    assert found.plan.counts() == {ON_LONE.id: 1} and not found.needs_preemption


@dataclass
class RecordingStrategy:
    """A strategy that records its problems."""

    problems: list[PlanningProblem] = field(default_factory=list)
    name: str = "asked"

    def solve(self, problem: PlanningProblem) -> Plan:
        self.problems.append(problem)
        return ShoalStrategy().solve(problem)


def test_one_search_is_enough_if_all_fits_or_nothing_is_missing() -> None:
    """Three cases: one more instance is needed and fits; only the cost could fall; no instance
    fits.
    """
    for req_per_s, fleet, rooms in (
        (20.0, {SMALL: 1}, [RolloutMode.SURGE]),
        (40.0, {ON_LONE: 4}, [RolloutMode.RECREATE]),
        (44.0, {SMALL: 4}, [RolloutMode.SURGE, RolloutMode.STEP, RolloutMode.RECREATE]),
    ):
        asked = RecordingStrategy()
        best_rollable_plan(problem(req_per_s, fleet, LARGE), asked)
        assert [each.rollout_mode for each in asked.problems] == rooms


def test_a_search_leaves_time_only_if_another_may_follow() -> None:
    asked = RecordingStrategy()
    beside = replace(problem(44.0, {SMALL: 4}, LARGE), rollout_mode=RolloutMode.SURGE)
    best_rollable_plan(beside, asked)
    best_rollable_plan(replace(beside, rollout_mode=RolloutMode.RECREATE), asked)
    spare = [each.options.spare > 0.0 for each in asked.problems]
    assert spare == [False, True, True, False]
