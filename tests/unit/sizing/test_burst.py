"""Bursts are sized relative to the mean demand since traffic began."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.sizing.scale_out_rules import burst_headroom, mean_and_burst
from tests.unit.estimate.test_overdispersion import blocks_of, gamma_counts
from tests.unit.sizing.target_views import stats, view


@pytest.mark.parametrize("idle", [0, 60, 120])
def test_idle_time_before_traffic_does_not_lower_the_size_of_bursts(idle: int) -> None:
    """Ten or twenty minutes without requests precede ten minutes of clustered
    arrivals at 5 req/s.
    """
    counts = np.concatenate((np.zeros(idle, np.int64), gamma_counts(5.0, 3.5, 60, seed=3)))
    seen = view(ModelDemand((), stats(600, 120), blocks=blocks_of(counts)), planned=5.0)
    mean, burst = mean_and_burst(seen.demand.blocks, seen.service.percentile)
    assert mean == pytest.approx(counts.sum() / 600.0)
    assert burst > 1.2 * mean
    found = burst_headroom(seen)
    assert found is not None and found.req_per_s == burst
