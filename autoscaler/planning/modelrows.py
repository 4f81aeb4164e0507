"""Rows of one model: its demand, its limits, its promises; and the keys that columns carry.

Owns these rows and the order in which they count when not all of them can be kept. Knows nothing
of pools and of how columns are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.cluster import Service
from autoscaler.planning.arraybuilder import ArrayBuilder
from autoscaler.planning.problem import PlanningProblem


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
    """Row indices while building. there: GPUs of nodes that are up, gpus: with new ones."""

    demand: dict[str, tuple[int, ...]]
    floor: dict[str, int]
    undisturbed: dict[str, int]
    spot: dict[str, int]
    ceiling: dict[str, int]
    there: dict[str, int]
    gpus: dict[str, int]


class Classes:
    """Priority classes of what comes late, one each; beyond two dozen the rest shares the last."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._last = first + 24

    def next(self) -> int:
        """The class of what comes next."""
        self._next = min(self._next + 1, self._last)
        return self._next - 1


def add_model_rows(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    first: int,
    late: Classes,
    share: float | None,
) -> None:
    """Demand, ceiling and spot share of one model; with a share, the rest of demand comes late."""
    model = service.model
    needed = problem.needed_req_per_s(model)
    if needed > 0.0 and share is None:
        rows.demand[model] = (builder.demand("demand", model, needed, first),)
    elif needed > 0.0 and share is not None:
        rest = builder.demand("demand", model, needed, first if share >= 1.0 else late.next())
        rows.demand[model] = (rest,)
        if 0.0 < share < 1.0:
            assured = builder.demand("share of demand", model, share * needed, first)
            rows.demand[model] = (assured, rest)
    if service.max_instances:
        rows.ceiling[model] = builder.resource("ceiling", model, float(service.max_instances))
    rows.spot[model] = builder.resource("spot share", model, service.spot_share * needed)


def add_promises(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    service: Service,
    late: Classes,
) -> None:
    """Floor and disruption budget of one model."""
    model = service.model
    if service.min_instances:
        least_count = float(service.min_instances)
        rows.floor[model] = builder.demand("floor", model, least_count, late.next())
    if not problem.options.limit_disruption:
        return
    running = [
        (problem.running[i], n)
        for i, n in problem.fleet.items()
        if n and problem.running[i].model == model
    ]
    capacity = sum(combo.req_per_s * n for combo, n in running)
    # One combo may always go, however small the budget.
    largest = max((combo.req_per_s for combo, _ in running), default=0.0)
    least = capacity - max(service.max_disruption * capacity, largest)
    if least > 1e-9:
        rows.undisturbed[model] = builder.demand("disruption budget", model, least, late.next())
