"""A simulated run for the page, made from its timeline.

The demand, attainment and latencies are those of the requests that arrived in each span. Capacity
includes instances that are still starting (`autoscaler.simulation.run_measures`), because baseline
policies do not report which instances are ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoscaler.domain.cluster import Service
from autoscaler.domain.workload import Lengths
from autoscaler.simulation.run_measures import (
    ComboCapacity,
    cost_usd,
    flows_of,
    ordered_capacity,
)
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Ending
from autoscaler.simulation.timeline import Timeline
from streams.console.decision_book import decision_row
from streams.console.history import FLEET
from streams.console.rounding import rounded
from streams.tools.playback.recorded_run import model_limits, run_json

_MOST_SPANS = 720
_LEAST_S = 10.0
_LATE_PERCENT = 95
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run for the page. origin_ms: second 0 of the simulation in ms since the epoch."""

    run: dict[str, Any]
    origin_ms: int


def timeline_run(
    name: str, timeline: Timeline, scenario: Scenario, lengths: Mapping[str, Lengths]
) -> RecordedRun:
    """The run of policy `name`. lengths: as in `policy_score.score`."""
    width_s = max(_LEAST_S, scenario.end_s / _MOST_SPANS)
    # The bill begins with the controller, before the first request.
    edges = np.arange(0.0, scenario.end_s + width_s, width_s)
    t = [int(timeline.origin_ms + 1000 * at_s) for at_s in edges[1:]]
    cluster = scenario.cluster
    history: dict[str, Any] = {}
    arrived_all, met_all = np.zeros(len(t)), np.zeros(len(t))
    rates = {s.model: _arrived(timeline, s) / scenario.duration_s for s in cluster.services}
    capacity = ComboCapacity(cluster, lengths, rates)
    for service in cluster.services:
        columns, arrived, met = _model_columns(timeline, service, edges, width_s)
        ordered = ordered_capacity(timeline, capacity, service.model)
        columns["wanted"] = [rounded(ordered.value(float(at_s))) for at_s in edges[1:]]
        history[service.model] = {"t": t, **columns}
        arrived_all += arrived
        met_all += met
    usd, nodes = np.zeros(len(t)), np.zeros(len(t))
    for span in timeline.nodes:
        overlap_s = np.minimum(edges[1:], span.to_s) - np.maximum(edges[:-1], span.from_s)
        share = np.maximum(overlap_s, 0.0) / width_s
        usd += share * span.usd_per_h
        nodes += share
    history[FLEET] = {
        "t": t,
        "spent": [round(float(v), _DIGITS) for v in np.cumsum(usd * width_s / 3600.0)],
        "ended": np.cumsum(arrived_all).tolist(),
        "met": np.cumsum(met_all).tolist(),
        "usd": [rounded(float(v)) for v in usd],
        "demand": [rounded(float(v)) for v in arrived_all / width_s],
        "ready": [None] * len(t),
        "attained": _ratio(met_all, arrived_all),
        "nodes": [rounded(float(v)) for v in nodes],
    }
    spans = [
        [s.node, s.pool, *(int(timeline.origin_ms + 1000 * at) for at in (s.from_s, s.to_s)),
         "serving", [], 0]
        for s in timeline.nodes
    ]  # fmt: skip
    total = float(arrived_all.sum())
    run = run_json(
        name,
        "",
        {service.model: model_limits(service) for service in cluster.services},
        history,
        [decision_row(decision, {}) for decision in timeline.decisions],
        spans,
        cost_usd(timeline),
        float(met_all.sum()) / total if total else None,
    )
    return RecordedRun(run, timeline.origin_ms)


def _arrived(timeline: Timeline, service: Service) -> float:
    return float(sum(row.requests for row in flows_of(service, timeline)))


def _model_columns(
    timeline: Timeline, service: Service, edges: Any, width_s: float
) -> tuple[dict[str, list[Any]], Any, Any]:
    """Columns of one model, its arrived requests and its requests that met the SLO, by span."""
    rows = flows_of(service, timeline)
    at_s = np.array([row.arrival_s for row in rows])
    arrived, _ = np.histogram(at_s, edges, weights=np.array([row.requests for row in rows]))
    met, _ = np.histogram(at_s, edges, weights=np.array([row.attained for row in rows]))
    nothing = [None] * len(arrived)
    ttft, tpot = _latencies(timeline, service, edges)
    columns: dict[str, list[Any]] = {
        "demand": [rounded(float(v)) for v in arrived / width_s],
        "target": nothing,
        "ready": nothing,
        "usd": nothing,
        "attained": _ratio(met, arrived),
        "ended": np.cumsum(arrived).tolist(),
        "met": np.cumsum(met).tolist(),
        "ttft": ttft,
        "tpot": tpot,
    }
    return columns, arrived, met


def _latencies(timeline: Timeline, service: Service, edges: Any) -> tuple[list[Any], list[Any]]:
    """p95 of TTFT and of the time per output token in ms, by span of arrival; None without served
    requests."""
    found: list[list[Any]] = []
    rows = [
        row
        for row in timeline.requests
        if row.model == service.model
        and row.outcome == Ending.SERVED
        and row.first_token_s is not None
        and row.end_s is not None
    ]
    index = np.digitize([row.arrival_s for row in rows], edges) - 1
    for values in (
        [1000.0 * ((row.first_token_s or 0.0) - row.arrival_s) for row in rows],
        [
            1000.0 * ((row.end_s or 0.0) - (row.first_token_s or 0.0)) / (row.output_tokens - 1)
            if row.output_tokens > 1
            else 0.0
            for row in rows
        ],
    ):
        by_span: list[list[float]] = [[] for _ in range(len(edges) - 1)]
        for span, value in zip(index, values, strict=True):
            if 0 <= span < len(by_span):
                by_span[span].append(value)
        found.append(
            [rounded(float(np.percentile(v, _LATE_PERCENT))) if v else None for v in by_span]
        )
    return found[0], found[1]


def _ratio(part: Any, whole: Any) -> list[float | None]:
    return [rounded(float(a / b)) if b > 0.0 else None for a, b in zip(part, whole, strict=True)]
