"""Arrivals of a scenario, and statistics of their lengths and rates.

Callers read recorded traces from files and pass them as `Arrival`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.cluster import Service
from autoscaler.domain.workload import LEVELS, Lengths


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request.

    at_s: domain seconds from the start of the scenario's demand. media: media in the request, for a
    model of components. score: difficulty, for a service that routes to several models. session:
    shared by the requests of one conversation; each turn waits until the previous turn has ended.
    delay_s: seconds from the end of the previous turn to this turn. None: the turn arrives at at_s,
    or at the end of the previous turn if that is later. blocks: hashes of the full blocks of the
    prompt, empty if the trace has none.
    """

    at_s: float
    model: str
    input_tokens: int
    output_tokens: int
    media: frozenset[str] = frozenset()
    score: float | None = None
    session: int | None = None
    delay_s: float | None = None
    blocks: Sequence[int] = ()


def fitting_arrivals(arrivals: Iterable[Arrival], services: Iterable[Service]) -> list[Arrival]:
    """The arrivals that a gateway accepts. Without this filter, one refused prompt of a million
    tokens would distort the mean length of the served requests."""
    longest = {service.model: service.max_len_tokens for service in services}
    return [a for a in arrivals if a.input_tokens + a.output_tokens <= longest[a.model]]


def measured_lengths(arrivals: Iterable[Arrival]) -> dict[str, Lengths]:
    """Means and spreads of the lengths, per model."""
    by_model: dict[str, list[tuple[int, int]]] = {}
    for arrival in arrivals:
        pair = arrival.input_tokens, arrival.output_tokens
        by_model.setdefault(arrival.model, []).append(pair)
    return {model: lengths_of(np.array(pairs, dtype=float)) for model, pairs in by_model.items()}


def lengths_of(pairs: npt.NDArray[np.float64]) -> Lengths:
    """Means and spreads of the lengths. pairs, (n, 2): input and output tokens of each request."""
    inputs, outputs = (tuple(map(float, np.quantile(pairs[:, i], LEVELS))) for i in (0, 1))
    means = pairs.mean(axis=0)
    return Lengths(float(means[0]), float(means[1]), inputs, outputs)


def p99_10s_req_per_s(arrivals_s: Sequence[float], span_s: tuple[float, float]) -> float:
    """99th percentile of the requests/s over all full spans of 10 s; 0 if there is no full span."""
    bins = int((span_s[1] - span_s[0]) / 10.0)
    if bins < 1:
        return 0.0
    counts = [0] * bins
    for at_s in arrivals_s:
        index = int((at_s - span_s[0]) / 10.0)
        if 0 <= index < bins:
            counts[index] += 1
    counts.sort()
    return counts[min(bins - 1, int(0.99 * bins))] / 10.0
