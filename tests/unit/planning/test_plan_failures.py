"""Failed solves and refused problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import (
    AllocationResult,
    SolveOptions,
    Status,
)
from autoscaler.planning.plan import PlanStatus, Strategy
from autoscaler.planning.planning_problem import (
    PlanOptions,
    make_problem,
)
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.strategies.registry import strategy
from tests.unit.planning.planning_clusters import (
    CONVERSATION,
    PROFILE,
    A,
    combo,
    demands,
    small_cluster,
)
from tests.unit.planning.test_strategies import two_combos


def fails(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None
) -> AllocationResult:
    """A solver that ends without a plan because of its time limit."""
    del options, start
    nothing = np.zeros(len(problem.demand_req_per_s))
    return AllocationResult(
        Status.FAILED,
        np.zeros(problem.columns, dtype=np.int64),
        0.0,
        0.0,
        nothing,
        nothing + 1.0,
        nothing,
        limits_hit=("wall_clock",),
        reason="no plan within the limits",
    )


def lies(problem: AllocationProblem, options: SolveOptions, start: Ints | None) -> AllocationResult:
    """A solver whose answer has a hundred nodes of everything, more than exist."""
    honest = fails(problem, options, start)
    return replace(honest, status=Status.OPTIMAL, counts=honest.counts + 100)


@pytest.mark.parametrize("solver", [fails, lies])
def test_a_failed_solve_changes_nothing_and_states_the_reason(solver: object) -> None:
    problem = two_combos(2.4)
    broken: Strategy = ShoalStrategy(solver=solver)  # type: ignore[arg-type]
    alone = broken.solve(problem)
    assert alone.status is PlanStatus.FAILED
    assert alone.counts() == {}
    assert alone.notes
    if solver is fails:
        assert alone.limits_hit == ("wall_clock",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_numbers_are_refused_by_name_before_any_solve(bad: float) -> None:
    cluster = small_cluster()
    wanted = demands(cluster, 1.0, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="price of us-east/l40s/spot"):
        make_problem(cluster, wanted, PROFILE, prices_usd_per_h={"us-east/l40s/spot": bad})
    with pytest.raises(InvalidValue, match="demand of chat"):
        Demand("chat", bad, CONVERSATION)
    with pytest.raises(InvalidValue, match="req_per_s"):
        combo("m:x", bad, 1.0, A)
    with pytest.raises(InvalidValue, match="obtainable"):
        make_problem(cluster, wanted, PROFILE, obtainable={"us-east/l40s/spot": -1})
    with pytest.raises(InvalidValue, match="gap"):
        PlanOptions(gap=bad)


def test_an_impossible_running_fleet_is_refused_by_name() -> None:
    cluster = small_cluster()
    wanted = demands(cluster, 1.0, 1.0, 1.0)
    for fleet, named in (
        ({"mini:a1@nowhere/l4/spot": 1}, "nowhere"),
        ({"mini": 1}, "mini"),
        ({"nobody:a1@us-east/l40s/spot": 1}, "nobody"),
        ({"mini:a8@us-east/l40s/spot": 1}, "gpus"),
    ):
        with pytest.raises(InvalidValue, match=named):
            make_problem(cluster, wanted, PROFILE, fleet=fleet)
    with pytest.raises(InvalidValue, match="strategy"):
        strategy("best")


def test_a_plan_is_proven_or_states_that_the_time_limit_was_reached() -> None:
    cluster = small_cluster()
    wanted = demands(cluster, 3.0, 8.0, 60.0)
    first = ShoalStrategy().solve(make_problem(cluster, wanted, PROFILE))
    late = make_problem(
        cluster,
        demands(cluster, 3.0, 8.5, 66.0),
        PROFILE,
        fleet=first.counts(),
        options=PlanOptions(time_limit_s=0.5, elapsed_s=lambda: 1.0),
    )
    made = ShoalStrategy().solve(late)
    if made.status not in (PlanStatus.OPTIMAL, PlanStatus.WITHIN_GAP):
        assert "wall_clock" in made.limits_hit
    assert all(n.count <= cluster.pool(n.pool).max_nodes for n in made.nodes)
