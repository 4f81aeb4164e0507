"""Rows of one model: its demand, its limits, its promises; and the keys that columns carry.

Owns these rows and the order in which they count when not all of them can be kept. Knows nothing
of pools and of how columns are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.cluster import Service
from autoscaler.planning.combo_usage import is_spot, req_per_s_of
from autoscaler.planning.floor_eligibility import least_req_per_s, useful
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.problem_builder import ArrayBuilder

STAYING = "capacity that stays meanwhile"
OFF_SPOT = "capacity off spot"
FLOOR = "floor"
USEFUL_FLOOR = "floor of useful instances"
"""The row that keeps a model's spot share."""


class Kind(StrEnum):
    """What a column stands for."""

    KEEP = "keep"
    SWITCH = "switch"
    LOAD = "load"
    START = "start"
    KEPT_NODES = "kept nodes"
    NEW_NODES = "new nodes"
    AUXILIARY = "auxiliary"


@dataclass(frozen=True, slots=True)
class Key:
    """What a column is: its kind and the combo or pool that it counts. source: switched from."""

    kind: Kind
    subject: str
    source: str = ""


@dataclass(slots=True)
class Rows:
    """Row indices while building. there: GPUs of nodes that are up, gpus: with new ones; beside:
    those that are free now, where additions must make do with them. staying: what may not leave.

    firm: what may not rest on spot, as (row of requests/s, row of instances), -1: no such row.
    useful: row of the floor and the capacity from which an instance counts (`planning.floors`).
    """

    demand: dict[str, int]
    floor: dict[str, int]
    firm: dict[str, tuple[int, int]]
    ceiling: dict[str, int]
    there: dict[str, int]
    gpus: dict[str, int]
    beside: dict[str, int]
    staying: dict[str, int]
    useful: dict[str, tuple[int, float]]


_SEPARATE = 48


class Classes:
    """Priority classes, in the order of `next`; beyond _SEPARATE ones the rest share the last."""

    def __init__(self) -> None:
        self._next = -1

    @property
    def given(self) -> int:
        """How many were given out."""
        return self._next + 1

    def next(self) -> int:
        """A class after all that were given out before."""
        self._next = min(self._next + 1, _SEPARATE)
        return self._next


def add_staying_rows(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
    classes: Classes,
) -> None:
    """What may leave in one step: what is not needed, or as much as may leave at a time."""
    level = classes.next()
    for service in services:
        rates = {c.id: c.req_per_s for c in problem.candidates.get(service.model, ())}
        own = [(rates.get(c.id, c.req_per_s), n) for c, n in problem.running_of(service.model)]
        runs = sum(rate * count for rate, count in own)
        spare = runs - problem.needed_req_per_s(service.model)
        each = (rate for rate, count in own for _ in range(count))
        leaves = max(spare, service.max_leaving_req_per_s(each))
        if runs - leaves > 1e-9 * runs:
            row = builder.demand(STAYING, service.model, runs - leaves, level)
            rows.staying[service.model] = row


def add_demand_rows(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
    classes: Classes,
) -> None:
    """What runs and stays is not enough of: demand, the highest priority first."""
    for priority in sorted({service.priority for service in services}, reverse=True):
        level = classes.next()
        for service in services:
            missing = missing_req_per_s(problem, service.model)
            if service.priority == priority and missing > 0.0:
                row = builder.demand("demand", service.model, missing, level)
                rows.demand[service.model] = row


def missing_req_per_s(problem: PlanningProblem, model: str) -> float:
    """Raw capacity that a plan must add to what stands of `model`; 0 where that is enough."""
    running = req_per_s_of(problem.running_of(model))
    needed = max(problem.needed_req_per_s(model), running if model in problem.keeps else 0.0)
    missing = problem.held(needed, running) - req_per_s_of(problem.standing_of(model))
    return missing if missing > 1e-9 * needed else 0.0


def add_ceiling(
    builder: ArrayBuilder[Key], rows: Rows, problem: PlanningProblem, service: Service
) -> None:
    """At most so many combos of one model."""
    if service.max_instances:
        standing = sum(count for _, count in problem.standing_of(service.model))
        left = max(0.0, float(service.max_instances - standing))
        rows.ceiling[service.model] = builder.resource("ceiling", service.model, left)


def add_promises(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    classes: Classes,
) -> None:
    """Floor and limit of spot of one model, beyond what stands."""
    model = service.model
    standing = problem.standing_of(model)
    least_count = service.min_instances - sum(count for _, count in standing)
    if least_count > 0:
        rows.floor[model] = builder.demand(FLOOR, model, float(least_count), classes.next())
    if limits_spot(problem, service):
        first, (missing, count) = classes.next(), missing_off_spot(problem, service)
        rows.firm[model] = (
            builder.demand(OFF_SPOT, model, missing, first) if missing > 0.0 else -1,
            builder.demand(OFF_SPOT, model, float(count), first) if count else -1,
        )
        if missing > 0.0 and model in rows.demand:
            firm = req_per_s_of(pair for pair in standing if not is_spot(pair[0]))
            share = 1.0 - service.spot_share
            least = share * req_per_s_of(standing) - firm
            builder.follow(rows.firm[model][0], rows.demand[model], share, least)


def add_useful_floor(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    classes: Classes,
) -> None:
    """The floor again, of instances that are of use, where not all that may be had are."""
    model, least = service.model, least_req_per_s(problem, service.model)
    missing = service.min_instances - useful(problem, model, problem.standing_of(model))
    combos = [*problem.candidates.get(model, ()), *(c for c, _ in problem.running_of(model))]
    if missing > 0 and any(combo.req_per_s < least for combo in combos):
        row = builder.demand(USEFUL_FLOOR, model, float(missing), classes.next())
        rows.useful[model] = row, least


def limits_spot(problem: PlanningProblem, service: Service) -> bool:
    """Whether the service's limit of spot means anything in this problem.

    Not where spot cannot be chosen, and not where nothing else can: a model that may use only
    spot nodes takes them.
    """
    combos = [*problem.candidates.get(service.model, ())]
    combos += [combo for combo, _ in problem.running_of(service.model)]
    spot = [is_spot(combo) for combo in combos]
    return service.spot_share < 1.0 and any(spot) and not all(spot)


def off_spot_req_per_s(problem: PlanningProblem, service: Service, provided: float) -> float:
    """Raw capacity that may not rest on spot, where `provided` is planned in all: a share of the
    need, and where that is not met, of what is provided."""
    needed = problem.needed_req_per_s(service.model)
    return (1.0 - service.spot_share) * min(needed, provided)


def missing_off_spot(problem: PlanningProblem, service: Service) -> tuple[float, int]:
    """Requests/s, and combos of the floor, that a plan must add off spot; 0 = enough stands.

    Capacity off spot >= (1 - share) x needed, and as many of the floor's combos, rounded down. A
    plan that does not meet the need asks for less, see `add_promises`. Counted with what runs:
    where one combo off spot runs already, the second may be spot.
    """
    model = service.model
    floor = math.floor((1.0 - service.spot_share) * service.min_instances + 1e-9)
    firm = [pair for pair in problem.running_of(model) if not is_spot(pair[0])]
    stays = [pair for pair in problem.standing_of(model) if not is_spot(pair[0])]
    needed = problem.held(off_spot_req_per_s(problem, service, math.inf), req_per_s_of(firm))
    missing = needed - req_per_s_of(stays)
    return missing if missing > 1e-9 * needed else 0.0, max(0, floor - sum(n for _, n in stays))
