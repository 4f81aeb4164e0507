"""Requests per step of time, from the counters of vLLM servers in Prometheus.

The counters are read directly, one series per server, without `increase`. `increase` has no value
for a step with fewer than two samples, so a sum over servers would silently leave out the requests
of that step. The difference of two samples is the number of requests between them, at any distance.
A step without a sample is a gap, not a step without requests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.ports.vllm_queries import COPY_LABELS, finished_query

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
AskRange = Callable[[str, float, float, float], list[dict[str, Any]]]
"""A range query. Takes PromQL, from and to in s since the epoch, and the step in s; returns the
result matrix.
"""

_CHUNK = 2_000  # steps per query, which limits the size of an answer


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps of `step_s` seconds from `from_s` (s since the epoch)."""

    from_s: float
    step_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests that the servers of one `model_name` finished, per step. gaps: steps in which a
    server had no sample, although it had one before and one after. first: first step with a
    sample."""

    counts: Floats
    gaps: Bools
    first: int


def read_requests(
    ask: AskRange, grid: Grid, names: Iterable[str] = ()
) -> dict[str, ServedRequests]:
    """Finished requests by `model_name`. names: its values to read; empty = all. A name without
    series is missing in the result. LookupError, TypeError, ValueError: not an answer of
    Prometheus."""
    servers: dict[tuple[tuple[str, str], ...], list[Floats]] = {}
    for labels, values in _counters(ask, grid, finished_query(names, grid.step_s)).items():
        server = tuple(pair for pair in labels if pair[0] not in COPY_LABELS)
        servers.setdefault(server, []).append(values)
    found: dict[str, ServedRequests] = {}
    for server, copies in servers.items():
        name = dict(server).get("model_name", "")
        one = _of_copies([_requests(values) for values in copies])
        found[name] = _added(found[name], one) if name in found else one
    return found


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


def _requests(counter: Floats) -> ServedRequests:
    """Requests per step of one counter. Requests between two samples are spread evenly over the
    steps between them. A lower value means a restart at zero."""
    counts = np.zeros(len(counter) - 1)
    gaps = np.zeros(len(counts), bool)
    known = np.flatnonzero(np.isfinite(counter))
    for left, right in itertools.pairwise(known):
        grown = counter[right] - counter[left]
        counts[left:right] = (grown if grown >= 0.0 else counter[right]) / (right - left)
        gaps[left:right] = right > left + 1
    return ServedRequests(counts, gaps, int(known[0]) if len(known) else len(counts))


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
    return ServedRequests(mean, gaps, min(copy.first for copy in copies))


def _added(one: ServedRequests, other: ServedRequests) -> ServedRequests:
    counts, gaps = one.counts + other.counts, one.gaps | other.gaps
    return ServedRequests(counts, gaps, min(one.first, other.first))


def trace_begin(found: Mapping[str, ServedRequests]) -> int:
    """First step in which any server had a sample."""
    return min((one.first for one in found.values()), default=0)
