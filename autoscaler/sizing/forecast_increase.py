"""Rule: start an instance now if demand is expected to exceed capacity at the time when the
instance would be ready.

`estimate.forecast` makes the forecast. The rule uses the lower bound of the forecast (in 19 of 20
held-back minutes, the true rate was above such a bound), because a noisy forecast would start
instances that are soon stopped again. This rule only raises the target.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.forecast.forecast_state import Forecast, TrendForecast
from autoscaler.state.model_view import IDLE_RATE, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_VALID_MS = 120_000  # an older forecast is out of date


def propose(view: ModelView) -> TargetProposal | None:
    """The expected rate, if it exceeds both the target and the planned capacity."""
    found = _expected(view)
    if found is None:
        return None
    rate = found.lower_bound_req_per_s
    if rate <= max(view.state.target.req_per_s, view.planned_req_per_s):
        return None
    in_s = max(0, found.at_ms - view.now_ms) / 1000.0
    return TargetProposal(rate, _why(view.service.model, found, rate, in_s))


def expected_req_per_s(view: ModelView) -> float:
    """Lower bound of the expected rate in requests/s; 0 without a forecast."""
    found = _expected(view)
    return 0.0 if found is None else found.lower_bound_req_per_s


def _expected(view: ModelView) -> Forecast | TrendForecast | None:
    """The forecast with the highest lower bound; None if all lower bounds are almost 0."""
    outlook = view.state.estimate.forecast
    found = [
        one
        for one in (outlook.forecast, outlook.trend)
        if one is not None
        and view.now_ms <= one.at_ms + _VALID_MS
        and one.lower_bound_req_per_s > IDLE_RATE
    ]
    return max(found, key=lambda one: one.lower_bound_req_per_s, default=None)


def _why(model: str, found: Forecast | TrendForecast, rate: float, in_s: float) -> Reason:
    if isinstance(found, TrendForecast):
        climb = rate, in_s, found.lasted_s, found.req_per_s, found.growth_per_min
        return Reason(ReasonCode.RISING, model, quantities=climb)
    errors = found.error_req_per_s, found.last_error_req_per_s
    return Reason(ReasonCode.FORECAST, model, (found.forecaster,), (rate, in_s, *errors))
