"""Adds the rows of one model: demand, limits and other constraints, in the order of priority. Also
defines the keys that describe columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.cluster import Service
from autoscaler.planning.combo_usage import is_spot, req_per_s_of
from autoscaler.planning.floor_eligibility import count_useful, min_useful_req_per_s
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.problem_builder import ArrayBuilder

RETAINED = "capacity that stays meanwhile"
OFF_SPOT = "capacity off spot"
FLOOR = "floor"
USEFUL_FLOOR = "floor of useful instances"
SETTLING = "instances that settle"
"""Names of rows."""


class ColumnKind(StrEnum):
    """The thing that a column counts: a transition of a combo, or nodes."""

    KEEP = "keep"
    SWITCH = "switch"
    LEAVE = "leave"
    LOAD = "load"
    START = "start"
    KEPT_NODES = "kept nodes"
    NEW_NODES = "new nodes"
    AUXILIARY = "auxiliary"


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """The kind of a column, and the combo or pool that it counts. source: the combo that
    switches."""

    kind: ColumnKind
    subject: str
    source: str = ""


@dataclass(slots=True)
class Rows:
    """Row indices, used while the arrays are built.

    gpus: GPUs of existing and new nodes. gpus_up: GPUs of existing nodes. surge: GPUs that are free
    now, if additions are limited to them. retained: row of the capacity that must not leave.
    off_spot: (row of requests/s, row of instances) for capacity that must not use spot; -1: no such
    row. useful_floor: row of the floor, and the capacity from which an instance counts
    (`planning.floor_eligibility`). settling: by running combo, row of its instances that settle.
    """

    demand: dict[str, int]
    floor: dict[str, int]
    off_spot: dict[str, tuple[int, int]]
    ceiling: dict[str, int]
    gpus_up: dict[str, int]
    gpus: dict[str, int]
    surge: dict[str, int]
    retained: dict[str, int]
    useful_floor: dict[str, tuple[int, float]]
    settling: dict[str, int]


_SEPARATE = 48


class PriorityClasses:
    """Numbers of priority classes, ascending with each call of `next`. After _SEPARATE classes, all
    others share the last class."""

    def __init__(self) -> None:
        self._next = -1

    @property
    def count(self) -> int:
        """Number of classes returned so far."""
        return self._next + 1

    def next(self) -> int:
        """A class that comes after all classes returned before."""
        self._next = min(self._next + 1, _SEPARATE)
        return self._next


def add_retention_rows(
    builder: ArrayBuilder[ColumnKey],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
    classes: PriorityClasses,
) -> None:
    """Add rows that limit the capacity that leaves in one step. Two parts may leave: capacity above
    the need, and as much as the disruption budget allows.
    """
    level = classes.next()
    for service in services:
        rates = {c.id: c.req_per_s for c in problem.candidates.get(service.model, ())}
        own = [(rates.get(c.id, c.req_per_s), n) for c, n in problem.running_combos(service.model)]
        runs = sum(rate * count for rate, count in own)
        spare = runs - problem.needed_req_per_s(service.model)
        each = (rate for rate, count in own for _ in range(count))
        leaves = max(spare, service.max_leaving_req_per_s(each))
        if runs - leaves > 1e-9 * runs:
            row = builder.demand(RETAINED, service.model, runs - leaves, level)
            rows.retained[service.model] = row


def add_demand_rows(
    builder: ArrayBuilder[ColumnKey],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
    classes: PriorityClasses,
) -> None:
    """Add rows for the demand that fixed combos do not cover, the highest priority first."""
    for priority in sorted({service.priority for service in services}, reverse=True):
        level = classes.next()
        for service in services:
            missing = missing_req_per_s(problem, service.model)
            if service.priority == priority and missing > 0.0:
                row = builder.demand("demand", service.model, missing, level)
                rows.demand[service.model] = row


def missing_req_per_s(problem: PlanningProblem, model: str) -> float:
    """Raw capacity that a plan must add to the fixed combos of `model`; 0 if they are enough."""
    running = req_per_s_of(problem.running_combos(model))
    needed = max(
        problem.needed_req_per_s(model), running if model in problem.scale_in_locked else 0.0
    )
    missing = problem.with_hysteresis(needed, running) - req_per_s_of(problem.fixed_combos(model))
    return missing if missing > 1e-9 * needed else 0.0


def add_ceiling(
    builder: ArrayBuilder[ColumnKey], rows: Rows, problem: PlanningProblem, service: Service
) -> None:
    """Add the row of the maximal number of combos of one model."""
    if service.max_instances:
        standing = sum(count for _, count in problem.fixed_combos(service.model))
        left = max(0.0, float(service.max_instances - standing))
        rows.ceiling[service.model] = builder.resource("ceiling", service.model, left)


def add_floor_and_spot_rows(
    builder: ArrayBuilder[ColumnKey],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    classes: PriorityClasses,
) -> None:
    """Add the rows of the floor and the spot limit of one model, reduced by the contribution of
    fixed combos."""
    model = service.model
    standing = problem.fixed_combos(model)
    least_count = service.min_instances - sum(count for _, count in standing)
    if least_count > 0:
        rows.floor[model] = builder.demand(FLOOR, model, float(least_count), classes.next())
    if spot_limit_applies(problem, service):
        first, (missing, count) = classes.next(), missing_off_spot(problem, service)
        rows.off_spot[model] = (
            builder.demand(OFF_SPOT, model, missing, first) if missing > 0.0 else -1,
            builder.demand(OFF_SPOT, model, float(count), first) if count else -1,
        )
        if missing > 0.0 and model in rows.demand:
            firm = req_per_s_of(pair for pair in standing if not is_spot(pair[0]))
            share = 1.0 - service.spot_share
            least = share * req_per_s_of(standing) - firm
            builder.follow(rows.off_spot[model][0], rows.demand[model], share, least)


def add_useful_floor(
    builder: ArrayBuilder[ColumnKey],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    classes: PriorityClasses,
) -> None:
    """Add the row of the floor of useful instances, if some candidates or running combos do not
    count towards it."""
    model, least = service.model, min_useful_req_per_s(problem, service.model)
    missing = service.min_instances - count_useful(problem, model, problem.fixed_combos(model))
    combos = [*problem.candidates.get(model, ()), *(c for c, _ in problem.running_combos(model))]
    if missing > 0 and any(combo.req_per_s < least for combo in combos):
        row = builder.demand(USEFUL_FLOOR, model, float(missing), classes.next())
        rows.useful_floor[model] = row, least


def add_settling_rows(
    builder: ArrayBuilder[ColumnKey], rows: Rows, problem: PlanningProblem, level: int
) -> None:
    """Add a row per running combo of which some instances settle. They stay, switch roles, or leave
    at a price (`Settling`)."""
    if problem.additions_only:
        return
    for combo_id, settling in sorted(problem.settling.items()):
        settles = min(settling.count, problem.fleet.get(combo_id, 0))
        model = problem.running[combo_id].model if settles else ""
        if settles and problem.is_planned(model) and problem.running[combo_id].meets_slo:
            rows.settling[combo_id] = builder.demand(SETTLING, model, float(settles), level)


def spot_limit_applies(problem: PlanningProblem, service: Service) -> bool:
    """Whether the service's spot limit restricts this problem.

    It does not if no combo uses spot, or if every combo does: a model that may use only spot nodes
    is placed on spot nodes.
    """
    combos = [*problem.candidates.get(service.model, ())]
    combos += [combo for combo, _ in problem.running_combos(service.model)]
    spot = [is_spot(combo) for combo in combos]
    return service.spot_share < 1.0 and any(spot) and not all(spot)


def off_spot_req_per_s(problem: PlanningProblem, service: Service, provided: float) -> float:
    """Raw capacity that must not use spot if the plan has the capacity `provided` in total.

    It is a share of the smaller of two values: the need and `provided`.
    """
    needed = problem.needed_req_per_s(service.model)
    return (1.0 - service.spot_share) * min(needed, provided)


def missing_off_spot(problem: PlanningProblem, service: Service) -> tuple[float, int]:
    """The capacity that a plan must add off spot: (requests/s, number of combos for the floor); 0 =
    the fixed combos are enough.

    The capacity off spot must be at least (1 - spot share) x needed capacity, and the number of
    combos off spot at least the same share of the floor, rounded down. A plan that does not meet
    the need requires less, see `add_floor_and_spot_rows`. Running combos count: with a floor of 2
    and one running combo off spot, the second combo may use spot.
    """
    model = service.model
    floor = math.floor((1.0 - service.spot_share) * service.min_instances + 1e-9)
    firm = [pair for pair in problem.running_combos(model) if not is_spot(pair[0])]
    stays = [pair for pair in problem.fixed_combos(model) if not is_spot(pair[0])]
    needed = problem.with_hysteresis(
        off_spot_req_per_s(problem, service, math.inf), req_per_s_of(firm)
    )
    missing = needed - req_per_s_of(stays)
    return missing if missing > 1e-9 * needed else 0.0, max(0, floor - sum(n for _, n in stays))
