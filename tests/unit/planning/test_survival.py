"""Capacity that survives the loss of a node: the exact plan and its proven bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.reason import codes_of
from autoscaler.domain.workload import Demand
from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions
from autoscaler.optimizer.solve import solve
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.milp_formulation import Formulation, formulate
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.planning.survival import LOSS_LEVEL
from tests.unit.planning.planning_clusters import CONVERSATION, pool, small_cluster
from topics.reason_codes import ReasonCode

SWITCHES = "autoscaler.planning.survival._MAX_SWITCHES"
FEW = "autoscaler.planning.survival._MIN_LEVELS"


def surviving() -> PlanningProblem:
    """A cluster in which one pool has many steps of one node's capacity and the other has few."""
    pools = (
        pool("us", "l40s", "L40S", 8, 4, Market.ON_DEMAND, 7.2),
        pool("us", "l4", "L4", 1, 20, Market.ON_DEMAND, 0.85),
    )
    model = replace(small_cluster().service("mini"), survive="one-node", spot_share=0.0)
    wanted = {"mini": Demand("mini", 15.0, CONVERSATION)}
    return make_problem(Cluster(pools, (model,)), wanted, default_profile())


def steps(arrays: Formulation) -> int:
    return sum(what == LOSS_LEVEL for what, _ in arrays.resource_names)


def test_all_steps_are_used_if_their_total_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pools may have different numbers of steps."""
    problem = surviving()
    monkeypatch.setattr(FEW, 1)
    there = steps(formulate(problem, exact=True))
    monkeypatch.setattr(SWITCHES, there)
    whole = formulate(problem)
    assert steps(whole) == there and not whole.survival_tightened
    monkeypatch.setattr(SWITCHES, there - 1)
    cut = formulate(problem)
    assert steps(cut) < there and cut.survival_tightened


def test_a_search_that_used_all_of_its_time_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound exists even without a plan. A plan states its gap to the bound."""
    monkeypatch.setattr(SWITCHES, 0)
    monkeypatch.setattr(FEW, 1)
    now_s = [0.0]

    def until_the_end(
        problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
    ) -> AllocationResult:
        assert options.time_limit_s < 1.0
        found = solve(problem, replace(options, elapsed_s=None), start)
        now_s[0] = 1.0
        return replace(found, lower_bound_usd_per_h=0.0, limits_hit=("wall_clock",))

    options = PlanOptions(time_limit_s=1.0, elapsed_s=lambda: now_s[0])
    made = ShoalStrategy(until_the_end).solve(replace(surviving(), options=options))
    assert 0.0 < made.lower_bound_usd_per_h < made.objective_usd_per_h
    assert ReasonCode.ROUGH_BOUND in codes_of(made.notes)
    assert not ShoalStrategy().solve(replace(surviving(), demands={})).notes


def test_a_constraint_is_not_called_impossible_because_time_ran_out() -> None:
    """With one node, no plan survives its loss. Only a search that ends within its time limit
    proves this."""
    problem = surviving()
    one = replace(problem.cluster.pools[0], max_nodes=1)
    cluster = replace(problem.cluster, pools=(one,))
    problem = make_problem(cluster, problem.demands, default_profile())

    def until_the_end(
        problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
    ) -> AllocationResult:
        return replace(solve(problem, options, start), limits_hit=("wall_clock",))

    proven, late = ShoalStrategy().solve(problem), ShoalStrategy(until_the_end).solve(problem)
    promise = ReasonCode.PROMISED_SURVIVAL
    assert codes_of(proven.violations) == (promise, ReasonCode.NOT_POSSIBLE)
    assert codes_of(late.violations) == (promise, ReasonCode.NOT_PLANNED)


def test_running_instances_in_a_pool_without_nodes_do_not_stop_planning() -> None:
    """The running combos are in a pool whose maximum is now zero."""
    problem = surviving()
    first = ShoalStrategy().solve(problem)
    runs = {target.combo.id: target.count for target in first.targets if target.count}
    l40s, l4 = problem.cluster.pools
    none = replace(problem.cluster, pools=(replace(l40s, max_nodes=0), l4))
    made = ShoalStrategy().solve(make_problem(none, problem.demands, default_profile(), fleet=runs))
    assert made.status is PlanStatus.BEST_EFFORT and made.counts() == {}
