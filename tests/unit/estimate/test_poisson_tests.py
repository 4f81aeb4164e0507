"""Exact Poisson tails and bounds."""

from __future__ import annotations

import math

import pytest

from autoscaler.estimate.poisson_tests import (
    log_likelihood_ratio,
    mean_bounds,
    poisson_tail,
    rate_lower_bound,
)


@pytest.mark.parametrize("mean", [0.3, 2.0, 17.0, 150.0])
@pytest.mark.parametrize("count", [1, 2, 5, 20, 120, 260])
def test_tails_equal_the_plain_sum(count: int, mean: float) -> None:
    """P(N >= k) equals one minus the sum of the probabilities below k, calculated in fractions."""
    below = math.fsum(
        math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count)
    )
    assert poisson_tail(count, mean) == pytest.approx(1.0 - below, rel=1e-6, abs=1e-12)


def test_far_tails_keep_their_digits() -> None:
    """P(N >= 100 | mean 10) is about 1.2e-53, not zero."""
    exact = math.fsum(
        math.exp(k * math.log(10.0) - 10.0 - math.lgamma(k + 1)) for k in range(100, 400)
    )
    assert poisson_tail(100, 10.0) == pytest.approx(exact, rel=1e-9)
    assert 0 < poisson_tail(100, 10.0) < 1e-50


def test_the_lower_bound_inverts_the_tail() -> None:
    """At the lower bound, the tail of the count has exactly the stated probability."""
    for count, window_s in ((1, 1.0), (12, 10.0), (400, 120.0)):
        bound = rate_lower_bound(count, window_s, 0.05)
        assert poisson_tail(count, bound * window_s) == pytest.approx(0.05, rel=1e-6)
        assert bound < count / window_s
    assert rate_lower_bound(0, 10.0, 0.05) == 0.0


@pytest.mark.parametrize("count", [1, 3, 10, 100, 10_000])
def test_the_quick_bounds_are_within_a_hundredth_of_the_exact_ones(count: int) -> None:
    """The reference for the Wilson-Hilferty bounds is a bisection of the exact tails."""
    low, high = mean_bounds(count, 1.6448536)
    assert low == pytest.approx(
        rate_lower_bound(count, 1.0, 0.05), rel=0.25 if count == 1 else 0.01
    )
    assert 1.0 - poisson_tail(count + 1, high) == pytest.approx(0.05, rel=0.05)
    assert mean_bounds(0, 1.6448536)[0] == 0.0


def test_the_distance_of_two_counts_is_their_likelihood_ratio() -> None:
    """The reference compares Poisson probabilities at two separate rates with those at a common
    rate.
    """

    def mass(count: int, mean: float) -> float:
        return count * math.log(mean) - mean - math.lgamma(count + 1)

    own = mass(224, 224.0) + mass(3000, 3000.0)
    both = 3224.0 / 628.0
    assert log_likelihood_ratio(224, 28, 3000, 600) == pytest.approx(
        own - mass(224, 28.0 * both) - mass(3000, 600.0 * both)
    )
    assert log_likelihood_ratio(10, 2, 50, 10) == pytest.approx(0.0, abs=1e-12)
    assert log_likelihood_ratio(4, 2, 0, 10) == pytest.approx(4.0 * math.log(6.0))
