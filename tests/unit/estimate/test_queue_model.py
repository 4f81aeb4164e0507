"""Expected requests in flight: Little's law plus the spread of a random queue."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest

from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.estimate.engine_rate import Moment
from autoscaler.estimate.queue_model import (
    detect_overload,
    expected_in_flight,
    max_explained_in_flight,
    queue_drains,
)

LENGTHS = Lengths.expected(1000.0, 200.0)


def combo(req_per_s: float, tpot_ms: float, ttft_ms: float = 0.0) -> Combo:
    member = ComboMember(Phase.AGGREGATED, "eu/l4/spot", 1, 1, req_per_s)
    return Combo(f"m{tpot_ms}", "m", "eu", (member,), req_per_s, 1.0, ttft_ms, tpot_ms, 60.0)


def test_the_load_spreads_in_proportion_to_capacity() -> None:
    """3 req/s spread over combos of 2 and 4 req/s with residence times of 10 and 4 s, so 1 x 10 + 2
    x 4 are in flight.
    """
    ready = [combo(2.0, 50.0), combo(4.0, 20.0)]
    assert expected_in_flight(3.0, ready, LENGTHS) == pytest.approx(18.0)
    assert expected_in_flight(3.0, [], LENGTHS) == 0.0


def in_system(slots: int, rate: float, residence_s: float, seconds: int, seed: int) -> list[int]:
    """Requests in a simulated queue at each second, with `slots` servers and exponential service
    times.
    """
    rng = np.random.default_rng(seed)
    arrivals = deque(np.cumsum(rng.exponential(1.0 / rate, int(rate * seconds * 1.1 + 100))))
    free = [0.0] * slots
    ends: list[float] = []
    found = []
    for second in range(seconds):
        while arrivals and arrivals[0] <= second:
            begin = max(arrivals.popleft(), heapq.heappop(free))
            end = begin + rng.exponential(residence_s)
            heapq.heappush(free, end)
            heapq.heappush(ends, end)
        while ends and ends[0] <= second:
            heapq.heappop(ends)
        found.append(len(ends))
    return found


@pytest.mark.parametrize("slots", [4, 8, 32, 128])
@pytest.mark.parametrize("load", [0.5, 0.75, 0.8])
def test_random_queues_at_planned_loads_stay_within_the_limit(slots: int, load: float) -> None:
    """During six hours a random queue exceeds the limit for less than 0.3% of the time."""
    ready = [combo(slots / 10.0, 50.0)]  # a residence time of 10 s
    rate = load * slots / 10.0
    counts = in_system(slots, rate, 10.0, 21_600, 1)
    limit = max_explained_in_flight(rate, ready, LENGTHS)
    assert np.mean([count > limit for count in counts]) < 0.003
    assert limit < slots + 36  # The limit is also not loose.


def test_the_limit_for_many_slots_is_three_sigma() -> None:
    """If 80 of 128 slots are expected to be busy, the limit is 80 + 3 sqrt(80) = 107 requests."""
    assert max_explained_in_flight(8.0, [combo(12.8, 50.0)], LENGTHS) == pytest.approx(
        106.8, abs=0.1
    )


def test_an_overload_explains_at_most_the_requests_of_a_full_fleet() -> None:
    """Otherwise an overload would explain its own requests in flight."""
    ready = [combo(12.8, 50.0)]
    assert (
        max_explained_in_flight(30.0, ready, LENGTHS)
        == max_explained_in_flight(12.0, ready, LENGTHS)
        < 190
    )


def test_the_rate_of_an_overload_follows_its_requests_up_to_the_upper_bound() -> None:
    """N / L = 2 at 8 req/s gives 16 req/s, or 11 if the upper bound of the rate is 11."""
    ready = [combo(12.8, 50.0)]
    found = detect_overload(160, 8.0, 20.0, ready, LENGTHS)
    assert found is not None
    assert found.expected == pytest.approx(80.0)
    assert found.req_per_s == pytest.approx(16.0)
    capped = detect_overload(160, 8.0, 11.0, ready, LENGTHS)
    assert capped is not None and capped.req_per_s == 11.0
    without = detect_overload(160, 8.0, 0.0, ready, LENGTHS)
    assert without is not None and without.req_per_s == 8.0


def test_no_overload_within_chance_or_without_combos() -> None:
    """If 80 requests are expected in flight, 106 are within chance and 107 are not. Without combos
    or without a rate there is no overload.
    """
    ready = [combo(12.8, 50.0)]
    assert detect_overload(106, 8.0, 20.0, ready, LENGTHS) is None
    assert detect_overload(107, 8.0, 20.0, ready, LENGTHS) is not None
    assert detect_overload(100, 5.0, 20.0, [], LENGTHS) is None
    assert detect_overload(100, 0.0, 0.1, ready, LENGTHS) is None


@pytest.mark.parametrize(("now", "drains"), [(300, True), (340, True), (350, False), (450, False)])
def test_a_queue_drains_if_its_requests_become_significantly_fewer(now: int, drains: bool) -> None:
    """400 requests were in flight at the oldest moment. Chance changes their number by 2 sqrt(750),
    which is 55."""
    moments = Moment(0, 400), Moment(20_000, 420)
    assert queue_drains(moments, now) is drains
    assert not queue_drains((), now)
