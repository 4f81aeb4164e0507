"""What a planner answers, and the one interface of all strategies.

Owns `Plan` and its parts, and the `Strategy` protocol. Knows no solver.
"""

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
    """How good a plan is, and how it came about."""

    OPTIMAL = "optimal"  # no plan costs less
    WITHIN_GAP = "within_gap"  # proven to be within the gap asked for
    LIMIT = "limit"  # feasible, but a limit ended the search before the gap was reached
    HEURISTIC = "heuristic"  # feasible, by a strategy that proves nothing about cost
    BEST_EFFORT = "best_effort"  # demand cannot be met; the smallest served fraction is the most
    FAILED = "failed"  # no plan came out


@dataclass(frozen=True, slots=True)
class PlannedCount:
    """How many of one combo a plan wants, and how many run now."""

    combo: Combo
    count: int
    now: int


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """Nodes of one pool: needed, there now, and what needed ones cost in USD/h together."""

    pool: str
    count: int
    now: int
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Share:
    """`fraction` of the requests of a model's workload type go to the copies of one combo. 0: it
    could serve the type and is not planned to."""

    model: str
    type: str
    combo: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Work:
    """What a plan does with its budget.

    multiple: how often the work that was asked for is done per second (for rates: 1.5 = one and a
    half times the demand). bound: no plan reaches more, None where no such is known. shares: where
    each type goes; those of one type sum to 1. unserved: types that nothing serves within the SLO,
    as (model, type).
    """

    multiple: float
    bound: float | None
    shares: tuple[Share, ...]
    unserved: tuple[tuple[str, str], ...] = ()

    @property
    def gap(self) -> float | None:
        """How far any plan can be better: bound / multiple - 1; None where that is not known."""
        return None if self.bound is None else self.bound / self.multiple - 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts of all models, their cost and the proof.

    cost_usd_per_h: of the nodes billed under the plan; now_usd_per_h: of those billed now.
    objective_usd_per_h: cost plus the penalties of starting, loading and switching;
    lower_bound_usd_per_h bounds it for every plan that serves as much and whose additions find
    the same room: where something is missing now, that is mostly beside what runs, and a plan for
    which something must leave first may cost less; it is looked for once nothing is missing. gap:
    1 - bound / objective, -1 where nothing was proven. capacity_req_per_s: raw, per planned model.
    shortfall_req_per_s: demand above utilization x capacity, per model that has any.
    served_fraction_bound: in best effort, no plan serves a larger smallest fraction (1 = all, or
    nothing is known).
    limits_hit: limits that struck; with one of them a second run may answer differently.
    switches: of running combos to other roles, part of the counts.
    binding: constraints that hold it where it is. broken: promises beside the demand that it does
    not keep, each because of what it does instead; of a model, or "*" for the budget. work: where
    the most work for a budget was asked for; gap is that of the work then.
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
    broken: tuple[Reason, ...] = ()
    limits_hit: tuple[str, ...] = ()
    notes: tuple[Reason, ...] = ()
    work: Work | None = None

    def of(self, model: str) -> tuple[PlannedCount, ...]:
        """What is planned for `model` and what of it runs."""
        return tuple(target for target in self.targets if target.combo.model == model)

    def counts(self) -> dict[str, int]:
        """Combo id -> count, of what is wanted at all."""
        return {target.combo.id: target.count for target in self.targets if target.count}


class Strategy(Protocol):
    """A way to plan. `name` is what people write after --strategy."""

    @property
    def name(self) -> str: ...

    def solve(self, problem: PlanningProblem) -> Plan:
        """A plan checked in floating point, or one with status FAILED and a note why."""
        ...
