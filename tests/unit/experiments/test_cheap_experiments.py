"""Results of the cheap experiments."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.experiments import cauchy_allocation, coral_sensitivity
from loadtests.experiments.coral_helix import COUNTS, PRICES, pipeline_req_per_s


def test_a_larger_library_never_has_a_worse_best_template() -> None:
    rows = [coral_sensitivity.measure("gpt-oss-20b", n, 2.0 * n) for n in (1, 2, 3)]
    assert [row.templates for row in rows] == sorted(row.templates for row in rows)
    assert [row.best for row in rows] == sorted(row.best for row in rows)


def test_our_plan_never_costs_more_than_three_plans_of_the_paper() -> None:
    for workload in cauchy_allocation.WORKLOADS:
        usd = {name: cauchy_allocation.planned(workload, name).usd_per_h
               for name in cauchy_allocation.STRATEGIES}  # fmt: skip
        assert usd["shoal"] == min(usd.values())


def test_a_pipeline_is_as_fast_as_its_slowest_stage() -> None:
    """Each of two equal nodes serves 12 / layers requests/s, and the model has 4 layers. Two stages
    of two layers serve 6 requests/s. A node that holds all four layers serves 3.
    """
    table = 12.0 / np.arange(1.0, 5.0)[None, :]
    assert pipeline_req_per_s(table, 2, np.array([2])) == pytest.approx(6.0)
    assert pipeline_req_per_s(table, 1, np.array([2])) == pytest.approx(6.0)
    assert pipeline_req_per_s(table, 3, np.array([3])) == pytest.approx(6.0)


def test_helixs_cluster_has_the_papers_gpus() -> None:
    assert COUNTS @ np.array([1, 1, 1, 2, 1, 2, 4]) == 4 + 6 + 16 + 38
    assert float(COUNTS @ PRICES) == pytest.approx(83.03, abs=0.01)
