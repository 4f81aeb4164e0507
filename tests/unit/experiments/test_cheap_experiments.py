"""Results of the cheap experiments."""

from __future__ import annotations

from loadtests.experiments import cauchy_allocation


def test_our_plan_never_costs_more_than_three_plans_of_the_paper() -> None:
    for workload in cauchy_allocation.WORKLOADS:
        usd = {name: cauchy_allocation.planned(workload, name).usd_per_h
               for name in cauchy_allocation.STRATEGIES}  # fmt: skip
        assert usd["shoal"] == min(usd.values())
