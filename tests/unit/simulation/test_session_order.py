"""The next turn of a session waits for the answer to the previous one."""

from __future__ import annotations

import pytest

from autoscaler.simulation.arrivals import Arrival
from tests.unit.simulation.simulation_builders import ONE, run


def talk(*turns: tuple[float, float | None]) -> list[Arrival]:
    """Turns of one session, with the time and the pause of each."""
    return [Arrival(at_s, "mini", 1000, 100, session=1, delay_s=delay_s) for at_s, delay_s in turns]


def test_a_turn_follows_the_answer_after_its_pause_whatever_its_recorded_time() -> None:
    """The recorded time is 50 s, because the recorded server was slower."""
    first, second = run({ONE: 1}, talk((10.0, None), (50.0, 3.0)), 120.0, lead_s=120.0).requests
    assert first.end_s is not None
    assert second.arrival_s == pytest.approx(first.end_s + 3.0, abs=1e-3)
    assert second.outcome == "served"


def test_a_turn_without_a_pause_comes_at_its_time_unless_the_answer_is_later() -> None:
    """An answer of 100 tokens takes between 0.1 s and 30 s."""
    arrivals = [*talk((10.0, None), (10.1, None), (40.0, None)), Arrival(60.0, "mini", 10, 10)]
    first, second, third, last = run({ONE: 1}, arrivals, 120.0, lead_s=120.0).requests
    assert second.arrival_s == first.end_s
    assert (third.arrival_s, last.arrival_s) == (160.0, 180.0)


def test_turns_after_the_end_of_the_scenario_are_not_sent() -> None:
    """The third turn would come at 125 s, but the scenario ends at 120 s."""
    done = run({ONE: 1}, talk((10.0, None), (50.0, 80.0), (60.0, 80.0)), 120.0, lead_s=120.0)
    assert len(done.requests) == 2
