"""Idle capacity stays while the returns of demand in the model's history pay for its rent."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.estimate.forecast.history import MINUTE_S, History
from autoscaler.sizing.scale_in.waiting_value import rate_worth_keeping
from tests.unit.decide.decide_catalogue import service

START_S = 60
LOW, HIGH = 1.0, 8.0  # req/s
WORTH = 0.8 * HIGH  # planned rate whose capacity, without the margin of utilization, serves HIGH


def history(*rates: float) -> History:
    """The rates of successive minutes; a negative one is unknown."""
    counts = [round(rate * MINUTE_S) if rate >= 0.0 else -1 for rate in rates]
    counts += [-1] * (-len(counts) % 60)
    hours = tuple(tuple(counts[at : at + 60]) for at in range(0, len(counts), 60))
    return History(0, hours, len(rates))


def kept(
    *rates: float,
    start_s: int = START_S,
    percentile: float = 0.95,
    may_miss: float = 0.0,
    declared: float = 0.0,
) -> float:
    model = service(percentile=percentile, req_per_s=declared)
    return rate_worth_keeping(history(*rates), model, start_s, may_miss)


def pulses(low_min: int, idle_min: int, times: int = 4) -> tuple[float, ...]:
    """`times` pulses of five minutes, `low_min` minutes apart, the last one `idle_min` ago."""
    return *([*[LOW] * low_min, *[HIGH] * 5] * times), *[LOW] * idle_min


def test_without_a_return_of_demand_nothing_is_worth_its_rent() -> None:
    assert kept() == 0.0
    assert kept(*[LOW] * 60) == 0.0
    assert kept(*[HIGH] * 20, *[LOW] * 5) == 0.0


def test_capacity_waits_as_long_as_demand_was_low_before_its_returns() -> None:
    """A pulse that finds no capacity costs a start of a minute, and the requests of that minute,
    each at 19 times its rent: 20 minutes of rent. So ten minutes are worth waiting, if the pulses
    come about every ten minutes. If the last one is longer ago, demand has changed."""
    assert kept(*pulses(10, 4)) == pytest.approx(WORTH, rel=0.05)
    assert kept(*pulses(10, 9)) == pytest.approx(WORTH, rel=0.05)
    assert kept(*pulses(10, 10)) == 0.0


def test_a_declared_rate_far_too_high_hides_no_returns() -> None:
    assert kept(*pulses(10, 4), declared=100.0 * HIGH) == pytest.approx(WORTH, rel=0.05)


def test_misses_within_the_error_budget_are_free() -> None:
    """Then a return costs a start of a minute alone. The budget is in requests: a minute of `HIGH`
    are 480, and what is missed beyond the budget has its price."""
    assert kept(*pulses(10, 4), may_miss=512.0) == 0.0
    assert kept(*pulses(10, 4), may_miss=64.0) == pytest.approx(WORTH, rel=0.05)
    assert kept(*pulses(10, 4), start_s=900, may_miss=1e5) == pytest.approx(WORTH, rel=0.3)


def test_a_declared_rate_is_kept_until_the_history_tells_otherwise() -> None:
    """A return saves 20 minutes of rent. It may also never come, so capacity waits for ten. Demand
    that came once is judged by its own returns."""
    assert kept(declared=HIGH) == pytest.approx(WORTH, rel=0.05)
    assert kept(*[LOW] * 9, declared=HIGH) == pytest.approx(WORTH, rel=0.05)
    assert kept(*[LOW] * 11, declared=HIGH) <= LOW
    assert kept(*[LOW] * 3, declared=HIGH, may_miss=512.0) <= LOW
    assert kept(*[LOW] * 3, start_s=6, declared=HIGH) <= LOW
    assert kept(*[HIGH] * 2, *[LOW] * 3, declared=HIGH) <= LOW


def test_a_percentile_of_all_requests_is_dear_but_not_without_limit() -> None:
    """Each missed request costs 999 times its rent: a return of a start of a minute is worth 1,000
    minutes."""
    assert kept(*pulses(700, 4), percentile=1.0) == pytest.approx(WORTH, rel=0.05)
    assert kept(*pulses(1500, 4), percentile=1.0) == 0.0


def test_rare_returns_do_not_pay_for_the_rent_until_then() -> None:
    assert kept(*pulses(40, 4)) == 0.0


def test_a_short_start_and_a_lower_percentile_make_waiting_less_worth() -> None:
    assert kept(*pulses(10, 4), start_s=6) == 0.0
    assert kept(*pulses(10, 4), percentile=0.5) == 0.0


def test_one_return_proves_less_than_several() -> None:
    """One return is counted as never: a single one must pay for twice its rent."""
    assert kept(*pulses(15, 4, times=2)) == 0.0
    assert kept(*pulses(15, 4, times=6)) == pytest.approx(WORTH, rel=0.05)


def test_a_slow_return_costs_a_start_but_misses_nothing() -> None:
    """The rate rises to its peak within an hour, so a new instance serves before it is needed."""
    waves = 5.0 + 4.0 * np.sin(np.arange(0.0, 8.0 * np.pi, np.pi / 30.0))
    at_dip = np.concatenate((waves, waves[:45]))
    assert kept(*at_dip) < waves.min() + 1.0


def test_unknown_minutes_count_as_the_minute_before() -> None:
    whole = pulses(10, 4)
    gaps = [-1.0 if at % 7 == 3 else rate for at, rate in enumerate(whole)]
    assert kept(*gaps) == pytest.approx(WORTH, rel=0.05)
