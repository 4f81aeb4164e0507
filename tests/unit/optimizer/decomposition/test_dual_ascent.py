"""The dual ascent, with and without sufficient time."""

from __future__ import annotations

import itertools

import numpy as np

from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_form import cover_form
from autoscaler.optimizer.decomposition.dual_ascent import DualResult, ascend
from autoscaler.optimizer.decomposition.groups import Decomposed
from autoscaler.optimizer.decomposition.work_limits import SearchLimits
from autoscaler.optimizer.problem import AllocationProblem


def scarce(seed: int) -> Decomposed:
    """Six groups of twenty columns that share four resources."""
    rng = np.random.default_rng(seed)
    count, rows = 120, 6
    problem = AllocationProblem(
        cost_usd_per_h=rng.uniform(1.0, 5.0, count),
        upper=np.full(count, np.inf),
        serve_indptr=np.arange(count + 1),
        serve_row=np.arange(count) % rows,
        serve_rate=rng.uniform(1.0, 5.0, count),
        use_indptr=np.arange(count + 1),
        use_resource=rng.integers(0, 4, count),
        use_amount=rng.uniform(1.0, 3.0, count),
        demand_req_per_s=np.full(rows, 17.0),
        priority=np.zeros(rows, dtype=np.int64),
        capacity=np.full(4, 12.0),
    )
    target: Floats = np.ones(rows)
    return cover_form(problem, target).decomposed


def ascended(limits: SearchLimits | None) -> DualResult:
    problem = scarce(1)
    got = ascend(problem, np.zeros(len(problem.capacity)), 400, limits=limits)
    assert got is not None
    return got


def within(looks: float) -> SearchLimits:
    """Limits of `looks` seconds, on a clock that advances by one second per reading."""
    clock = itertools.count(1.0)
    return SearchLimits(time_limit_s=looks, elapsed_s=lambda: next(clock))


def test_an_interrupted_ascent_returns_a_valid_bound() -> None:
    full, cut = ascended(None), ascended(within(3.5))
    assert cut.cut and not full.cut
    assert cut.rounds < full.rounds
    assert cut.bound < full.bound


def test_an_ascent_with_sufficient_time_equals_one_without_a_limit() -> None:
    full, timed = ascended(None), ascended(within(1e6))
    assert not timed.cut
    assert (timed.bound, timed.rounds) == (full.bound, full.rounds)
