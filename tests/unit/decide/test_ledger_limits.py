"""Limits of a restored state: they refuse damage, and nothing that a controller writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.workload import Lengths
from autoscaler.state.ledger_limits import check_model
from autoscaler.state.model_state import DemandEstimate, ModelState
from topics.checks import InvalidValue

STATE = ModelState(DemandEstimate(Lengths(100.0, 20.0)))


def with_capacity(**changes: float) -> ModelState:
    return replace(STATE, capacity=replace(STATE.capacity, **changes))


def test_an_interval_that_ends_below_the_plan_is_restored() -> None:
    """Public points of a GPU may all be slower than predicted."""
    check_model(with_capacity(predicted=0.999999, highest=0.8))


@pytest.mark.parametrize("name", ["derate", "predicted", "highest"])
@pytest.mark.parametrize("value", [0.0, -1.0, 1e9, float("nan")])
def test_an_impossible_factor_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=f"capacity.{name}"):
        check_model(with_capacity(**{name: value}))
