"""The demand of a trace as spans of constant demand, prices and node limits.

A trace has one span for each minute. If there are more spans than a plan can have, neighbours are
merged and planned for the larger demand of both; the cheapest merges come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.cluster import Pool
from autoscaler.optimizer.array_types import Floats
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.supply_script import NodesLimited, PriceChanged

SPAN_S = 60.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Span:
    """A span of the trace, from begin_s to end_s after its start. req_per_s: demand by model.
    usd_per_node: price of a node of each pool for the whole span. most_nodes: largest number of
    nodes of each pool."""

    begin_s: float
    end_s: float
    req_per_s: Mapping[str, float]
    usd_per_node: Mapping[str, float]
    most_nodes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Steps:
    """A value over time: `values[i]` from `at_s[i]` on. The first time is minus infinity."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]

    def pieces(self, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        """(value, seconds) of each piece between begin_s and end_s."""
        ends = (*self.at_s[1:], math.inf)
        found = []
        for value, from_s, to_s in zip(self.values, self.at_s, ends, strict=True):
            overlap_s = min(to_s, end_s) - max(from_s, begin_s)
            if overlap_s > 0.0:
                found.append((value, overlap_s))
        return found

    def integral(self, begin_s: float, end_s: float) -> float:
        """The sum of value x hours between begin_s and end_s."""
        return sum(value * each_s / _HOUR_S for value, each_s in self.pieces(begin_s, end_s))


@dataclass(frozen=True, slots=True)
class Market:
    """Prices and limits of pools over time. usd_per_h, nodes: price of a node and largest number of
    nodes over time, by pool."""

    usd_per_h: Mapping[str, Steps]
    nodes: Mapping[str, Steps]

    def usd(self, pool: str, begin_s: float, end_s: float) -> float:
        """Price of one node of `pool` from begin_s to end_s."""
        return self.usd_per_h[pool].integral(begin_s, end_s)


def market_of(scenario: Scenario, pools: Sequence[Pool]) -> Market:
    """Prices and node limits of `pools`, in seconds from the start of the trace."""
    usd = {pool.id: [(-math.inf, pool.price_usd_per_h)] for pool in pools}
    nodes = {pool.id: [(-math.inf, float(pool.max_nodes))] for pool in pools}
    most = {pool.id: pool.max_nodes for pool in pools}
    for event in sorted(scenario.script, key=lambda event: event.at_s):
        at_s = event.at_s - scenario.lead_s
        if isinstance(event, PriceChanged) and event.pool in usd:
            usd[event.pool].append((at_s, event.usd_per_node_h))
        if isinstance(event, NodesLimited) and event.pool in nodes:
            nodes[event.pool].append((at_s, float(min(event.nodes, most[event.pool]))))
    return Market(
        {pool: Steps(*zip(*found, strict=True)) for pool, found in usd.items()},
        {pool: Steps(*zip(*found, strict=True)) for pool, found in nodes.items()},
    )


def minutes_of(scenario: Scenario, models: Sequence[str]) -> Floats:
    """Mean requests/s of each minute and model (T, M). The last minute may be shorter."""
    count = max(1, math.ceil(scenario.duration_s / SPAN_S - 1e-9))
    index = {model: m for m, model in enumerate(models)}
    arrived = np.zeros((count, len(models)))
    for arrival in scenario.arrivals:
        if arrival.model in index:
            arrived[min(count - 1, int(arrival.at_s / SPAN_S)), index[arrival.model]] += 1
    seconds = np.full(count, SPAN_S)
    seconds[-1] = scenario.duration_s - SPAN_S * (count - 1)
    weights = np.array([scenario.weight_of(model) for model in models])
    rates: Floats = weights * arrived / seconds[:, None]
    return rates


def merged(rates: Floats, worth: Floats, most: int) -> list[tuple[int, int]]:
    """Merge adjacent minutes to at most `most` spans, first the minutes whose merging adds least to
    the cost of serving each span at its peak rate. Returns the minutes (first, end) of each span.
    rates (T, M): requests/s of each minute and model. worth (M,): price of one request/s of each
    model."""
    edges = [(t, t + 1) for t in range(len(rates))]
    peaks = [worth * row for row in rates]
    while len(edges) > most:
        top = np.array(peaks)
        length = np.array([end - first for first, end in edges], dtype=np.float64)
        both = np.maximum(top[1:], top[:-1])
        alone = length[1:] * top[1:].sum(axis=1) + length[:-1] * top[:-1].sum(axis=1)
        added = (length[1:] + length[:-1]) * both.sum(axis=1) - alone
        # Merge many pairs per round, because one per round takes quadratic time. Neighbours of a
        # merged pair wait for the next round.
        taken = np.zeros(len(edges), dtype=np.bool_)
        order, join = np.argsort(added, kind="stable"), set[int]()
        for i in order[: max(1, (len(edges) - most) // 4 + 1)]:
            if not taken[i] and not taken[i + 1] and len(edges) - len(join) > most:
                taken[i] = taken[i + 1] = True
                join.add(int(i))
        edges, peaks = _joined(edges, peaks, join)
    return edges


def _joined(
    edges: list[tuple[int, int]], peaks: list[Floats], join: set[int]
) -> tuple[list[tuple[int, int]], list[Floats]]:
    found, tops, i = [], [], 0
    while i < len(edges):
        if i in join:
            found.append((edges[i][0], edges[i + 1][1]))
            tops.append(np.maximum(peaks[i], peaks[i + 1]))
            i += 2
        else:
            found.append(edges[i])
            tops.append(peaks[i])
            i += 1
    return found, tops


def spans_of(
    scenario: Scenario,
    models: Sequence[str],
    rates: Floats,
    edges: Sequence[tuple[int, int]],
    market: Market,
    lowest: bool,
) -> list[Span]:
    """The spans between the minutes `edges`. lowest: whether to use the lowest demand and prices of
    each span and its largest limits, for a bound, instead of the largest demand and the lowest
    limits."""
    pick: Callable[[Floats], Floats] = (
        (lambda rows: rows.min(axis=0)) if lowest else (lambda rows: rows.max(axis=0))
    )
    choose = max if lowest else min
    found = []
    for first, end in edges:
        begin_s, end_s = first * SPAN_S, min(end * SPAN_S, scenario.duration_s)
        asked = pick(rates[first:end])
        usd = {}
        for pool, steps in market.usd_per_h.items():
            low = min(value for value, _ in steps.pieces(begin_s, end_s))
            whole = low * (end_s - begin_s) / _HOUR_S
            usd[pool] = whole if lowest else steps.integral(begin_s, end_s)
        nodes = {
            pool: int(choose(value for value, _ in steps.pieces(begin_s, end_s)))
            for pool, steps in market.nodes.items()
        }
        demand = dict(zip(models, asked.tolist(), strict=True))
        found.append(Span(begin_s, end_s, demand, usd, nodes))
    return found
