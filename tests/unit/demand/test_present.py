"""The present rate: unbiased soon after a change, with bounds that narrow as evidence grows."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.demand.observed import UNKNOWN, ModelDemand, spans_s
from autoscaler.demand.present import NO_RATE, RateEstimate, present_rate
from autoscaler.demand.windows import Stats
from autoscaler.domain.cluster import Policy

POLICY = Policy()
T0 = 1_700_000_000_000


def demand_of(counts: np.ndarray) -> ModelDemand:
    """What is known at the end of `counts`, arrivals of each second."""
    now = len(counts)
    total = np.concatenate(([0], np.cumsum(counts)))

    def count(span: int) -> tuple[int, int]:
        span = min(span, now)
        return span, int(total[now] - total[now - span])

    local_s, local = count(POLICY.local_window_s)
    first = -(-max(0, now - POLICY.global_window_s) // 10)
    return ModelDemand(
        tuple(count(span) for span in spans_s(POLICY)),
        Stats(local_s, 0, local, 0, 0, 0, 0, local / local_s, None, None, None, None),
        blocks=tuple(
            (10, int(total[10 * k + 10] - total[10 * k])) for k in range(first, now // 10)
        ),
        seen_ms=T0 + now * 1000,
    )


def after_step(before: float, after: float, seconds: int, seeds: int = 60) -> list[RateEstimate]:
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        counts = np.concatenate((rng.poisson(before, 1995), rng.poisson(after, seconds)))
        found.append(present_rate(demand_of(counts), POLICY))
    return found


@pytest.mark.parametrize(("before", "after"), [(1.0, 10.0), (0.0, 5.0), (10.0, 3.0)])
@pytest.mark.parametrize("seconds", [3, 10, 20, 30, 60, 120])
def test_a_step_is_estimated_without_the_time_before_it(
    before: float, after: float, seconds: int
) -> None:
    """From the third second on the mean estimate is the new rate, and bounds hold it."""
    found = after_step(before, after, seconds)
    assert np.mean([rate.req_per_s for rate in found]) == pytest.approx(after, rel=0.08)
    held = [rate.low <= after <= rate.high for rate in found]
    assert np.mean(held) > 0.75


def test_bounds_narrow_as_evidence_grows() -> None:
    """1 -> 10: 7 to 14 after three seconds, within a tenth after a minute."""
    early, late = after_step(1.0, 10.0, 3), after_step(1.0, 10.0, 60)
    assert 6.0 < np.mean([rate.low for rate in early]) < 8.0
    assert 12.0 < np.mean([rate.high for rate in early]) < 15.0
    assert np.mean([rate.low for rate in late]) > 9.0
    assert np.mean([rate.high for rate in late]) < 11.2


def test_traffic_begins_where_it_begins() -> None:
    """25 idle minutes and 20 s of 5/s are 5/s since 20 s, not 5/s x 20 / 120."""
    counts = np.array([0] * 1500 + [5] * 20)
    rate = present_rate(demand_of(counts), POLICY)
    assert rate.req_per_s == pytest.approx(5.0, rel=0.02)
    assert rate.since_ms is not None
    assert abs(rate.since_ms - (T0 + 1_500_000)) <= 5_000


@pytest.mark.parametrize("level", [0.5, 5.0, 20.0])
def test_a_constant_rate_uses_all_that_is_known(level: float) -> None:
    """Nine of ten estimates rest on the whole long window."""
    found = [
        present_rate(demand_of(np.random.default_rng(seed).poisson(level, 1995)), POLICY)
        for seed in range(100)
    ]
    whole = [rate for rate in found if rate.since_ms is None]
    assert len(whole) >= 85
    assert min(rate.window_s for rate in whole) > 1500
    assert np.mean([rate.req_per_s for rate in found]) == pytest.approx(level, rel=0.05)


def test_clustered_arrivals_widen_the_bounds() -> None:
    """The same mean with a variance of ten times the mean: a burst is not a new rate."""
    rng = np.random.default_rng(4)
    clustered = np.repeat(rng.gamma(0.5, 10.0, 400), 5)[:1995]
    wide = present_rate(demand_of(rng.poisson(clustered)), POLICY)
    plain = present_rate(demand_of(rng.poisson(5.0, 1995)), POLICY)
    assert (wide.high - wide.low) / wide.req_per_s > 1.5 * (
        plain.high - plain.low
    ) / plain.req_per_s


def test_nothing_known_is_no_rate_of_zero() -> None:
    """Without telemetry the upper bound is infinite; zero traffic has a small one."""
    assert present_rate(UNKNOWN, POLICY) == NO_RATE
    idle = present_rate(demand_of(np.zeros(600, dtype=int)), POLICY)
    assert idle.req_per_s == 0.0 and 0.0 < idle.high < 0.01
