"""Conditions under which the measured mix of request types replaces the planned mix."""

from __future__ import annotations

import pytest

from autoscaler.domain.workload import Lengths, WorkloadType
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.window_stats import WindowLengths
from autoscaler.estimate.workload_mix import (
    declared_mix,
    estimate_kind_mix,
    estimate_mix,
    total_variation,
)
from topics.request_shapes import shape_of

TYPES = (
    WorkloadType("long", 0.3, Lengths(4000, 80)),
    WorkloadType("chat", 0.7, Lengths(300, 250)),
)
PLANNED = declared_mix(TYPES)


def window_lengths(long: int, chat: int) -> WindowLengths:
    return WindowLengths(shapes={shape_of(4100, 75): long, shape_of(280, 300): chat})


def estimate(local: WindowLengths, long: WindowLengths) -> dict[str, float]:
    demand = ModelDemand(local_lengths=local, long_lengths=long)
    return dict(estimate_mix(PLANNED, TYPES, demand, 5e-5))


@pytest.mark.parametrize("counts", [(0, 0), (3, 2), (6, 4), (31, 69), (340, 660), (250, 750)])
def test_chance_and_small_differences_keep_the_planned_mix(counts: tuple[int, int]) -> None:
    assert estimate(window_lengths(*counts), window_lengths(*counts)) == dict(PLANNED)


def test_a_significant_shift_replaces_the_planned_mix() -> None:
    """One window is enough, even if the long window has mostly earlier requests."""
    found = estimate(window_lengths(120, 80), window_lengths(400, 900))
    assert found["long"] == pytest.approx(0.6, abs=0.03)
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_type_that_stopped_keeps_a_share_above_zero() -> None:
    found = estimate(window_lengths(0, 300), window_lengths(0, 300))
    assert 0.0 < found["long"] < 0.05


def test_a_slow_drift_counts_if_both_windows_agree() -> None:
    assert estimate(window_lengths(9, 11), window_lengths(900, 1100))["long"] == pytest.approx(
        0.45, abs=0.01
    )
    # The mix differed half an hour ago; the last two minutes match the plan.
    assert estimate(window_lengths(240, 560), window_lengths(900, 1100)) == dict(PLANNED)


def test_the_distance_of_two_mixes_is_the_share_of_requests_of_other_types() -> None:
    assert total_variation({"a": 0.5, "b": 0.5}, {"a": 0.2, "c": 0.8}) == pytest.approx(0.8)


def test_a_significant_shift_of_kinds_counts_for_component_models() -> None:
    planned = (("text", 0.7), ("photo", 0.3))
    few = ModelDemand(kinds={"text": 4, "photo": 6})
    assert estimate_kind_mix(planned, few, 5e-5) is planned
    same = ModelDemand(kinds={"text": 690, "photo": 310})
    assert estimate_kind_mix(planned, same, 5e-5) is planned
    moved = dict(estimate_kind_mix(planned, ModelDemand(kinds={"text": 200, "photo": 800}), 5e-5))
    assert moved["photo"] == pytest.approx((800 + 20 * 0.3) / 1020)
    assert sum(moved.values()) == pytest.approx(1.0)
