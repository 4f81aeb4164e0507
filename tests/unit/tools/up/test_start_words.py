"""The sentences of the start of a run."""

from __future__ import annotations

from streams.tools.up.run_state import FleetProgress
from streams.tools.up.start_words import first_fleet_words, starting_words


def test_the_start_names_the_parts_that_are_not_ready() -> None:
    names = ["gateway", "controller", "executor-eu", "executor-us", "windows"]
    assert starting_words(names, 1.0) == (
        "starting the controller, the executors, the gateway and the window workers"
    )
    assert starting_words(["executor-us"], 60.0) == "starting the executors"
    assert starting_words([], 1.0) == "starting"


def test_a_controller_that_takes_long_is_explained() -> None:
    found = starting_words(["controller"], 5.0)
    assert found.startswith("starting the controller; the first start on a machine compiles code")


def test_the_first_fleet_is_planned_and_then_started() -> None:
    none: frozenset[str] = frozenset()
    assert first_fleet_words(FleetProgress(0, 0, none, none, none), 120.0) == (
        "waiting for the first fleet: the controller plans it"
    )
    assert first_fleet_words(FleetProgress(1, 3, none, none, none), 120.0) == (
        "waiting for the first fleet: 1 of 3 instances ready, at most 2 min"
    )
