"""The worth of prefix caches: the GPUs that a plan would need in addition without hits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.workload import Demand, Lengths
from autoscaler.explain.explanation import ModelReasons
from autoscaler.explain.prefix_worth import gpus_saved_by_hits
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.planning_problem import arrivals_of, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.planning_clusters import small_cluster

PROFILE = default_profile()
LONG = Lengths(4000.0, 100.0)


@pytest.mark.parametrize("hit", [0.0, 0.7])
def test_the_worth_is_the_gpus_of_the_capacity_that_hits_give(hit: float) -> None:
    cluster = small_cluster()
    lengths = replace(LONG, prefix_hit=hit)
    demands = {one.model: Demand(one.model, 4.0, lengths) for one in cluster.services}
    problem = make_problem(cluster, demands, PROFILE)
    plan = ShoalStrategy().solve(problem)
    service = cluster.service("mini")
    gpus = more = 0.0
    for target in plan.targets_of("mini"):
        combo = target.combo
        cold = evaluate_combo(
            combo.id, cluster, service, LONG, PROFILE, arrivals_of(demands["mini"], service)
        )
        own = target.count * sum(combo.gpus_by_pool().values())
        gpus += own
        more += own * (combo.req_per_s / cold.req_per_s - 1.0)
    found = gpus_saved_by_hits(problem, plan, "mini", PROFILE)
    assert found == pytest.approx(more, abs=1e-9)
    assert (found > 0.2 * gpus) is (hit > 0.0)


def test_the_worth_is_stated_only_with_hits() -> None:
    bare = ModelReasons("mini", 1.0, 2.0, (), (), (), uncertain=False)
    assert bare.cached == ""
    cached = replace(bare, prefix_hit=0.55, prefix_gpus=6.2)
    assert cached.cached == "55% of prompt tokens; 6.2 more GPUs without them"
