"""What `shoal explain` says holds a scale-in back is what the rule goes by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.standing import standing
from autoscaler.state import Observation
from autoscaler.transitions.turns import Turns
from streams.controller.loop import TickDone
from streams.health.facts import guards_of
from tests.unit.decide.decide_world import world


@pytest.mark.parametrize(("turned", "minutes"), [(False, 10), (True, 30)])
def test_the_time_an_excess_must_last_is_the_one_that_counts_now(
    turned: bool, minutes: int
) -> None:
    """After demand came back, the long window."""
    w = world(5.0)
    w.tick()
    turns = Turns("out", (w.now_ms - 3_600_000,) if turned else ())
    state = replace(w.state, models={"chat": replace(w.state.models["chat"], turns=turns)})
    done = TickDone(state, state, Observation(), w.cluster, w.now_ms, (), 0.0)
    found = standing(state, Observation(), w.cluster, w.now_ms).models[0]
    said = guards_of(done, replace(found, held=""))
    assert f"scale-in after {minutes} min of excess" in said[-1]
