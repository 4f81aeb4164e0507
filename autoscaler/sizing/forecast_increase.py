"""More will be asked when an instance that is started now would be ready: it is started now.

Owns how far a forecast is believed (`demand.forecast` makes it). What counts is what it surely
means: less than that came in one of twenty held-back minutes. A forecast that is only noise would
start what is stopped again. It only raises: a forecast of less gives nothing away.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.forecast.forecast_state import Forecast, TrendForecast
from autoscaler.state.model_view import IDLE_RATE, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_HOLDS_MS = 120_000  # a forecast that was not renewed is of the past


def propose(view: ModelView) -> TargetProposal | None:
    """The expected rate, where it exceeds the target and what is planned."""
    found = _expected(view)
    if found is None:
        return None
    rate = found.lower_bound_req_per_s
    if rate <= max(view.state.target_req_per_s, view.planned_req_per_s):
        return None
    in_s = max(0, found.at_ms - view.now_ms) / 1000.0
    return TargetProposal(rate, _why(view.service.model, found, rate, in_s))


def expected_req_per_s(view: ModelView) -> float:
    """The rate that is surely expected; 0 where none is."""
    found = _expected(view)
    return 0.0 if found is None else found.lower_bound_req_per_s


def _expected(view: ModelView) -> Forecast | TrendForecast | None:
    """The most that is surely expected; None where next to nothing is."""
    outlook = view.state.forecast
    found = [
        one
        for one in (outlook.forecast, outlook.trend)
        if one is not None
        and view.now_ms <= one.at_ms + _HOLDS_MS
        and one.lower_bound_req_per_s > IDLE_RATE
    ]
    return max(found, key=lambda one: one.lower_bound_req_per_s, default=None)


def _why(model: str, found: Forecast | TrendForecast, rate: float, in_s: float) -> Reason:
    if isinstance(found, TrendForecast):
        climb = rate, in_s, found.lasted_s, found.req_per_s, found.growth_per_min
        return Reason(ReasonCode.RISING, model, quantities=climb)
    errors = found.error_req_per_s, found.last_error_req_per_s
    return Reason(ReasonCode.FORECAST, model, (found.forecaster,), (rate, in_s, *errors))
