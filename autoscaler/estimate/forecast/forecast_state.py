"""The forecast of one model, updated each tick.

The chosen forecaster makes a forecast once a minute. Every half hour the forecaster is chosen
again, by its errors on held-back minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks
from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.forecasters import LAST_VALUE, forecaster_by_name, forecasters
from autoscaler.estimate.forecast.history import MINUTE_S, History, Rates, extend_history
from autoscaler.estimate.forecast.selection import AUTO, best_score, score_forecasters
from autoscaler.estimate.forecast.trend import detect_rise

NONE = "none"
_BLOCK_MS = BLOCK_S * 1000  # one block in ms
_CHOOSE_EVERY = 30
"""Minutes between two choices of the forecaster, because a choice evaluates the whole history."""
_RETRY_EVERY = 5  # minutes between attempts to choose while the history is too short
_MAX_GROWTH = 2.0  # limit of a forecast, in multiples of the highest minute in the history


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast for `at_ms`, when an instance started now would be ready.

    lower_bound_req_per_s: a bound below the true rate in 19 of 20 held-back minutes.
    error_req_per_s: mean absolute error of this forecaster on held-back minutes;
    last_error_req_per_s: mean absolute error of the last-value forecaster. forecaster: name of this
    forecaster.
    """

    lower_bound_req_per_s: float
    at_ms: int
    error_req_per_s: float
    last_error_req_per_s: float
    forecaster: str


@dataclass(frozen=True, slots=True)
class TrendForecast:
    """A steady rise, extrapolated to `at_ms`, when an instance started now would be ready.

    lower_bound_req_per_s: lower bound of the rate at `at_ms`. req_per_s: the current rate.
    growth_per_min: requests/s gained per minute. lasted_s: duration of the rise so far.
    """

    lower_bound_req_per_s: float
    at_ms: int
    req_per_s: float
    growth_per_min: float
    lasted_s: int


@dataclass(frozen=True, slots=True)
class ForecastState:
    """The history of a model, the chosen forecaster and its forecasts.

    family: the value of `policy.forecast` at the choice. forecaster: name of the chosen forecaster,
    "" if none is chosen. Its error fields have the meaning of Forecast and ForecasterScore.
    chosen_minute: minute of the choice since the epoch. forecast, trend: None without a forecast or
    a rise.
    """

    history: History = field(default_factory=History)
    family: str = NONE
    forecaster: str = ""
    error_req_per_s: float = 0.0
    overshoot_req_per_s: float = 0.0
    last_error_req_per_s: float = 0.0
    chosen_minute: int = 0
    forecast: Forecast | None = None
    trend: TrendForecast | None = None


def update_forecast(
    state: ForecastState,
    blocks: Blocks,
    policy: Policy,
    start_s: float,
    stagger_slot: int,
    now_ms: int,
) -> ForecastState:
    """The updated state. The trend is updated every 10 s, everything else every minute.

    start_s: time that an instance takes to start, 0 = unknown. stagger_slot: a number that differs
    between models, so that not all models choose a forecaster in the same minute.
    """
    family = policy.forecast
    if family == NONE:
        history = extend_history(state.history, blocks, now_ms)
        known = history is state.history and state == ForecastState(history)
        return state if known else ForecastState(history)
    trend = (
        _trend_forecast(blocks, policy.significance, start_s, now_ms) if family == AUTO else None
    )
    if trend != state.trend:
        state = replace(state, trend=trend)
    history = extend_history(state.history, blocks, now_ms)
    if history is state.history and family == state.family:
        return state
    state = replace(state, history=history, forecast=None)
    if start_s <= 0.0:
        return state
    ready_ms = now_ms + round(start_s * 1000)
    steps = max(1, ready_ms // 1000 // MINUTE_S - history.end_minute + 1)
    since = history.end_minute - state.chosen_minute
    again = since >= _CHOOSE_EVERY and (history.end_minute + stagger_slot) % _CHOOSE_EVERY == 0
    unknown = not state.last_error_req_per_s and since >= _RETRY_EVERY
    if family != state.family or again or unknown or since >= 2 * _CHOOSE_EVERY:
        state = _choose_forecaster(state, history.rates(), steps, family)
    return replace(state, forecast=_forecast(state, steps, ready_ms))


def _trend_forecast(
    blocks: Blocks, significance: float, start_s: float, now_ms: int
) -> TrendForecast | None:
    rise = detect_rise(blocks, significance) if start_s > 0.0 else None
    if rise is None:
        return None
    blocks_end_ms = now_ms // _BLOCK_MS * _BLOCK_MS
    return TrendForecast(
        rise.lower_bound_req_per_s(start_s),
        blocks_end_ms + round(start_s * 1000),
        rise.req_per_s,
        60.0 * rise.slope,
        rise.lasted_s,
    )


def _choose_forecaster(
    state: ForecastState, rates: Rates, steps: int, family: str
) -> ForecastState:
    scores = score_forecasters(rates, steps, forecasters())
    best = best_score(scores, family)
    return replace(
        state,
        family=family,
        forecaster=best.forecaster.name if best else "",
        error_req_per_s=best.mean_error if best else 0.0,
        overshoot_req_per_s=best.overshoot if best else 0.0,
        last_error_req_per_s=scores[0].mean_error if scores else 0.0,
        chosen_minute=state.history.end_minute,
    )


def _forecast(state: ForecastState, steps: int, ready_ms: int) -> Forecast | None:
    forecaster = forecaster_by_name(state.forecaster)
    if forecaster is None:
        return None
    rates = state.history.rates()
    if isinstance(LAST_VALUE.predict(rates, steps), NoForecast):
        return None
    predicted = forecaster.predict(rates, steps)
    if isinstance(predicted, NoForecast) or not math.isfinite(predicted):
        return None
    highest = float(np.nanmax(rates))
    return Forecast(
        max(0.0, min(predicted, _MAX_GROWTH * highest) - state.overshoot_req_per_s),
        ready_ms,
        state.error_req_per_s,
        state.last_error_req_per_s,
        state.forecaster,
    )
