"""The forecast: the history of minutes, the forecasting methods, and the choice of a method."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import orjson
import pytest

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.forecast.forecast_state import ForecastState, update_forecast
from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.forecasters import forecasters
from autoscaler.estimate.forecast.history import (
    KEPT_HOURS,
    UNKNOWN,
    History,
    extend_history,
    restore_history,
)
from autoscaler.estimate.forecast.last_value import LastValue
from autoscaler.estimate.forecast.seasonal_naive import SeasonalNaive
from autoscaler.estimate.forecast.selection import AUTO, best_score, score_forecasters
from autoscaler.estimate.forecast.smoothing import DoubleSmoothing
from autoscaler.estimate.forecast.trend import TREND_BLOCKS, detect_rise
from topics.codec import read_value, write_value

MINUTE_MS = 60_000
T0 = 1_700_000_040_000  # a whole minute
HOUR = T0 // 3_600_000


def blocks(*arrivals: int) -> tuple[tuple[int, int], ...]:
    """Blocks of 10 s, each fully observed."""
    return tuple((10, count) for count in arrivals)


def test_a_minute_counts_after_its_end_and_its_records() -> None:
    seen = extend_history(History(), blocks(1, 2, 3, 4, 5, 6), T0 + 2_000)
    assert seen.end_minute == T0 // MINUTE_MS - 1 and not len(seen.rates())
    seen = extend_history(seen, blocks(1, 2, 3, 4, 5, 6), T0 + 3_000)
    assert seen.rates().tolist() == [21 / 60]
    assert extend_history(seen, blocks(9, 9, 9, 9, 9, 9), T0 + 9_000) is seen


def test_a_minute_that_was_not_reported_is_unknown_and_not_zero() -> None:
    gap = (*blocks(*[6] * 6), *[(0, 0)] * 6, *blocks(*[0] * 6))
    rates = extend_history(History(), gap, T0 + 5_000).rates()
    assert rates[0] == 0.6 and math.isnan(rates[1]) and rates[2] == 0.0


def test_missing_minutes_are_filled_in_from_window_blocks() -> None:
    """A controller that takes over has an older history record and half an hour in its windows."""
    before = restore_history([(HOUR - 2, tuple([60] * 60))], T0)
    after = extend_history(before, blocks(*[20] * 180), T0 + 5_000)
    rates = after.rates()
    assert rates[:60].tolist() == [1.0] * 60
    assert rates[-30:].tolist() == [2.0] * 30
    assert np.isnan(rates[60:-30]).all()


def test_a_history_keeps_three_days_at_any_clock_time() -> None:
    old = extend_history(History(), blocks(*[6] * 6), T0 + 5_000)
    week_ms = 7 * 86_400_000
    new = extend_history(old, blocks(*[12] * 6), T0 + week_ms + 5_000)
    assert len(new.hours) <= KEPT_HOURS and new.rates().tolist() == [1.2]
    assert extend_history(new, blocks(*[6] * 6), T0) is new


def test_history_from_the_future_or_long_ago_is_ignored() -> None:
    hour = tuple([60] * 60)
    found = restore_history([(HOUR + 2, hour), (HOUR - KEPT_HOURS - 5, hour), (HOUR - 1, hour)], T0)
    assert found.rates().tolist() == [1.0] * 60
    assert restore_history([], T0) == History()
    assert restore_history([(HOUR - 1, (UNKNOWN,) * 60)], T0) == History()


def test_a_forecast_is_unchanged_after_writing_and_reading() -> None:
    made = update_forecast(
        ForecastState(), blocks(*[6] * 180), Policy(forecast="last"), 60.0, 0, T0 + 5_000
    )
    assert read_value(ForecastState, orjson.loads(write_value(made))) == made


def test_the_last_value_method_bridges_only_short_gaps() -> None:
    assert LastValue().predict(np.array([1.0, 2.0, math.nan]), 3) == 2.0
    assert isinstance(LastValue().predict(np.array([1.0, *[math.nan] * 5]), 1), NoForecast)


def test_the_seasonal_method_repeats_the_value_of_one_season_ago() -> None:
    season = np.tile([1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 1.0, 1.0], 3)[
        :-3
    ]  # the next value is the fifth of the season
    found = [SeasonalNaive(8, "8").predict(season, steps) for steps in (1, 3, 9)]
    assert found == [pytest.approx(19 / 3), 1.0, pytest.approx(19 / 3)]
    assert isinstance(SeasonalNaive(60, "1 h").predict(season, 1), NoForecast)


def test_smoothing_continues_a_ramp_and_never_goes_below_zero() -> None:
    ramp = np.arange(0.0, 60.0)
    assert DoubleSmoothing(0.5).predict(ramp, 5) == pytest.approx(64.0, abs=0.1)
    assert DoubleSmoothing(0.5).predict(ramp[::-1], 200) == 0.0
    assert isinstance(DoubleSmoothing(0.5).predict(ramp[:5], 1), NoForecast)


@pytest.mark.parametrize("strategy", forecasters(), ids=lambda s: s.name)
def test_every_method_returns_finite_rates_from_zero(strategy: SeasonalNaive) -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        rates = random.exponential(5.0, int(random.integers(0, 1600)))
        rates[random.random(len(rates)) < random.random()] = math.nan
        found = strategy.predict(rates, int(random.integers(1, 2000)))
        assert isinstance(found, NoForecast) or (math.isfinite(found) and found >= 0.0)


def minutes(rate_of: object, count: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.array([random.poisson(60.0 * rate_of(m)) / 60.0 for m in range(count)])


def test_an_hourly_pattern_is_forecast_by_the_seasonal_method() -> None:
    rates = minutes(lambda m: 16.0 if m % 60 < 6 else 4.0, 240)
    best = best_score(score_forecasters(rates, 3, forecasters()), AUTO)
    assert best is not None and best.forecaster.name == "seasonal (1 h)"


def test_a_random_walk_is_forecast_by_its_last_value() -> None:
    """No other method is better for a random walk."""
    random = np.random.default_rng(3)
    walk = np.maximum(0.0, 50.0 + np.cumsum(random.normal(0.0, 1.0, 400)))
    assert best_score(score_forecasters(walk, 3, forecasters()), AUTO) is None


def test_one_season_is_not_enough_to_be_chosen() -> None:
    rates = minutes(lambda m: 16.0 if m % 60 < 6 else 4.0, 100)
    assert all(
        "seasonal" not in one.forecaster.name for one in score_forecasters(rates, 3, forecasters())
    )


def run(rate_of: object, count: int, family: str, start_s: float = 120.0) -> list[ForecastState]:
    """The forecast state after each minute of Poisson arrivals at `rate_of(minute)` requests/s.

    family: forecasting method. start_s: start time of an instance, in s.
    """
    found, outlook, seen = [], ForecastState(), []
    random = np.random.default_rng(2)
    policy = Policy(forecast=family)
    for minute in range(count):
        seen += [(10, int(random.poisson(10 * rate_of(minute)))) for _ in range(6)]
        at_ms = T0 + (minute + 1) * MINUTE_MS + 5_000
        outlook = update_forecast(outlook, tuple(seen[-180:]), policy, start_s, 0, at_ms)
        found.append(outlook)
    return found


def test_an_hourly_burst_is_forecast_one_start_time_ahead() -> None:
    """Instances start in two minutes, so the burst at each full hour is forecast at minute 58."""
    all_ = run(lambda m: 16.0 if m % 60 < 6 else 4.0, 240, AUTO)
    ahead, before = all_[237].forecast, all_[215].forecast
    assert ahead is not None and ahead.forecaster == "seasonal (1 h)"
    assert ahead.lower_bound_req_per_s > 9.0
    assert before is not None and before.lower_bound_req_per_s < 4.5
    assert ahead.error_req_per_s < ahead.last_error_req_per_s


def test_noise_around_a_steady_rate_is_not_forecast() -> None:
    """During five hours of a steady rate, the forecast exceeds it for a few minutes at most."""
    all_ = [o.forecast for o in run(lambda _: 8.0, 300, AUTO)]
    rates = [one.lower_bound_req_per_s for one in all_ if one is not None]
    assert len(rates) > 200 and sum(rate > 8.2 for rate in rates) <= 5


def test_without_forecasting_only_the_history_grows() -> None:
    outlook = run(lambda _: 4.0, 5, "none")[-1]
    assert outlook == ForecastState(outlook.history) and outlook.history.end_minute


def test_without_a_start_time_history_grows_but_no_rate_is_forecast() -> None:
    found = run(lambda _: 4.0, 5, "last", start_s=0.0)[-1]
    assert found.forecast is None and len(found.history.rates()) == 5


def test_a_spike_is_not_extrapolated() -> None:
    all_ = run(lambda m: 4.0 * 1.3 ** max(0, m - 50), 66, "smoothing")
    highest = max(float(np.nanmax(o.history.rates())) for o in all_)
    expected = [o.forecast.lower_bound_req_per_s for o in all_ if o.forecast is not None]
    assert expected and max(expected) <= 2.0 * highest


def test_a_changed_family_leads_to_a_new_choice() -> None:
    before = run(lambda _: 4.0, 90, "smoothing")[-1]
    assert before.forecaster.startswith("smoothing")
    after = update_forecast(
        before, (), Policy(forecast="last"), 120.0, 0, T0 + 90 * MINUTE_MS + 15_000
    )
    assert after.forecaster == "last value"


def test_the_same_history_gives_the_same_forecast() -> None:
    first, second = (run(lambda m: 4.0 + m % 7, 120, AUTO) for _ in range(2))
    assert first == second
    again = replace(first[-1], forecast=None)
    assert again.history == second[-1].history


def noisy(rate_of: object, seconds: int, seed: int) -> tuple[tuple[int, int], ...]:
    random = np.random.default_rng(seed)
    return tuple((10, int(random.poisson(10 * rate_of(at)))) for at in range(0, seconds, 10))


def test_a_steady_rise_is_extrapolated_over_the_start_time() -> None:
    """The rate rises from 0.5 by 0.5 req/s each minute. After eight minutes it is 4.5, two minutes
    later 5.5.
    """
    found = [detect_rise(noisy(lambda at: 0.5 + at / 120, 480, seed), 5e-5) for seed in range(20)]
    sure = [one.lower_bound_req_per_s(120.0) for one in found if one is not None]
    assert len(sure) >= 16
    assert 4.6 < float(np.median(sure)) <= 5.5


def test_a_rise_is_extrapolated_by_at_most_half_of_its_duration() -> None:
    found = detect_rise(noisy(lambda at: 2.0 + at / 20, 190, 1), 5e-5)
    assert found is not None
    half_s = 0.5 * found.lasted_s
    assert (
        found.lower_bound_req_per_s(3600.0) == found.lower_bound_req_per_s(half_s) > found.req_per_s
    )


def test_a_constant_rate_and_a_step_are_no_steady_rise() -> None:
    looked = seen = 0
    for seed in range(10):
        for rate_of in (lambda _: 5.0, lambda at: 1.0 if at < 300 else 10.0):
            whole = noisy(rate_of, 900, seed)
            for end in range(9, len(whole)):
                looked += 1
                seen += detect_rise(whole[:end], 5e-5) is not None
    assert looked > 1000 and seen <= 3


@pytest.mark.parametrize("rate", [1.0, 5.0, 20.0])
def test_a_constant_poisson_rate_rarely_looks_like_a_rise(rate: float) -> None:
    """Sixty days, evaluated every ten seconds, have fewer than one false rise in two days. The test
    skips times at which no line exceeds 3.5 standard errors.
    """
    days, window = 60, 180
    counts = np.random.default_rng(4).poisson(10 * rate, days * 8640 + window)
    whole, steep = blocks(*counts.tolist()), np.zeros(len(counts) + 1, bool)
    for length in TREND_BLOCKS:
        newest = np.lib.stride_tricks.sliding_window_view(counts, length)
        at = np.arange(length) - 0.5 * (length - 1)
        steep[length:] |= newest @ at > 3.5 * np.sqrt(newest.mean(axis=1) * (at @ at))
    ends = [int(end) for end in np.flatnonzero(steep) if end >= window]
    seen = [end for end in ends if detect_rise(whole[end - window : end], 5e-5) is not None]
    apart = [end for before, end in pairwise([-window, *seen]) if end - before > 12]
    assert len(ends) > 200 and 0 < len(apart) < 0.5 * days


def test_the_begin_of_traffic_is_no_steady_rise() -> None:
    """1 req/s begins at some second after four idle minutes. A line would rise through the idle
    time, or through the first, partial block.
    """
    seen = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        counts = [0] * 24 + [int(random.poisson(5))] + random.poisson(10, 40).tolist()
        ends = range(25, len(counts) + 1)
        seen += any(detect_rise(blocks(*counts[:end]), 5e-5) is not None for end in ends)
    assert seen <= 1


@pytest.mark.parametrize(("rate", "idle"), [(0.2, 24), (1.0, 6), (1.0, 24), (5.0, 12)])
def test_a_single_request_before_traffic_begins_makes_no_steady_rise(
    rate: float, idle: int
) -> None:
    """One request, then none for a minute or more, then a constant rate from some second on."""
    seen = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        counts = [0] * 24 + [1] + [0] * idle + [int(random.poisson(5 * rate))]
        begins = len(counts)
        counts += random.poisson(10 * rate, 40).tolist()
        ends = range(begins, len(counts) + 1)
        seen += any(detect_rise(blocks(*counts[:end]), 5e-5) is not None for end in ends)
    assert seen <= 2


@pytest.mark.parametrize(("before", "after"), [(0.05, 0.5), (0.2, 1.0), (1.0, 2.5)])
def test_a_step_within_a_block_is_mostly_no_steady_rise(before: float, after: float) -> None:
    """Noise at the higher rate and the partial block of the step make least squares see a slope."""
    seen = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        counts = random.poisson(10 * before, 60).tolist()
        counts += [int(random.poisson(5 * (before + after)))]
        counts += random.poisson(10 * after, 64).tolist()
        seen += any(detect_rise(blocks(*counts[:end]), 5e-5) is not None for end in range(62, 126))
    assert seen <= 5


def test_an_ended_rise_is_not_extrapolated() -> None:
    """The rate rises for ten minutes, then stays constant for three."""
    over = [
        detect_rise(noisy(lambda at: 2.0 + min(at, 600) / 60, 780, seed), 5e-5)
        for seed in range(20)
    ]
    assert sum(one is not None for one in over) <= 3


def test_a_gap_in_the_telemetry_is_no_rise() -> None:
    whole = noisy(lambda at: 0.5 + at / 60, 300, 1)
    assert detect_rise(whole, 5e-5) is not None
    assert detect_rise((*whole[:-2], (4, 10), whole[-1]), 5e-5) is None


def test_rises_are_searched_every_ten_seconds_and_only_if_all_methods_are_allowed() -> None:
    whole, at_ms = noisy(lambda at: 0.5 + at / 60, 300, 1), T0 + 310_000
    outlook = update_forecast(ForecastState(), whole, Policy(), 120.0, 0, at_ms)
    assert outlook.trend is not None and outlook.trend.at_ms == at_ms + 120_000
    assert outlook.trend.lower_bound_req_per_s > outlook.trend.req_per_s > 4.0
    later = update_forecast(outlook, whole, Policy(), 120.0, 0, at_ms + 9_000)
    assert later.trend == outlook.trend  # the blocks are unchanged, too
    flat = update_forecast(outlook, blocks(*[6] * 30), Policy(), 120.0, 0, at_ms + 10_000)
    assert flat.trend is None
    assert (
        update_forecast(ForecastState(), whole, Policy(forecast="last"), 120.0, 0, at_ms).trend
        is None
    )
