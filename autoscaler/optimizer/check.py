"""Final check of a plan, independent of the search: recomputes its numbers in floating point and
compares them with capacities, bounds and demand.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status

SHORT = 1e-7
"""Largest relative shortfall of a row that counts as served (the solver's tolerance)."""


def faults(problem: AllocationProblem, counts: Ints, target: Floats) -> str:
    """A text that names what is wrong with `counts` (n,), "" if nothing. Each row must get the
    fraction `target` (m,) of its demand."""
    if (counts < 0).any() or (counts > problem.upper + 1e-9).any():
        return f"count of column {int(np.argmax(counts > problem.upper))} out of bounds"
    room = 1e-7 * np.maximum(1.0, problem.capacity)
    over = problem.used(counts) > problem.capacity + room
    if over.any():
        return f"capacity of resource {int(np.argmax(over))} exceeded"
    short = problem.served_req_per_s(counts) < problem.demand_req_per_s * target * (1.0 - SHORT)
    if short.any():
        return f"demand row {int(np.argmax(short))} not served"
    return ""


def checked(
    problem: AllocationProblem,
    counts: Ints,
    bound: float,
    target: Floats,
    fraction_bound: Floats,
    options: SolveOptions,
    limits: tuple[str, ...],
) -> AllocationResult:
    """The result for `counts`, or a failed result that names the failed check."""
    why = faults(problem, counts, target)
    if why:
        return failed(problem, f"the plan failed its check: {why}", limits)
    asked = problem.asked_req_per_s(target)
    fraction = np.ones(len(asked))
    np.divide(problem.served_req_per_s(counts), asked, out=fraction, where=asked > 0.0)
    cost = float(counts @ problem.cost_usd_per_h)
    bound = min(bound, cost)
    gap = 0.0 if cost <= 0 else max(0.0, 1.0 - bound / cost)
    status = Status.LIMIT
    if (target < 1.0).any():
        status = Status.BEST_EFFORT
    elif gap <= 1e-9:
        status = Status.OPTIMAL
    elif gap <= options.gap:
        status = Status.WITHIN_GAP
    return AllocationResult(
        status=status,
        counts=counts,
        cost_usd_per_h=cost,
        lower_bound_usd_per_h=bound,
        served_fraction=np.minimum(1.0, fraction),
        served_fraction_bound=fraction_bound,
        served_target=target,
        limits_hit=limits,
    )


def failed(problem: AllocationProblem, reason: str, limits: tuple[str, ...]) -> AllocationResult:
    """A result without a usable plan, with the reason."""
    rows = len(problem.demand_req_per_s)
    return AllocationResult(
        status=Status.FAILED,
        counts=np.zeros(problem.columns, dtype=np.int64),
        cost_usd_per_h=0.0,
        lower_bound_usd_per_h=0.0,
        served_fraction=np.zeros(rows),
        served_fraction_bound=np.ones(rows),
        served_target=np.zeros(rows),
        limits_hit=limits,
        reason=reason,
    )
