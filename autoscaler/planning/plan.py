"""The plan that a planner returns, and the interface of all strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.planner_messages import Switch
from autoscaler.planning.planning_problem import PlanningProblem


class PlanStatus(StrEnum):
    """Whether a plan is feasible, and what is proven about its cost."""

    OPTIMAL = "optimal"  # no plan costs less
    WITHIN_GAP = "within_gap"  # proven to be within the requested gap
    LIMIT = "limit"  # feasible, but a limit ended the search before the gap was reached
    HEURISTIC = "heuristic"  # feasible, by a strategy that proves nothing about cost
    BEST_EFFORT = "best_effort"  # demand cannot be met; the smallest served fraction is maximised
    FAILED = "failed"  # no plan


@dataclass(frozen=True, slots=True)
class PlannedCount:
    """Planned and current number of instances of one combo."""

    combo: Combo
    count: int
    now: int


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """Nodes of one pool: the planned number, the current number, and the total USD/h of the planned
    nodes."""

    pool: str
    count: int
    now: int
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class RequestShare:
    """The `fraction` of the requests of a model's workload type that one combo serves.

    0: the combo could serve the type, but the plan does not use it for this type.
    """

    model: str
    type: str
    combo: str
    fraction: float


@dataclass(frozen=True, slots=True)
class BudgetWork:
    """The work of a plan within its budget.

    multiple: planned rate / requested rate (1.5 = one and a half times the demand), or batches per
    second. bound: no plan reaches a larger multiple; None if unknown. shares: how the combos divide
    each type; the fractions of one type sum to 1. unserved: types that no combo serves within the
    SLO, as (model, type).
    """

    multiple: float
    bound: float | None
    shares: tuple[RequestShare, ...]
    unserved: tuple[tuple[str, str], ...] = ()

    @property
    def gap(self) -> float | None:
        """Largest possible improvement by any plan: bound / multiple - 1; None if unknown."""
        return None if self.bound is None else self.bound / self.multiple - 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts of all models, their cost and the proof.

    cost_usd_per_h: price of the nodes billed under the plan. now_usd_per_h: price of the nodes
    billed now. objective_usd_per_h: cost plus the penalties for starts, loads and switches.
    lower_bound_usd_per_h: lower bound of the objective of every plan that serves as much in the
    same rollout mode. While demand is unserved, that mode is usually SURGE; a plan that starts with
    removals may cost less, and is searched for once all demand is served. gap: 1 - bound /
    objective, -1 without proof. capacity_req_per_s: capacity per planned model, before utilization
    is applied. shortfall_req_per_s: demand above utilization x capacity, per model with a
    shortfall. served_fraction_bound: in best effort, no plan serves a larger smallest fraction (1 =
    all, or unknown). limits_hit: limits that ended the search; if there are any, a repeated search
    may give another plan. switches: switches of running combos to other roles, included in the
    counts. binding: constraints that limit the plan. violations: constraints other than demand that
    the plan violates, each with its cause; the subject is a model, or "*" for the budget. work: set
    in budget mode; `gap` is then the gap of the work.
    """

    strategy: str
    status: PlanStatus
    targets: tuple[PlannedCount, ...]
    nodes: tuple[PlannedNodes, ...]
    cost_usd_per_h: float
    now_usd_per_h: float
    objective_usd_per_h: float
    lower_bound_usd_per_h: float
    gap: float
    capacity_req_per_s: Mapping[str, float]
    shortfall_req_per_s: Mapping[str, float] = field(default_factory=dict)
    served_fraction_bound: float = 1.0
    switches: tuple[Switch, ...] = ()
    binding: tuple[Reason, ...] = ()
    violations: tuple[Reason, ...] = ()
    limits_hit: tuple[str, ...] = ()
    notes: tuple[Reason, ...] = ()
    work: BudgetWork | None = None

    def targets_of(self, model: str) -> tuple[PlannedCount, ...]:
        """Planned and current counts of `model`."""
        return tuple(target for target in self.targets if target.combo.model == model)

    def counts(self) -> dict[str, int]:
        """Combo id -> planned count, without zeros."""
        return {target.combo.id: target.count for target in self.targets if target.count}


class Strategy(Protocol):
    """A planning algorithm. name: the value of `--strategy`."""

    @property
    def name(self) -> str: ...

    def solve(self, problem: PlanningProblem) -> Plan:
        """A plan for `problem`, checked in floating point. If there is none, its status is FAILED
        and a note names the cause."""
        ...
