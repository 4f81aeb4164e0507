"""Chooses the forecaster with the smallest recent error. Every forecaster makes forecasts at many
past minutes (rolling origins), each from the data before that minute. The forecasts are compared
with the true values (Tashman, Out-of-sample tests of forecasting accuracy, 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import Forecaster, NoForecast
from autoscaler.estimate.forecast.history import Rates

AUTO = "auto"
_ORIGINS = 48
"""Largest number of past moments at which forecasters are compared, which limits the time of a
choice."""
_MIN_GAIN = 0.1
"""Share by which a forecaster's mean error must be below that of the last value; a smaller gain may
be chance."""
_OVERSHOOT_QUANTILE = 0.95
"""Quantile of past errors that is subtracted from a forecast: 19 of 20 forecasts are then not too
high."""
MIN_ORIGINS = 20
"""Past moments from which the quantile of 95% exists."""


@dataclass(frozen=True, slots=True)
class ForecasterScore:
    """The errors of one forecaster. mean_error: mean absolute error in requests/s over past
    minutes. overshoot: 95% quantile of (forecast - true rate) in requests/s, at least 0."""

    forecaster: Forecaster
    mean_error: float
    overshoot: float


def score_forecasters(
    rates: Rates, steps: int, forecasters: Sequence[Forecaster]
) -> tuple[ForecasterScore, ...]:
    """Scores of `forecasters`, in their order.

    A forecaster gets a score only if it has a forecast at every origin at which the first
    forecaster has one, and if there are at least MIN_ORIGINS such origins. Origins are spread
    evenly over the newer half of `rates`, at most a day.
    """
    last = len(rates) - 1 - steps
    first = max(1, len(rates) // 2, len(rates) - 1440)
    if last - first < MIN_ORIGINS:
        return ()
    every = max(1, (last - first) // _ORIGINS)
    errors: dict[int, list[float]] = {k: [] for k in range(len(forecasters))}
    for origin in range(last, first, -every):
        truth = rates[origin + steps]
        if np.isnan(truth):
            continue
        for k in list(errors):
            forecaster = forecasters[k]
            predicted = forecaster.predict(
                rates[max(0, origin + 1 - forecaster.lookback) : origin + 1], steps
            )
            if not isinstance(predicted, NoForecast):
                errors[k].append(predicted - truth)
            elif k == 0:
                break
            else:
                del errors[k]
    most = len(errors[0])
    return tuple(
        _score(forecasters[k], np.array(found))
        for k, found in errors.items()
        if len(found) == most and most >= MIN_ORIGINS
    )


def _score(forecaster: Forecaster, errors: Rates) -> ForecasterScore:
    overshoot = max(0.0, float(np.quantile(errors, _OVERSHOOT_QUANTILE)))
    return ForecasterScore(forecaster, float(np.abs(errors).mean()), overshoot)


def best_score(scores: Sequence[ForecasterScore], family: str) -> ForecasterScore | None:
    """The score of `family` with the smallest error. AUTO allows every family, but then the error
    must be at least a tenth below that of the last-value forecaster. None if no score qualifies."""
    if not scores:
        return None
    allowed = [one for one in scores if family in (AUTO, one.forecaster.family)]
    best = min(allowed, key=lambda one: one.mean_error, default=None)
    if best is None or family != AUTO:
        return best
    return best if best.mean_error <= (1.0 - _MIN_GAIN) * scores[0].mean_error else None
