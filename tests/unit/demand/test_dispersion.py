"""Burstiness: none for Poisson arrivals, about the needed quantile for clustered ones."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.demand.dispersion import POISSON, burst_req_per_s, dispersion
from autoscaler.demand.timeline import Blocks


def blocks_of(counts: np.ndarray) -> Blocks:
    return tuple((10, int(count)) for count in counts)


def gamma_counts(rate: float, cv: float, blocks: int, seed: int) -> np.ndarray:
    """Arrivals per 10 s of a renewal process with Gamma gaps."""
    rng = np.random.default_rng(seed)
    shape = 1.0 / cv**2
    times = np.cumsum(rng.gamma(shape, 1.0 / (shape * rate), int(rate * blocks * 15 + 5000)))
    times = times[times > 1000.0] - 1000.0
    return np.histogram(times, bins=np.arange(blocks + 1) * 10.0)[0]


@pytest.mark.parametrize("rate", [0.5, 1.0, 5.0, 20.0, 200.0])
def test_poisson_arrivals_need_no_more_than_their_mean(rate: float) -> None:
    """300 half hours of chance: the mean of all estimates is the mean rate, none is 20% above."""
    found = [
        burst_req_per_s(blocks_of(np.random.default_rng(seed).poisson(rate * 10, 180)), 0.95, rate)
        for seed in range(300)
    ]
    assert np.mean(found) / rate == pytest.approx(1.0, abs=0.01)
    assert max(found) < 1.2 * rate


@pytest.mark.parametrize("cv", [3.0, 3.5, 4.0])
@pytest.mark.parametrize("rate", [1.0, 5.0, 20.0])
def test_clustered_arrivals_are_sized_near_the_rate_they_need(rate: float, cv: float) -> None:
    """At most 1.5 x p99 of the 10 s rates, and 91% or more of all requests in slower blocks."""
    served, ratios = [], []
    for seed in range(12):
        counts = gamma_counts(rate, cv, 2000, seed)
        rates = counts / 10.0
        burst = burst_req_per_s(blocks_of(counts[:180]), 0.95, float(counts[:180].mean()) / 10)
        served.append(rates[rates <= burst].sum() / rates.sum())
        ratios.append(burst / float(np.quantile(rates, 0.99)))
    assert np.mean(served) >= 0.91
    assert max(ratios) < 1.5


def test_a_higher_percentile_asks_for_more() -> None:
    """The declared percentile enters the size."""
    blocks = blocks_of(gamma_counts(5.0, 3.5, 180, 1))
    found = [burst_req_per_s(blocks, percentile, 5.0) for percentile in (0.9, 0.95, 0.99)]
    assert found == sorted(found) and found[0] > 5.0 and found[0] < found[2]


def test_few_blocks_claim_nothing() -> None:
    """Four minutes, however wild."""
    wild = tuple((10, 100 if index % 2 else 0) for index in range(24))
    assert dispersion(wild).claimed == 1.0
    assert burst_req_per_s(wild, 0.99, 5.0) == 5.0
    assert dispersion(()) == POISSON


@pytest.mark.parametrize("seed", range(5))
def test_a_step_and_a_slow_swing_are_no_bursts(seed: int) -> None:
    """1 -> 10 req/s, and a rate that doubles and halves over the half hour."""
    rng = np.random.default_rng(seed)
    step = rng.poisson(np.repeat([10.0, 100.0], 90))
    swing = rng.poisson(50.0 * (1.5 + np.sin(np.linspace(0, 6.28, 180))) / 1.5)
    assert burst_req_per_s(blocks_of(step), 0.95, 10.0) == pytest.approx(10.0, rel=0.02)
    assert burst_req_per_s(blocks_of(swing), 0.95, 5.0) == pytest.approx(5.0, rel=0.05)


def test_blocks_seen_in_part_are_weighed_by_what_was_seen() -> None:
    """Gaps in telemetry look like neither silence nor bursts."""
    rng = np.random.default_rng(3)
    covered = rng.integers(0, 11, 180)
    blocks = tuple((int(s), int(rng.poisson(5.0 * s))) for s in covered)
    assert dispersion(blocks).claimed == 1.0
    assert 0.5 < dispersion(blocks).index < 1.5
