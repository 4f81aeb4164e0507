"""Workload drift: mean tokens of a request on a logarithmic grid, with hysteresis.

Owns which lengths a model is planned at. Knows nothing of the tables that follow from it.
"""

from __future__ import annotations

import math

from autoscaler.demand.windows import NoData, WindowStats
from autoscaler.domain.workload import Lengths

STEP = 1.5
LEAVE = 0.75
MIN_SAMPLES = 50
_FURTHEST = 12


def drifted(current: Lengths, declared: Lengths, seen: WindowStats) -> Lengths:
    """The lengths to plan at: `current` unless the window clearly says another.

    The grid is `declared` times powers of 1.5. A mean leaves its lengths when it is more than 0.75
    steps (36%) from it, so that one that lies on a border (0.5 steps) does not flap; fewer
    than 50 arrivals or completions say nothing.
    """
    if isinstance(seen, NoData):
        return current
    inputs = seen.mean_input_tokens if seen.arrivals >= MIN_SAMPLES else None
    outputs = seen.mean_output_tokens if seen.completions >= MIN_SAMPLES else None
    return Lengths(
        _snap(current.input_tokens, declared.input_tokens, inputs),
        _snap(current.output_tokens, declared.output_tokens, outputs),
    )


def _snap(current: float, declared: float, seen: float | None) -> float:
    if seen is None or seen <= 0:
        return current
    if abs(math.log(seen / current)) <= LEAVE * math.log(STEP):
        return current
    step = round(math.log(seen / declared) / math.log(STEP))
    return max(1.0, declared * STEP ** max(-_FURTHEST, min(_FURTHEST, step)))
