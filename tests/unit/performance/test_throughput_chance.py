"""Small batches need room for chance; large ones have it in the utilization."""

from __future__ import annotations

import math

import pytest

from autoscaler.performance.throughput import sustained_batch


@pytest.mark.parametrize("limit", [1.0, 3.0, 9.0, 18.0, 40.0])
def test_a_small_batch_stays_within_its_limit_in_95_of_100_cases(limit: float) -> None:
    mean = 0.8 * sustained_batch(limit, 0.8)
    if sustained_batch(limit, 0.8) > 1.0:
        assert mean + 1.65 * math.sqrt(mean) <= limit * (1 + 1e-9)


def test_a_large_batch_needs_no_more_room_than_the_utilization_leaves() -> None:
    assert sustained_batch(137.0, 0.8) == 137.0
    assert sustained_batch(256.0, 0.8) == 256.0


def test_more_room_is_never_less_batch() -> None:
    batches = [sustained_batch(float(limit), 0.8) for limit in range(1, 300)]
    assert batches == sorted(batches)
    assert all(batch <= limit for limit, batch in enumerate(batches, 1))
