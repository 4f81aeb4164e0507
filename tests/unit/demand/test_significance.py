"""The Poisson test: exact tails, and what noise and bursts do to the rule that uses it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from autoscaler.scaling.reactive import must_wait, need

from autoscaler.demand.observed import ModelDemand, spans_s
from autoscaler.demand.significance import bounds, lower_rate, poisson_tail, upper_rate
from autoscaler.demand.windows import NoData, Stats
from autoscaler.domain.cluster import Policy

DAY_S = 86_400
T0 = 1_700_000_000_000


@pytest.mark.parametrize("mean", [0.3, 2.0, 17.0, 150.0])
@pytest.mark.parametrize("count", [1, 2, 5, 20, 120, 260])
def test_tails_equal_the_plain_sum(count: int, mean: float) -> None:
    """P(N >= k) against one minus the summed masses, term by term in fractions."""
    below = math.fsum(
        math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count)
    )
    assert poisson_tail(count, mean) == pytest.approx(1.0 - below, rel=1e-6, abs=1e-12)


def test_far_tails_keep_their_digits() -> None:
    """P(N >= 100 | mean 10) is 1.2e-53 or so, not zero."""
    exact = math.fsum(
        math.exp(k * math.log(10.0) - 10.0 - math.lgamma(k + 1)) for k in range(100, 400)
    )
    assert poisson_tail(100, 10.0) == pytest.approx(exact, rel=1e-9)
    assert 0 < poisson_tail(100, 10.0) < 1e-50


def test_the_lower_bound_inverts_the_tail() -> None:
    """At the bound so many arrivals have exactly the stated probability."""
    for count, window_s in ((1, 1.0), (12, 10.0), (400, 120.0)):
        bound = lower_rate(count, window_s, 0.05)
        assert poisson_tail(count, bound * window_s) == pytest.approx(0.05, rel=1e-6)
        assert bound < count / window_s
    assert lower_rate(0, 10.0, 0.05) == 0.0


def test_the_upper_bound_inverts_the_other_tail() -> None:
    """At the bound so few arrivals have exactly the stated probability; none in 10 s: 0.3/s."""
    for count, window_s in ((1, 1.0), (12, 10.0), (400, 120.0)):
        bound = upper_rate(count, window_s, 0.05)
        assert 1.0 - poisson_tail(count + 1, bound * window_s) == pytest.approx(0.05, rel=1e-6)
        assert bound > count / window_s
    assert upper_rate(0, 10.0, 0.05) == pytest.approx(-math.log(0.05) / 10.0, rel=1e-6)
    assert upper_rate(5, 1.0, 0.7) < 5.7


@pytest.mark.parametrize("count", [1, 3, 10, 100, 10_000])
def test_the_quick_bounds_are_the_exact_ones_within_a_hundredth(count: int) -> None:
    """Wilson and Hilferty against bisection of the tails."""
    low, high = bounds(count, 1.6448536)
    assert low == pytest.approx(lower_rate(count, 1.0, 0.05), rel=0.25 if count == 1 else 0.01)
    assert high == pytest.approx(upper_rate(count, 1.0, 0.05), rel=0.01)
    assert bounds(0, 1.6448536)[0] == 0.0


def stats(arrivals: int, covered_s: int) -> Stats:
    return Stats(
        covered_s,
        0,
        arrivals,
        arrivals,
        0,
        0,
        arrivals,
        arrivals / covered_s,
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("rate", [1.0, 2.0, 5.0, 10.0, 20.0])
def test_noise_alone_causes_less_than_one_false_scale_out_per_model_and_day(rate: float) -> None:
    """Ten model-days of Poisson arrivals with planned capacity equal to their rate.

    Every second's windows are looked at; the full rule runs wherever a window is 3.5 standard
    deviations up or more (below that its tail is above 1e-4, far more than what is allowed).
    """
    policy = Policy()
    lengths = (*spans_s(policy), policy.local_window_s)
    false = looked = 0
    for seed in range(10):
        counts = np.random.default_rng(seed).poisson(rate, DAY_S)
        total = np.concatenate(([0], np.cumsum(counts)))
        start = policy.local_window_s
        up = np.zeros(DAY_S + 1 - start, dtype=bool)
        for length in lengths:
            window = total[start:] - total[start - length : DAY_S + 1 - length]
            up |= window >= rate * length + 3.5 * math.sqrt(rate * length)
        last_alarm = -DAY_S
        for second in np.flatnonzero(up) + start:
            looked += 1
            recent = tuple((n, int(total[second] - total[second - n])) for n in spans_s(policy))
            local = stats(int(total[second] - total[second - start]), start)
            found = need(ModelDemand(recent, local), rate, policy, T0)
            if found is not None and second - last_alarm > policy.cooldown_s:
                false += 1
                last_alarm = int(second)
    assert looked > 100  # the filter let the interesting seconds through
    assert false / 10 < 1.0


def test_a_deficit_within_the_ratio_is_none() -> None:
    """19% over for ever, on a million requests: within the ratio, no need."""
    assert need(ModelDemand((), stats(119_000, 1000)), 100.0, Policy(), T0) is None
    assert need(ModelDemand((), stats(121_000, 1000)), 100.0, Policy(), T0) is not None


def test_a_burst_of_two_requests_on_nothing_is_no_sample() -> None:
    """Fewer than min_samples arrivals prove nothing, whatever their odds."""
    assert need(ModelDemand(((1, 2),), stats(2, 120)), 1e-6, Policy(), T0) is None


def test_the_start_of_a_surge_is_dated_by_its_clearest_window() -> None:
    """4 s of 50/s after quiet: the surge began 4 s ago, not 10."""
    recent = tuple((n, 50 * min(n, 4) + 5 * max(0, n - 4)) for n in range(1, 11))
    found = need(ModelDemand(recent, stats(800, 120)), 5.0, Policy(), T0)
    assert found is not None and found.surge
    assert found.since_ms == T0 - 4000
    assert 40.0 < found.req_per_s < 50.0


def test_a_doubling_at_one_request_per_second_does_not_wait_for_the_local_window() -> None:
    """2.2/s on 1.0/s planned: beyond doubt within 50 s, though the mean of 120 s is not yet."""
    policy = Policy()
    recent = tuple((n, round(2.2 * min(n, 50))) for n in spans_s(policy))
    found = need(ModelDemand(recent, stats(110, 120)), 1.0, policy, T0)
    assert found is not None
    assert found.window_s < 60
    assert need(ModelDemand((), stats(110, 120)), 1.0, policy, T0) is None


def test_no_data_is_no_need() -> None:
    """Not knowing never scales out either."""
    assert need(ModelDemand(((1, 100),), NoData(None)), 1.0, Policy(), T0) is None


def test_the_cooldown_yields_only_to_what_outgrows_the_last_step() -> None:
    """Within the cool-down: 12 missing after 10 were added goes on, 6 missing waits."""
    surge = need(ModelDemand(((5, 300),), stats(300, 120)), 20.0, Policy(), T0)
    assert surge is not None
    missing = surge.req_per_s - 20.0
    assert not must_wait(surge, 20.0, T0 - 5000, missing - 1.0, Policy(), T0)
    assert must_wait(surge, 20.0, T0 - 5000, missing + 1.0, Policy(), T0)
    assert not must_wait(surge, 20.0, T0 - 121_000, missing + 1.0, Policy(), T0)
