"""The sizing sum leads from the measured rate to the capacity that a target needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.sizing.sizing_sum import sizing_sum
from tests.unit.sizing.target_views import stats, view

VIEW = view(ModelDemand((), stats(0, 120)), planned=8.0)


def test_headroom_and_margins_add_up_to_the_needed_capacity() -> None:
    service = replace(VIEW.service, utilization=0.8)
    state = replace(
        VIEW.state,
        target=replace(VIEW.state.target, req_per_s=6.0),
        capacity=replace(VIEW.state.capacity, derate=0.75),
    )
    made = sizing_sum(service, state, 5.0)
    assert made.headroom_req_per_s == pytest.approx(1.0)
    assert made.needed_req_per_s == pytest.approx(10.0)


def test_without_data_the_target_has_no_headroom() -> None:
    made = sizing_sum(
        VIEW.service, replace(VIEW.state, target=replace(VIEW.state.target, req_per_s=6.0)), None
    )
    assert made.headroom_req_per_s == 0.0 and made.present_req_per_s is None
