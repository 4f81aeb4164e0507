"""The guards that `shoal explain` names are those of the scale-in rule."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.state.controller_state import Observation
from autoscaler.state.model_state import ModelState, PredictionDrift
from autoscaler.tick.status import fleet_status
from streams.health.controller_facts import guards_of
from streams.loop.tick_loop import TickResult
from tests.unit.decide.decide_world import World, world


def test_the_shown_excess_period_is_that_of_the_model() -> None:
    w = world(5.0)
    w.tick()
    assert "scale-in after 10 min of excess" in _guards(w, w.state.models["chat"])[-1]


def test_a_model_with_late_starts_for_more_than_a_day_shows_the_guard() -> None:
    w = world(5.0)
    w.tick()
    late = PredictionDrift(300.0, 60.0, off=True, worse_since_ms=w.now_ms - 86_400_000)
    model = w.state.models["chat"]
    model = replace(model, capacity=replace(model.capacity, drift=late))
    words = "instances start in ~5 min instead of ~60 s"
    assert f"scale-in paused: for more than a day now, {words}" in _guards(w, model)


def _guards(w: World, model: ModelState) -> list[str]:
    state = replace(w.state, models={"chat": model})
    done = TickResult(state, state, Observation(), w.cluster, w.now_ms, (), 0.0)
    found = fleet_status(state, Observation(), w.cluster, w.now_ms).models[0]
    return guards_of(done, replace(found, held="", is_held=False))
