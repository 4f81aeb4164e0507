"""Requests in flight against Little's law."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.demand.backlog import expected_in_flight, is_unexplained, overload
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Lengths, Phase

LENGTHS = Lengths.expected(1000.0, 200.0)


def combo(req_per_s: float, tpot_ms: float, ttft_ms: float = 0.0) -> Combo:
    member = ComboMember(Phase.AGGREGATED, "eu/l4/spot", 1, 1, req_per_s)
    return Combo(f"m{tpot_ms}", "m", "eu", (member,), req_per_s, 1.0, ttft_ms, tpot_ms, 60.0)


def test_the_load_spreads_in_proportion_to_capacity() -> None:
    """3 req/s on 2 of 10 s and 4 of 4 s of residence: 1 x 10 + 2 x 4."""
    assert expected_in_flight(3.0, [combo(2.0, 50.0), combo(4.0, 20.0)], LENGTHS) == pytest.approx(
        18.0
    )
    assert expected_in_flight(3.0, [], LENGTHS) == 0.0


@pytest.mark.parametrize("load", [0.5, 4.0, 40.0, 400.0])
def test_chance_is_called_unexplained_about_twice_in_a_thousand(load: float) -> None:
    """Poisson numbers in flight: about the three sigma that the test promises."""
    counts = np.random.default_rng(1).poisson(load, 40_000)
    values, times = np.unique(counts, return_counts=True)
    false = sum(n for v, n in zip(values, times, strict=True) if is_unexplained(int(v), load))
    assert false / 40_000 < 0.0025


def test_an_overload_is_sized_by_its_requests_and_capped_by_what_the_rate_can_be() -> None:
    """N / L = 2 at 5 req/s asks for 10, and for 7 where the rate is 7 at most."""
    ready = [combo(8.0, 50.0)]
    found = overload(100, 5.0, 20.0, ready, LENGTHS)
    assert found is not None
    assert (found.expected, found.drain_requests) == pytest.approx((50.0, 50.0))
    assert found.req_per_s == pytest.approx(10.0)
    capped = overload(100, 5.0, 7.0, ready, LENGTHS)
    assert capped is not None and capped.req_per_s == 7.0


def test_no_overload_within_chance_or_without_what_serves() -> None:
    """50 + 21 is chance; nothing is measured without combos, or expected without a rate."""
    ready = [combo(8.0, 50.0)]
    assert overload(71, 5.0, 20.0, ready, LENGTHS) is None
    assert overload(74, 5.0, 20.0, ready, LENGTHS) is not None
    assert overload(100, 5.0, 20.0, [], LENGTHS) is None
    assert overload(100, 0.0, 0.1, ready, LENGTHS) is None
