"""What a solve was asked to do and what came of it, as values.

Owns options, the status and the result. Knows nothing of any solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.optimizer.arrays import Floats, Ints


class Status(StrEnum):
    """How a solve ended."""

    OPTIMAL = "optimal"  # cost equals the proven bound
    WITHIN_GAP = "within_gap"  # the proven gap is at most the one asked for
    LIMIT = "limit"  # feasible, but a work limit ended the search above that gap
    BEST_EFFORT = "best_effort"  # demand cannot be met in full; the smallest fraction is maximised
    FAILED = "failed"  # no usable plan came out; the caller keeps its last good one


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Limits and tolerances of a solve.

    `gap`: relative gap at which to stop. `mip_nodes` of one MIP: a work limit, which keeps the
    answer reproducible. `time_limit_s` with `elapsed_s` (a monotonic clock of the caller, as the
    core reads none): a wall-clock limit; where it strikes, the result says so.
    """

    gap: float = 1e-6
    mip_nodes: int = 10_000
    time_limit_s: float | None = None
    elapsed_s: Callable[[], float] | None = None

    def left_s(self) -> float:
        """Seconds until the wall-clock limit; infinite without one."""
        if self.time_limit_s is None or self.elapsed_s is None:
            return float("inf")
        return self.time_limit_s - self.elapsed_s()


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """A checked plan with its proof.

    `counts` (n,) by column. `lower_bound_usd_per_h` bounds the cost of every plan that serves
    `served_target` of each row (1 unless best effort). `served_fraction` (m,);
    `served_fraction_bound` (m,): no plan serves a larger smallest fraction of the row's priority
    class.
    """

    status: Status
    counts: Ints
    cost_usd_per_h: float
    lower_bound_usd_per_h: float
    served_fraction: Floats
    served_fraction_bound: Floats
    served_target: Floats
    limits_hit: tuple[str, ...] = ()
    reason: str = ""

    @property
    def gap(self) -> float:
        """Proven relative gap (cost - bound) / cost; 0 for a plan that costs nothing."""
        if self.cost_usd_per_h <= 0:
            return 0.0
        return max(0.0, 1.0 - self.lower_bound_usd_per_h / self.cost_usd_per_h)
