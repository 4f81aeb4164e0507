"""What a solve was asked to do and what came of it, as values.

Owns options, the status and the result. Knows nothing of any solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from autoscaler.optimizer.arrays import Floats, Ints

GROUPS = 24
"""Groups up to which the work limits hold as they stand."""


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

    `gap`: relative gap at which to stop. `rounds` (neighbourhoods), `mip_columns` (over all MIPs of
    the decomposition), `mip_nodes` (of one MIP), `search_tests` (of one enumeration): work limits,
    which keep the answer reproducible. The first two hold for up to `GROUPS` groups and grow with
    the square beyond, as pairs of groups do. `time_limit_s` with `elapsed_s` (a monotonic clock of
    the caller, as the core reads none): a wall-clock limit; where it strikes, the result says so.
    """

    gap: float = 1e-6
    rounds: int = 80
    mip_columns: int = 30_000
    mip_nodes: int = 200
    search_tests: int = 20_000_000
    seed: int = 0
    time_limit_s: float | None = None
    elapsed_s: Callable[[], float] | None = None

    def left_s(self) -> float:
        """Seconds until the wall-clock limit; infinite without one."""
        if self.time_limit_s is None or self.elapsed_s is None:
            return float("inf")
        return self.time_limit_s - self.elapsed_s()

    def out_of_time(self) -> bool:
        """Whether what is left must be kept for closing the search and checking the answer."""
        return self.left_s() < max(0.2, 0.02 * (self.time_limit_s or 0.0))

    def with_share(self, share: float) -> SolveOptions:
        """The same limits with only `share` of the wall-clock time that is left."""
        if self.time_limit_s is None or self.elapsed_s is None:
            return self
        elapsed = self.elapsed_s()
        left = max(0.0, self.time_limit_s - elapsed)
        return replace(self, time_limit_s=elapsed + share * left)

    def for_groups(self, groups: int) -> SolveOptions:
        """The same limits with the work that `groups` groups deserve."""
        scale = max(1.0, groups / GROUPS)
        return replace(
            self, rounds=int(scale**2 * self.rounds), mip_columns=int(scale**2 * self.mip_columns)
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What a solve spent, in units that do not depend on the machine."""

    pricing_rounds: int = 0
    search_tests: int = 0
    mips: int = 0
    mip_columns: int = 0
    mip_nodes: int = 0
    neighbourhoods: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.pricing_rounds + other.pricing_rounds,
            self.search_tests + other.search_tests,
            self.mips + other.mips,
            self.mip_columns + other.mip_columns,
            self.mip_nodes + other.mip_nodes,
            self.neighbourhoods + other.neighbourhoods,
        )


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
    work: Work = field(default_factory=Work)
    reason: str = ""

    @property
    def gap(self) -> float:
        """Proven relative gap (cost - bound) / cost; 0 for a plan that costs nothing."""
        if self.cost_usd_per_h <= 0:
            return 0.0
        return max(0.0, 1.0 - self.lower_bound_usd_per_h / self.cost_usd_per_h)
