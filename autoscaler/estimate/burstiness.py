"""How requests clump within seconds: what queues at engines, apart from rates that come and go.

Owns the index of dispersion of single seconds, kept as two sums that fade. Bursts of ten seconds
and more are `demand.dispersion`'s: engines must be sized for their rate, while a clump within a
second or two only waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.estimate.model_demand import ModelDemand

FADES_S = 900.0
_SIGMAS = 3.0
_LEAST_PAIRS = 60.0


@dataclass(frozen=True, slots=True)
class Clumps:
    """Sums over pairs of neighbouring seconds. total: of (difference)^2 / (sum of the two), whose
    mean is 1 for Poisson arrivals at any rate; pairs: how many, older ones counting less.
    seen_ms: end of the last second taken in."""

    pairs: float = 0.0
    total: float = 0.0
    seen_ms: int = 0


def observed(clumps: Clumps, demand: ModelDemand) -> Clumps:
    """`clumps` with the newest two seconds of `demand`; the same if they were taken in already."""
    seen_ms = demand.seen_ms or 0
    if seen_ms < clumps.seen_ms + 2000 or len(demand.recent) < 2:
        return clumps
    (one_s, newest), (two_s, both) = demand.recent[:2]
    if (one_s, two_s) != (1, 2) or not both:
        return Clumps(clumps.pairs, clumps.total, seen_ms)
    fade = math.exp(-2.0 / FADES_S)
    difference = 2 * newest - both
    return Clumps(
        clumps.pairs * fade + 1.0, clumps.total * fade + difference * difference / both, seen_ms
    )


def arrival_cv(clumps: Clumps) -> float:
    """The coefficient of variation of gaps that clumps like these stand for; 1 unless they are
    beyond chance."""
    if clumps.pairs < _LEAST_PAIRS:
        return 1.0
    index = clumps.total / clumps.pairs
    error = index * math.sqrt(2.0 / clumps.pairs)
    return math.sqrt(index) if index - _SIGMAS * error > 1.0 else 1.0
