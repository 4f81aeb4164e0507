"""Options, status and result of a solve, as values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from autoscaler.optimizer.array_types import Floats, Ints


class Status(StrEnum):
    """The outcome of a solve."""

    OPTIMAL = "optimal"  # cost equals the proven bound
    WITHIN_GAP = "within_gap"  # the proven gap is at most the requested one
    LIMIT = "limit"  # feasible, but a limit ended the search before the requested gap was proven
    BEST_EFFORT = "best_effort"  # demand cannot be met; the smallest served fraction is maximised
    FAILED = "failed"  # no usable plan; the caller keeps its last good plan


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of a search.

    `columns`: number of columns considered; `built`: number of those in a linear or integer
    program. `bound_usd_per_h`: the best bound so far. `cost_usd_per_h`: cost of the best plan so
    far (inf: none yet). `elapsed_s`: on the caller's clock; 0 without a clock.
    """

    name: str
    columns: int
    built: int
    bound_usd_per_h: float
    cost_usd_per_h: float
    elapsed_s: float = 0.0

    @property
    def gap(self) -> float:
        """Proven relative gap; 1 before the first plan."""
        if not 0.0 < self.cost_usd_per_h < math.inf:
            return 0.0 if self.cost_usd_per_h <= 0.0 else 1.0
        return max(0.0, 1.0 - self.bound_usd_per_h / self.cost_usd_per_h)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that end a search.

    `gap`: relative gap at which the search ends. `time_limit_s`: limit on `elapsed_s`, a monotonic
    clock of the caller that starts at 0. Without a clock only the work is limited, and the answer
    is reproducible. `mip_nodes`: node limit of one MIP. `on_step`: receives every step.
    """

    gap: float = 1e-6
    time_limit_s: float = math.inf
    elapsed_s: Callable[[], float] | None = None
    mip_nodes: int = 10_000
    on_step: Callable[[Step], None] | None = None

    def step(self, name: str, columns: int, built: int, bound: float, cost: float) -> None:
        """Pass a finished step to `on_step`."""
        if self.on_step is not None:
            now_s = 0.0 if self.elapsed_s is None else self.elapsed_s()
            self.on_step(Step(name, columns, built, bound, cost, now_s))

    def left_s(self) -> float:
        """Seconds until the time is up; infinite without a clock."""
        return math.inf if self.elapsed_s is None else self.time_limit_s - self.elapsed_s()

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.left_s() <= 0.0

    def within(self, share: float, least_s: float = 0.0) -> Self:
        """These limits for a search that may use this `share` of the remaining time, but at least
        `least_s` seconds."""
        left_s = max(0.0, self.left_s())
        if math.isinf(left_s) or self.elapsed_s is None:
            return self
        until_s = self.time_limit_s - left_s + min(left_s, max(share * left_s, least_s))
        return replace(self, time_limit_s=max(1e-3, until_s))

    def anew(self, share: float) -> Self:
        """These limits for a search that begins now and may use this `share` of the whole time."""
        if self.elapsed_s is None:
            return self
        return replace(self, time_limit_s=self.elapsed_s() + share * self.time_limit_s)


@dataclass(frozen=True, slots=True)
class SolveOptions(Limits):
    """Limits of a solve. The result names the time limit if it ended the search. `spare`: share of
    the time to leave to the caller if one of the first `spare_classes` priority classes cannot be
    served in full.
    """

    spare: float = 0.0
    spare_classes: int = 0


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """A checked plan with its proof.

    `counts` (n,): by column. `lower_bound_usd_per_h`: lower bound of the cost of every plan that
    serves the fraction `served_target` of each row (1 unless best effort). `served_fraction` (m,):
    served fraction of each row's demand; the demand may depend on the targets of other rows
    (`Follows`). `served_fraction_bound` (m,): no plan serves a larger smallest fraction of the
    row's priority class.
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
