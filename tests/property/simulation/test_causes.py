"""In short runs of the production controller, no cause contradicts its cost or the fleet."""

from __future__ import annotations

from dataclasses import replace

from loadtests.cause_runs import checked, scenario_of


def test_no_decision_of_a_short_run_contradicts_its_cost_or_the_fleet() -> None:
    scenario = scenario_of("day", share=0.05)
    found = checked(replace(scenario, arrivals=scenario.arrivals[::4]))
    assert found.changes >= 3
    assert [(text, one.reason) for text, one in found.wrong] == []
