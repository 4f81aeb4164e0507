"""The score of one policy on one trace, as a backtest reports it.

The definitions are equal for all policies:

cost_usd: billed node time from the controller's start to the end of the trace. gpu_hours: GPU time
of these nodes. slo_attainment: attained / arrived. goodput_tokens_per_s: output tokens of attaining
requests per second of the trace. unserved_fraction: share of requests without a full answer.
reaction_s: mean length of the periods in which demand (mean of the two minutes around each moment)
exceeds the ordered capacity; 0 without such a period. reversals_per_h: highest number of reversals
of one model within one hour; a reversal is a scale-out after a scale-in, or the reverse. starts:
launched instances. switches: role switches in the plans; the switched instances start next to the
old ones, so they also count as starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Lengths
from autoscaler.simulation.cost_causes import Causes, causes
from autoscaler.simulation.run_measures import (
    ComboCapacity,
    flows_of,
    model_moves,
    ordered_capacity,
    reversals,
)
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import FlowRow, Timeline

_SMOOTH_S = 120
_STEP_S = 10
_MOST_POINTS = 240


@dataclass(frozen=True, slots=True)
class ModelScore:
    """Counts of requests of one model."""

    requests: int
    served: int
    attained: int


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the span of the trace that starts at at_s. gpus_by_type: rented GPUs."""

    at_s: float
    req_per_s: float
    gpus_by_type: Mapping[str, float]
    usd_per_h: float
    attained: int
    arrived: int


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one run. `models`: scores by model name; `course`: means over time; `causes`:
    what the cost paid for, and why requests missed their SLO."""

    cost_usd: float
    gpu_hours: float
    goodput_tokens_per_s: float
    reaction_s: float
    reversals_per_h: float
    starts: int
    switches: int
    models: Mapping[str, ModelScore]
    course: tuple[Point, ...]
    causes: Causes

    @property
    def requests(self) -> int:
        """Number of arrived requests."""
        return sum(one.requests for one in self.models.values())

    @property
    def slo_attainment(self) -> float:
        """Attained / arrived; 1 without arrivals."""
        asked = self.requests
        return sum(one.attained for one in self.models.values()) / asked if asked else 1.0

    @property
    def unserved_fraction(self) -> float:
        """Share of the arrived requests without a full answer; 0 without arrivals."""
        asked = self.requests
        return 1.0 - sum(one.served for one in self.models.values()) / asked if asked else 0.0


def score(
    timeline: Timeline,
    scenario: Scenario,
    lengths: Mapping[str, Lengths],
) -> Score:
    """The score of a run of `scenario`, whose cluster holds the declared services."""
    cluster = scenario.cluster
    mine = {service.model: flows_of(service, timeline) for service in cluster.services}
    rows = [row for found in mine.values() for row in found]
    models = {
        model: ModelScore(
            sum(row.requests for row in found),
            sum(row.served for row in found),
            round(sum(row.attained for row in found)),
        )
        for model, found in mine.items()
    }
    means = {model: found.requests / scenario.duration_s for model, found in models.items()}
    capacity = ComboCapacity(cluster, lengths, means)
    span_s = scenario.lead_s, scenario.end_s
    spells, most_reversals = list[float](), 0
    for model in mine:
        ordered = ordered_capacity(timeline, capacity, model)
        spells += _overload_spells(mine[model], ordered.at_s, ordered.values, span_s)
        moves = model_moves(model, timeline, capacity)
        most_reversals = max(most_reversals, reversals(moves).most_per_h)
    gpus = {pool.id: pool.per_node for pool in cluster.pools}
    hours = sum((s.to_s - s.from_s) / 3600.0 * gpus[s.pool] for s in timeline.nodes)
    return Score(
        cost_usd=sum(span.usd for span in timeline.nodes),
        gpu_hours=hours,
        goodput_tokens_per_s=sum(row.tokens for row in rows) / scenario.duration_s,
        reaction_s=sum(spells) / len(spells) if spells else 0.0,
        reversals_per_h=float(most_reversals),
        starts=timeline.launches,
        switches=sum(len(found.change.switches) for _, found in timeline.plan_answers),
        models=models,
        course=_course(rows, timeline, cluster, scenario),
        causes=causes(timeline, scenario, mine, capacity),
    )


def _overload_spells(
    rows: Sequence[FlowRow],
    ordered_s: Sequence[float],
    values: Sequence[float],
    span_s: tuple[float, float],
) -> list[float]:
    """Lengths in s of the periods in which the smoothed rate exceeds the ordered capacity."""
    seconds = np.arange(int(span_s[0]), int(span_s[1]))
    if not rows or not len(seconds):
        return []
    half = _SMOOTH_S / 2
    low = np.maximum(seconds - half, span_s[0])
    high = np.minimum(seconds + half, span_s[1])
    arrivals_s = np.array([row.arrival_s for row in rows])
    order = np.argsort(arrivals_s, kind="stable")
    upto = np.concatenate(([0], np.cumsum(np.array([row.requests for row in rows])[order])))
    arrivals_s = arrivals_s[order]
    count = upto[np.searchsorted(arrivals_s, high)] - upto[np.searchsorted(arrivals_s, low)]
    rate = count / np.maximum(high - low, 1.0)
    index = np.searchsorted(np.array(ordered_s), seconds, side="right")
    capacity = np.concatenate(([0.0], np.array(values)))[index]
    short = np.concatenate(([False], rate > capacity, [False]))
    edges = np.flatnonzero(short[1:] != short[:-1])
    return [float(b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _course(
    rows: Sequence[FlowRow], timeline: Timeline, cluster: Cluster, scenario: Scenario
) -> tuple[Point, ...]:
    """Demand and fleet over time, in at most `_MOST_POINTS` equal spans."""
    width = max(_STEP_S, scenario.duration_s / _MOST_POINTS)
    spans = max(1, int(np.ceil(scenario.duration_s / width - 1e-9)))
    edges = scenario.lead_s + width * np.arange(spans + 1)
    at_s = np.array([row.arrival_s for row in rows])
    arrived, _ = np.histogram(at_s, edges, weights=np.array([row.requests for row in rows]))
    attained, _ = np.histogram(at_s, edges, weights=np.array([row.attained for row in rows]))
    pools = {pool.id: pool for pool in cluster.pools}
    gpus = {pool.gpu.name: np.zeros(spans) for pool in cluster.pools}
    usd = np.zeros(spans)
    for span in timeline.nodes:
        overlap = np.minimum(edges[1:], span.to_s) - np.maximum(edges[:-1], span.from_s)
        share = np.maximum(overlap, 0.0) / width
        gpus[pools[span.pool].gpu.name] += share * pools[span.pool].per_node
        usd += share * span.usd_per_h
    return tuple(
        Point(
            float(edges[i] - scenario.lead_s),
            float(arrived[i] / width),
            {name: float(count[i]) for name, count in gpus.items()},
            float(usd[i]),
            int(attained[i]),
            int(arrived[i]),
        )
        for i in range(spans)
    )
