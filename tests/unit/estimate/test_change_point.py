"""The estimate of the present rate: unbiased soon after a change, with bounds that narrow over
time.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.estimate.change_point import (
    NO_RATE,
    RateEstimate,
    current_rate,
    current_rate_spans,
    increase_evidence,
)
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.poisson_tests import log_likelihood_ratio
from tests.unit.estimate.counted import POLICY, T0, demand_of


def after_step(before: float, after: float, seconds: int, seeds: int = 60) -> list[RateEstimate]:
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        counts = np.concatenate((rng.poisson(before, 1995), rng.poisson(after, seconds)))
        found.append(current_rate(demand_of(counts), POLICY))
    return found


@pytest.mark.parametrize(("before", "after"), [(1.0, 10.0), (0.0, 5.0), (10.0, 3.0)])
@pytest.mark.parametrize("seconds", [3, 10, 20, 30, 60, 120])
def test_the_estimate_after_a_step_ignores_the_time_before_it(
    before: float, after: float, seconds: int
) -> None:
    """From the third second on, the mean of the estimates is the new rate and lies within the
    bounds.
    """
    found = after_step(before, after, seconds)
    assert np.mean([rate.req_per_s for rate in found]) == pytest.approx(after, rel=0.08)
    held = [rate.low <= after <= rate.high for rate in found]
    assert np.mean(held) > 0.75


def test_bounds_narrow_as_evidence_grows() -> None:
    """After a step from 1 to 10 req/s, the bounds are 7 to 14 after 3 s, and within a tenth after a
    minute.
    """
    early, late = after_step(1.0, 10.0, 3), after_step(1.0, 10.0, 60)
    assert 6.0 < np.mean([rate.low for rate in early]) < 8.0
    assert 12.0 < np.mean([rate.high for rate in early]) < 15.0
    assert np.mean([rate.low for rate in late]) > 9.0
    assert np.mean([rate.high for rate in late]) < 11.2


def test_idle_time_before_traffic_does_not_dilute_the_rate() -> None:
    """5 req/s for 20 s after 25 idle minutes give 5 req/s, not 5 x 20 / 120."""
    counts = np.array([0] * 1500 + [5] * 20)
    rate = current_rate(demand_of(counts), POLICY)
    assert rate.req_per_s == pytest.approx(5.0, rel=0.02)
    assert rate.since_ms is not None
    assert abs(rate.since_ms - (T0 + 1_500_000)) <= 5_000


@pytest.mark.parametrize("level", [0.5, 5.0, 20.0])
def test_a_constant_rate_is_estimated_from_the_whole_window(level: float) -> None:
    """This holds for nine of ten estimates."""
    found = [
        current_rate(demand_of(np.random.default_rng(seed).poisson(level, 1995)), POLICY)
        for seed in range(100)
    ]
    whole = [rate for rate in found if rate.since_ms is None]
    assert len(whole) >= 85
    assert min(rate.window_s for rate in whole) > 1500
    assert np.mean([rate.req_per_s for rate in found]) == pytest.approx(level, rel=0.05)


def test_clustered_arrivals_widen_the_bounds() -> None:
    """The variance is ten times that of Poisson arrivals with the same mean. A burst is not a new
    rate.
    """
    rng = np.random.default_rng(4)
    clustered = np.repeat(rng.gamma(0.5, 10.0, 400), 5)[:1995]
    wide = current_rate(demand_of(rng.poisson(clustered)), POLICY)
    plain = current_rate(demand_of(rng.poisson(5.0, 1995)), POLICY)
    assert (wide.high - wide.low) / wide.req_per_s > 1.5 * (
        plain.high - plain.low
    ) / plain.req_per_s


def test_missing_telemetry_is_no_rate_of_zero() -> None:
    """Without telemetry the upper bound is infinite. With zero traffic it is small."""
    assert current_rate(UNKNOWN_DEMAND, POLICY) == NO_RATE
    idle = current_rate(demand_of(np.zeros(600, dtype=int)), POLICY)
    assert idle.req_per_s == 0.0 and 0.0 < idle.high < 0.01


def most_evident(counts: np.ndarray) -> float:
    """The strongest evidence of a rise over all spans of the local window."""
    demand = demand_of(counts)
    spans = [s for s in current_rate_spans(demand, POLICY) if s[0] <= POLICY.local_window_s]
    return max(increase_evidence(demand, POLICY, span) for span in spans)


def test_spans_of_the_present_rate_begin_after_a_fall() -> None:
    """The rate fell from 20 to 2 req/s 40 s ago. A span may begin before a rise."""
    fallen = current_rate_spans(demand_of(np.array([5] * 900 + [20] * 60 + [2] * 40)), POLICY)
    assert 28 <= max(fallen)[0] <= 40
    risen = current_rate_spans(demand_of(np.array([5] * 900 + [20] * 40)), POLICY)
    assert max(risen)[0] > 900


def test_the_evidence_of_a_rise_compares_two_rates_with_one() -> None:
    """8 req/s for 30 s follow ten minutes of 5 req/s."""
    counts = np.array([5] * 600 + [8] * 30)
    found = most_evident(counts)
    assert found == pytest.approx(log_likelihood_ratio(240, 30, 3000, 600), rel=0.1)
    assert found > 15.0


def test_traffic_before_an_earlier_change_is_no_evidence_of_a_rise() -> None:
    """5 minutes of 5 req/s come before a possible rise to 8 req/s. 20 minutes of 1 req/s before
    them do not make it more evident.
    """
    counts = np.array([1] * 1200 + [5] * 300 + [8] * 30)
    found = most_evident(counts)
    assert found == pytest.approx(log_likelihood_ratio(240, 30, 1500, 300), rel=0.2)
    assert found < 0.3 * log_likelihood_ratio(240, 30, 2700, 1500)


def test_the_return_of_an_earlier_rate_is_no_rise() -> None:
    """Five minutes of 40 req/s and of 8 req/s alternate. The next 40 req/s are no rise, but 60
    req/s are.
    """
    swings = ([40] * 300 + [8] * 300) * 3
    assert most_evident(np.array(swings + [40] * 30)) < 1.0
    assert most_evident(np.array(swings + [60] * 30)) > 50.0


def test_a_constant_rate_a_fall_and_silence_are_no_rise() -> None:
    """Neither is a short span of telemetry."""
    for counts in ([5] * 900, [8] * 900 + [3] * 40, [0] * 900, [5]):
        assert most_evident(np.array(counts)) == 0.0
    assert not current_rate_spans(UNKNOWN_DEMAND, POLICY)


def test_clustered_requests_are_less_evidence_than_single_ones() -> None:
    """If requests come in groups of ten, 30 s of a higher rate contain only a few independent
    arrivals.
    """
    rng = np.random.default_rng(3)
    single = rng.poisson(5.0, 1800)
    clumped = np.where(rng.random(1800) < 0.05, 100, 0)
    risen = [8] * 30
    plain = most_evident(np.concatenate((single, risen)))
    assert plain > 10.0
    assert most_evident(np.concatenate((clumped, risen))) < 0.2 * plain
