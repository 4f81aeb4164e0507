"""A forecast raises the target if it clearly exceeds the plan. It never lowers the target."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.estimate.forecast.forecast_state import Forecast, ForecastState, TrendForecast
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.explain.reason_texts import text
from autoscaler.sizing.rules import update_target
from autoscaler.sizing.scale_out_rules import forecast_increase
from autoscaler.state.model_view import ModelView
from tests.unit.sizing.target_views import T0, stats, view


def expecting(rate: float, error: float = 0.5, in_s: float = 120.0, load: float = 3.0) -> ModelView:
    """A model planned for 8 req/s, with a present rate `load` and a forecast `rate`, in req/s."""
    blocks = tuple((10, round(10 * load)) for _ in range(180))
    recent = tuple((n, round(load * n)) for n in (1, 2, 5, 10, 30, 60))
    seen = ModelDemand(recent, stats(round(load * 120), 120), blocks=blocks, reported_ms=T0)
    found = view(seen, planned=8.0)
    outlook = ForecastState(
        forecast=Forecast(rate, T0 + round(in_s * 1000), error, 2.0, "seasonal (1 h)")
    )
    return replace(
        found, state=replace(found.state, estimate=replace(found.state.estimate, forecast=outlook))
    )


def test_a_forecast_above_the_plan_starts_capacity_in_advance() -> None:
    state = update_target(expecting(16.0))
    assert state.target.req_per_s == 16.0
    assert state.target.why is not None
    assert text(state.target.why) == (
        "16.0 req/s expected in ~2 min by seasonal (1 h) (mean error 0.50, last value 2.0)"
    )


def test_a_forecast_within_the_plan_starts_no_capacity() -> None:
    assert forecast_increase(expecting(7.9)) is None
    assert forecast_increase(expecting(8.0)) is None
    assert forecast_increase(expecting(8.1)) is not None


def test_a_lower_forecast_removes_no_capacity() -> None:
    without = expecting(1.0)
    without = replace(
        without,
        state=replace(
            without.state, estimate=replace(without.state.estimate, forecast=ForecastState())
        ),
    )
    assert update_target(expecting(1.0)).target.req_per_s == update_target(without).target.req_per_s


def test_scale_in_stops_at_the_forecast() -> None:
    """3 req/s arrive, 7 are forecast and 8 are planned."""
    assert update_target(expecting(1.0)).target.req_per_s < 4.0
    assert update_target(expecting(7.0)).target.req_per_s == 7.0


def test_an_outdated_forecast_is_ignored() -> None:
    assert forecast_increase(expecting(16.0, in_s=-119.0)) is not None
    assert forecast_increase(expecting(16.0, in_s=-121.0)) is None


def test_a_steady_rise_gets_capacity_for_its_extrapolated_rate() -> None:
    found = expecting(1.0)
    climb = TrendForecast(9.5, T0 + 120_000, 8.0, 0.9, 180)
    outlook = replace(found.state.estimate.forecast, trend=climb)
    state = update_target(
        replace(
            found,
            state=replace(found.state, estimate=replace(found.state.estimate, forecast=outlook)),
        )
    )
    assert state.target.req_per_s == 9.5
    assert state.target.why is not None
    assert text(state.target.why) == (
        "9.5 req/s expected in ~2 min because the rate has been rising for 3 min "
        "(8.0 now, +0.90 a minute)"
    )
