"""Requests per step of time, from the counters of vLLM servers in Prometheus.

The counters are read directly, one series per server, without `increase`. `increase` has no value
for a step with fewer than two samples, so a sum over servers would silently leave out the requests
of that step. The difference of two samples is the number of requests between them, at any distance.
A step without a sample is a gap, not a step without requests. A step may also end long after its
last sample. So the counter is interpolated between the times of its samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.ports.metric_servers import address_of, serving
from streams.ports.vllm_queries import VLLM_SOURCE, MetricSource, finished_query, sampled_query

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
AskRange = Callable[[str, float, float, float], list[dict[str, Any]]]
"""A range query. Takes PromQL, from and to in s since the epoch, and the step in s; returns the
result matrix.
"""

_TIMES_A_STEP = 12  # a step's last sample is timed to a twelfth of the step
_GAP, _NEAR = 1.2, 0.05  # steps: a longer time between samples is a gap; a smaller part is rounding
_CHUNK = 2_000  # steps per query, which limits the size of an answer


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps of `step_s` seconds from `from_s` (s since the epoch)."""

    from_s: float
    step_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests that the servers of one `model_name` finished, per step. gaps: steps of which a
    server has no sample for longer than a step, although it had one before and one after. first:
    first step with a sample. end: number of steps until the last sample."""

    counts: Floats
    gaps: Bools
    first: int
    end: int


def read_requests(
    ask: AskRange, grid: Grid, names: Iterable[str] = (), source: MetricSource = VLLM_SOURCE
) -> tuple[dict[str, ServedRequests], frozenset[str]]:
    """Finished requests by name of the model, and the addresses of servers that only prefill, whose
    requests are counted where they are decoded. names: names to read; empty = all. A name without
    series is missing in the result. LookupError, TypeError, ValueError: not an answer of
    Prometheus."""
    names = tuple(names)
    counters = _counters(ask, grid, finished_query(names, grid.step_s, source))
    every_s = max(1.0, grid.step_s / _TIMES_A_STEP)
    times = _counters(ask, grid, sampled_query(names, grid.step_s, every_s, source))
    by_name: dict[str, list[tuple[dict[str, str], Floats, Floats]]] = {}
    for labels, values in counters.items():
        own = dict(labels)
        edges_s: Floats = grid.from_s + grid.step_s * np.arange(grid.steps + 1, dtype=np.float64)
        timed = times.get(labels)
        at_s = edges_s
        if timed is not None:
            near = np.clip(timed, edges_s - grid.step_s, edges_s)
            at_s = np.where(np.isfinite(timed), near, edges_s)
        steps: Floats = (at_s - grid.from_s) / grid.step_s
        by_name.setdefault(own.get(source.engine.model, ""), []).append((own, values, steps))
    found: dict[str, ServedRequests] = {}
    prefill: set[str] = set()
    for name, series in by_name.items():
        labelled = [labels for labels, _, _ in series]
        kept = serving(labelled)
        prefill |= {address_of(labels) for labels in labelled} - {one.address for one in kept}
        for server in kept:
            copies = [_requests(*series[place][1:]) for place in server.places]
            one = _of_copies(copies)
            found[name] = _added(found[name], one) if name in found else one
    return found, frozenset(prefill - {""})


def _counters(ask: AskRange, grid: Grid, query: str) -> dict[tuple[tuple[str, str], ...], Floats]:
    """Counter values at the edges of all steps, by labels; NaN = no sample in the step before."""
    found: dict[tuple[tuple[str, str], ...], Floats] = {}
    for begin in range(0, grid.steps + 1, _CHUNK):
        end = min(begin + _CHUNK - 1, grid.steps)
        begin_s, end_s = (grid.from_s + edge * grid.step_s for edge in (begin, end))
        for one in ask(query, begin_s, end_s, grid.step_s):
            labels = tuple(sorted((str(k), str(v)) for k, v in one["metric"].items()))
            values = found.setdefault(labels, np.full(grid.steps + 1, np.nan))
            for at_s, text in one["values"]:
                edge = round((float(at_s) - grid.from_s) / grid.step_s)
                value = float(text)
                if 0 <= edge <= grid.steps and math.isfinite(value) and value >= 0.0:
                    values[edge] = value
    return found


def _requests(counter: Floats, at: Floats) -> ServedRequests:
    """Requests per step of one counter. at: time of each value, in steps. Requests between two
    samples are spread evenly over the time between them. A lower value means a restart at zero."""
    steps = len(counter) - 1
    gaps = np.zeros(steps, bool)
    known = np.flatnonzero(np.isfinite(counter))
    if not len(known):
        return ServedRequests(np.zeros(steps), gaps, steps, 0)
    grown = np.diff(counter[known], prepend=counter[known[0]])
    grown = np.where(grown >= 0.0, grown, counter[known])
    times = at[known]
    total = np.interp(np.arange(steps + 1), times, np.cumsum(grown))
    for left, right in itertools.pairwise(times):
        if right - left > _GAP:
            gaps[max(0, math.floor(left + _NEAR)) : math.ceil(right - _NEAR)] = True
    first, end = max(0, math.floor(times[0] + _NEAR)), math.ceil(times[-1] - _NEAR)
    return ServedRequests(np.diff(total), gaps, first, end)


def _of_copies(copies: list[ServedRequests]) -> ServedRequests:
    """One server from copies of its series.

    Each step has the mean of the copies without a gap there.
    """
    if len(copies) == 1:
        return copies[0]
    counts = np.array([copy.counts for copy in copies])
    steps = np.arange(counts.shape[1])
    begun = np.array([steps >= copy.first for copy in copies])
    whole = begun & ~np.array([copy.gaps for copy in copies])
    used = np.where(whole.any(axis=0), whole, begun)
    mean = (counts * used).sum(axis=0) / np.maximum(1, used.sum(axis=0))
    gaps = np.all([copy.gaps | (steps < copy.first) for copy in copies], axis=0) & begun.any(axis=0)
    first, end = min(copy.first for copy in copies), max(copy.end for copy in copies)
    return ServedRequests(mean, gaps, first, end)


def _added(one: ServedRequests, other: ServedRequests) -> ServedRequests:
    counts, gaps = one.counts + other.counts, one.gaps | other.gaps
    return ServedRequests(counts, gaps, min(one.first, other.first), max(one.end, other.end))


def trace_begin(found: Mapping[str, ServedRequests]) -> int:
    """First step in which any server had a sample."""
    return min((one.first for one in found.values()), default=0)
