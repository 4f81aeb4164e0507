"""The burstiness estimate: zero for Poisson arrivals, about CV^2 for clustered arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.estimate.arrival_counts import Blocks
from autoscaler.estimate.overdispersion import POISSON, dispersion


def blocks_of(counts: np.ndarray) -> Blocks:
    return tuple((10, int(count)) for count in counts)


def gamma_counts(rate: float, cv: float, blocks: int, seed: int) -> np.ndarray:
    """Arrivals in blocks of 10 s of a renewal process with Gamma-distributed gaps."""
    rng = np.random.default_rng(seed)
    shape = 1.0 / cv**2
    times = np.cumsum(rng.gamma(shape, 1.0 / (shape * rate), int(rate * blocks * 15 + 5000)))
    times = times[times > 1000.0] - 1000.0
    return np.histogram(times, bins=np.arange(blocks + 1) * 10.0)[0]


@pytest.mark.parametrize("rate", [0.5, 1.0, 5.0, 20.0, 200.0])
def test_poisson_arrivals_rarely_show_overdispersion(rate: float) -> None:
    """In 300 random half hours, overdispersion is rarely confirmed and never large."""
    found = [
        dispersion(blocks_of(np.random.default_rng(seed).poisson(rate * 10, 180))).confirmed
        for seed in range(300)
    ]
    assert np.mean(found) == pytest.approx(1.0, abs=0.01)
    assert max(found) < 1.5


@pytest.mark.parametrize("cv", [3.0, 3.5, 4.0])
@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_clustered_arrivals_have_an_overdispersion_near_cv_squared(rate: float, cv: float) -> None:
    """For a renewal process and spans of many gaps, the variance of the counts is CV^2 times their
    mean.
    """
    found = [
        dispersion(blocks_of(gamma_counts(rate, cv, 180, seed))).confirmed for seed in range(12)
    ]
    assert 0.5 * cv**2 < np.mean(found) < 1.3 * cv**2


def test_a_few_blocks_give_no_estimate() -> None:
    """Four minutes are too short."""
    wild = tuple((10, 100 if index % 2 else 0) for index in range(24))
    assert dispersion(wild).confirmed == 1.0
    assert dispersion(()) == POISSON


@pytest.mark.parametrize("seed", range(5))
def test_a_step_and_a_slow_swing_are_no_bursts(seed: int) -> None:
    """The rate steps from 1 to 10 req/s, or doubles and halves within the half hour."""
    rng = np.random.default_rng(seed)
    step = rng.poisson(np.repeat([10.0, 100.0], 90))
    swing = rng.poisson(50.0 * (1.5 + np.sin(np.linspace(0, 6.28, 180))) / 1.5)
    assert dispersion(blocks_of(step)).confirmed < 1.1
    assert dispersion(blocks_of(swing)).confirmed < 1.1


@pytest.mark.parametrize("rate", [20.0, 100.0, 500.0])
def test_a_steep_rise_is_no_burst_at_any_rate(rate: float) -> None:
    """The rate rises fourfold within a quarter of an hour, and falls again."""
    swing = rate * (1.0 - 0.6 * np.cos(np.linspace(0.0, 6.28, 180)))
    found = [
        dispersion(blocks_of(np.random.default_rng(seed).poisson(10.0 * swing))).confirmed
        for seed in range(30)
    ]
    assert max(found) < 1.1


def test_partial_blocks_are_weighted_by_their_observed_time() -> None:
    """Gaps in telemetry count neither as silence nor as bursts."""
    rng = np.random.default_rng(3)
    covered = rng.integers(0, 11, 180)
    blocks = tuple((int(s), int(rng.poisson(5.0 * s))) for s in covered)
    assert dispersion(blocks).confirmed == 1.0
    assert 0.5 < dispersion(blocks).index < 1.5
