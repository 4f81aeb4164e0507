"""Which way to look ahead has erred least lately: rolling origins over the newest history.

Owns the comparison. At each of many past moments every strategy sees only what was known then, and
is held against what came (Tashman, Out-of-sample tests of forecasting accuracy, 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import NoForecast, Strategy
from autoscaler.estimate.forecast.history import Rates

AUTO = "auto"
_ORIGINS = 48
_LEAST_GAIN = 0.1
_SURELY = 0.95
LEAST_ORIGINS = 20


@dataclass(frozen=True, slots=True)
class Score:
    """mean_error: mean absolute error in requests/s over moments of the past. over: in
    all but one of twenty of them, no more than this was forecast beyond what came."""

    strategy: Strategy
    mean_error: float
    over: float


def scores(rates: Rates, steps: int, strategies: Sequence[Strategy]) -> tuple[Score, ...]:
    """The strategies that had an answer at every origin at which the first of `strategies` had one,
    and at least LEAST_ORIGINS of them; in the order given. Origins lie evenly in the newer half of
    `rates`, at most a day of minutes."""
    last = len(rates) - 1 - steps
    first = max(1, len(rates) // 2, len(rates) - 1440)
    if last - first < LEAST_ORIGINS:
        return ()
    every = max(1, (last - first) // _ORIGINS)
    errors: dict[int, list[float]] = {k: [] for k in range(len(strategies))}
    for origin in range(last, first, -every):
        truth = rates[origin + steps]
        if np.isnan(truth):
            continue
        for k in list(errors):
            strategy = strategies[k]
            said = strategy.predict(rates[max(0, origin + 1 - strategy.reach) : origin + 1], steps)
            if not isinstance(said, NoForecast):
                errors[k].append(said - truth)
            elif k == 0:
                break
            else:
                del errors[k]
    most = len(errors[0])
    return tuple(
        _score(strategies[k], np.array(found))
        for k, found in errors.items()
        if len(found) == most and most >= LEAST_ORIGINS
    )


def _score(strategy: Strategy, errors: Rates) -> Score:
    over = max(0.0, float(np.quantile(errors, _SURELY)))
    return Score(strategy, float(np.abs(errors).mean()), over)


def least(found: Sequence[Score], family: str) -> Score | None:
    """The least error of `family`. With AUTO any may be chosen, but its error must be less than
    that of the first, the last value, by a tenth; None otherwise."""
    if not found:
        return None
    allowed = [one for one in found if family in (AUTO, one.strategy.family)]
    best = min(allowed, key=lambda one: one.mean_error, default=None)
    if best is None or family != AUTO:
        return best
    return best if best.mean_error <= (1.0 - _LEAST_GAIN) * found[0].mean_error else None
