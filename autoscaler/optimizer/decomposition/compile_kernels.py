"""Compiles the kernels of the decomposition, or loads their machine code, before the first search
with a time limit."""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.decomposition.cover_form import cover_form
from autoscaler.optimizer.decomposition.search import solve_decomposed
from autoscaler.optimizer.decomposition.work_limits import SearchLimits
from autoscaler.optimizer.problem import AllocationProblem


def compile_kernels() -> None:
    """Solve a problem of two rows and two scarce resources, which calls every kernel."""
    problem = AllocationProblem(
        cost_usd_per_h=np.array([1.0, 2.0, 1.0, 2.0]),
        upper=np.full(4, np.inf),
        serve_indptr=np.arange(5),
        serve_row=np.array([0, 0, 1, 1]),
        serve_rate=np.ones(4),
        use_indptr=np.arange(5),
        use_resource=np.array([0, 1, 0, 1]),
        use_amount=np.ones(4),
        demand_req_per_s=np.array([1.0, 1.0]),
        priority=np.zeros(2, dtype=np.int64),
        capacity=np.array([1.0, 1.0]),
    )
    solve_decomposed(cover_form(problem, np.ones(2)).decomposed, SearchLimits())
