"""Splits the rent of a run by its uses, and its misses by the state of the fleet.

The rent of a node is split by its GPUs and by time. Rent of GPUs whose instances serve is split by
the model's ready capacity: first what the demand of the minute used, then what the policy kept
beyond it. The parts add up to the rent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.domain.cluster import Service
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.rollout.serving_group import combo_id_of
from autoscaler.serving.billing import NodeSpan
from autoscaler.simulation.decider import PlannedRates
from autoscaler.simulation.instance_spans import InstanceSpan, Use
from autoscaler.simulation.run_measures import ComboCapacity
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import FlowRow, Timeline

Floats = npt.NDArray[np.float64]

_CELL_S = 10.0
_SMOOTH_CELLS = 6
_HOUR_S = 3600.0


class CostCause(StrEnum):
    """A use of rent."""

    DEMAND = "demand"
    RESERVE = "reserve"
    FORECAST = "forecast"
    HOLDS = "holds"
    DERATING = "derating"
    SPARE = "spare"
    STARTS = "starts"
    OVERLAPS = "overlaps"
    IDLE_GPUS = "idle_gpus"


class MissCause(StrEnum):
    """The state of the model's fleet when a request arrived that missed its SLO."""

    NOT_ORDERED = "not_ordered"
    STARTING = "starting"
    QUEUE = "queue"
    SUFFICIENT = "sufficient"


ABOUT: Mapping[CostCause | MissCause, str] = {
    CostCause.DEMAND: "ready capacity that the demand of the minute used",
    CostCause.RESERVE: "the margin of utilization above that demand",
    CostCause.FORECAST: "capacity for bursts or a rise that demand did not reach",
    CostCause.HOLDS: "capacity that a higher earlier target kept",
    CostCause.DERATING: "capacity added because instances count with less than predicted",
    CostCause.SPARE: "rounding to instances, minimums, all surplus of policies without targets",
    CostCause.STARTS: "instances that start or switch roles",
    CostCause.OVERLAPS: "instances that finish their requests and leave",
    CostCause.IDLE_GPUS: "GPUs of rented nodes without an instance",
    MissCause.NOT_ORDERED: "demand exceeded the ready capacity, and nothing was starting",
    MissCause.STARTING: "demand exceeded the ready capacity, and instances were starting",
    MissCause.QUEUE: "capacity sufficed, but requests of an earlier shortage still waited",
    MissCause.SUFFICIENT: "capacity sufficed: bursts, long requests or slow engines",
}


@dataclass(frozen=True, slots=True)
class Causes:
    """usd: rent by cause; the sum is the whole rent. missed: requests that missed their SLO."""

    usd: Mapping[CostCause, float]
    missed: Mapping[MissCause, float]


class _Grid(NamedTuple):
    """Cells of `_CELL_S` from the start of the run. The last one ends with it."""

    cells: int

    def seconds(self, from_s: float, to_s: float) -> tuple[slice, Floats]:
        """The cells that a span overlaps, and the seconds of the overlap in each."""
        first, last = int(from_s / _CELL_S), int(np.ceil(to_s / _CELL_S))
        edges = _CELL_S * np.arange(first, last + 1)
        overlap = np.minimum(edges[1:], to_s) - np.maximum(edges[:-1], from_s)
        return slice(first, last), np.maximum(overlap, 0.0)


@dataclass(slots=True)
class _ModelFleet:
    """Ready and starting capacity of a model in requests/s, and the rent of ready GPUs in USD, each
    of shape (cells,)."""

    ready: Floats
    starting: Floats
    ready_usd: Floats


def causes(
    timeline: Timeline, scenario: Scenario, flows: Mapping[str, Sequence[FlowRow]],
    capacity: ComboCapacity,
) -> Causes:  # fmt: skip
    """The causes of cost and misses of a run. flows: requests by model. capacity: of combos."""
    grid = _Grid(max(1, int(np.ceil(scenario.end_s / _CELL_S))))
    usd = dict.fromkeys(CostCause, 0.0)
    missed = dict.fromkeys(MissCause, 0.0)
    fleets = _fleets(timeline, scenario, grid, capacity, usd)
    for service in scenario.cluster.services:
        rows, fleet = flows[service.model], fleets[service.model]
        demand = _demand(rows, grid)
        for cause, part in _ready_parts(service, fleet, demand, timeline, grid).items():
            usd[cause] += part
        for miss, count in _misses(rows, fleet, demand).items():
            missed[miss] += count
    return Causes(usd, missed)


def _fleets(
    timeline: Timeline, scenario: Scenario, grid: _Grid, capacity: ComboCapacity,
    usd: dict[CostCause, float],
) -> dict[str, _ModelFleet]:  # fmt: skip
    """The fleet of each model. Adds the rent of GPUs that do not serve to `usd`."""
    pools = {pool.id: pool for pool in scenario.cluster.pools}
    models = [service.model for service in scenario.cluster.services]
    fleets = {m: _ModelFleet(*(np.zeros(grid.cells) for _ in range(3))) for m in models}
    on_node: dict[str, list[NodeSpan]] = {}
    for rented in timeline.nodes:
        on_node.setdefault(rented.node, []).append(rented)
    usd[CostCause.IDLE_GPUS] = sum(rented.usd for rented in timeline.nodes)
    for span in timeline.instances:
        combo = combo_id_of(span.group)
        model, req_per_s = capacity.of(combo)
        share = req_per_s * span.gpus / _gpus(combo)
        fleet = fleets[model]
        for rented in on_node.get(span.node, ()):
            paid = _overlap(span, rented)
            if paid is None:
                continue
            cells, seconds = grid.seconds(*paid)
            gpu_usd = rented.usd_per_h / pools[rented.pool].per_node / _HOUR_S
            rent = span.gpus * gpu_usd * seconds
            usd[CostCause.IDLE_GPUS] -= float(rent.sum())
            if span.use is Use.SERVES:
                fleet.ready[cells] += share * seconds / _CELL_S
                fleet.ready_usd[cells] += rent
            elif span.use is Use.STARTS:
                fleet.starting[cells] += share * seconds / _CELL_S
                usd[CostCause.STARTS] += float(rent.sum())
            else:
                usd[CostCause.OVERLAPS] += float(rent.sum())
    return fleets


def _overlap(span: InstanceSpan, rented: NodeSpan) -> tuple[float, float] | None:
    from_s, to_s = max(span.from_s, rented.from_s), min(span.to_s, rented.to_s)
    return (from_s, to_s) if from_s < to_s else None


def _gpus(combo: str) -> int:
    _, members = parse_combo_id(combo)
    return sum(gpus * count for _, gpus, _, count in members)


def _demand(rows: Sequence[FlowRow], grid: _Grid) -> Floats:
    """Requests/s in the minute around each cell (cells,)."""
    at_s = np.array([row.arrival_s for row in rows])
    cells = np.minimum((at_s / _CELL_S).astype(np.int64), grid.cells - 1)
    counts = np.bincount(cells, [row.requests for row in rows], grid.cells)
    window = np.ones(min(_SMOOTH_CELLS, grid.cells))
    known = np.convolve(np.ones(grid.cells), window, mode="same")
    rates: Floats = np.convolve(counts, window, mode="same") / known / _CELL_S
    return rates


def _ready_parts(
    service: Service, fleet: _ModelFleet, demand: Floats, timeline: Timeline, grid: _Grid
) -> dict[CostCause, float]:
    """The rent of ready GPUs by cause."""
    need, target, derate = _planned(service.model, timeline, grid)
    margin = 1.0 / service.utilization
    # Each level is the capacity up to which rent has that cause; a lower level is no level.
    levels = (
        (CostCause.DEMAND, demand),
        (CostCause.RESERVE, demand * margin),
        (CostCause.FORECAST, need * margin),
        (CostCause.HOLDS, target * margin),
        (CostCause.DERATING, target * margin / derate),
        (CostCause.SPARE, np.full(grid.cells, np.inf)),
    )
    below = np.zeros(grid.cells)
    per_unit = np.divide(fleet.ready_usd, fleet.ready, np.zeros(grid.cells), where=fleet.ready > 0)
    parts = {}
    for cause, level in levels:
        upto = np.clip(level, below, np.maximum(below, fleet.ready))
        parts[cause] = float((per_unit * (upto - below)).sum())
        below = upto
    return parts


def _planned(model: str, timeline: Timeline, grid: _Grid) -> tuple[Floats, Floats, Floats]:
    """Need, target and derating of a model at the start of each cell (cells,); 0, 0 and 1 if the
    policy has none."""
    at_s = [-np.inf]
    rates = [PlannedRates(0.0, 0.0, 1.0)]
    for second, planned in timeline.planned:
        if model in planned:
            at_s.append(second)
            rates.append(planned[model])
    index = np.searchsorted(at_s, _CELL_S * np.arange(grid.cells), side="right") - 1
    need, target, derate = np.array(rates)[index].T
    return need, target, np.minimum(derate, 1.0)


def _misses(rows: Sequence[FlowRow], fleet: _ModelFleet, demand: Floats) -> dict[MissCause, float]:
    """Requests that missed their SLO, by the state of the fleet at their arrival."""
    short = demand > fleet.ready
    waiting = _waiting(_CELL_S * (demand - fleet.ready))
    state = np.select(
        [short & (fleet.starting > 0.0), short, waiting >= 1.0],
        [MissCause.STARTING, MissCause.NOT_ORDERED, MissCause.QUEUE],
        MissCause.SUFFICIENT,
    )
    missed = dict.fromkeys(MissCause, 0.0)
    for row in rows:
        cell = min(int(row.arrival_s / _CELL_S), len(short) - 1)
        missed[MissCause(str(state[cell]))] += row.requests - row.attained
    return missed


def _waiting(excess: Floats) -> Floats:
    """Requests that wait at the start of each cell (cells,), if demand exceeds capacity by `excess`
    requests in it."""
    total = np.concatenate(([0.0], np.cumsum(excess)[:-1]))
    waiting: Floats = total - np.minimum.accumulate(total)
    return waiting
