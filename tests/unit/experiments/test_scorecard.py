"""The scorecard: its draws are deterministic, and every policy has its default and its grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.simulation.policies.registry import POLICIES
from loadtests.results.entry import ROOT
from loadtests.scorecard import compared, demand_of
from loadtests.scorecard_scenarios import SCENARIOS, Scenario
from streams.tools.replay.traces import load_trace


def named(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


@pytest.mark.parametrize("name", ["steps", "aibrix"])
def test_a_seed_always_gives_the_same_trace_and_another_seed_another_one(
    name: str, tmp_path: Path
) -> None:
    found = []
    for folder, seed in (("x", 1), ("y", 1), ("z", 2)):
        (tmp_path / folder).mkdir()
        demand, requests = demand_of(named(name), seed, tmp_path / folder, 0.1)
        path = Path(demand.traces[0])
        assert requests == len(load_trace(path).arrivals_ms) > 50
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]


def test_recorded_requests_keep_their_times_and_lengths(tmp_path: Path) -> None:
    scenario = named("mooncake")
    demand, _ = demand_of(scenario, 1, tmp_path)
    given, drawn = load_trace(ROOT / scenario.file), load_trace(Path(demand.traces[0]))
    assert drawn.input_tokens == given.input_tokens[: len(drawn.input_tokens)]
    assert max(drawn.arrivals_ms) < 1000.0 * scenario.span_s
    assert set(drawn.models or ()) == set(scenario.models)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_fresh_clone_has_all_inputs(scenario: Scenario) -> None:
    assert all((ROOT / name).is_file() for name in scenario.inputs)


def test_a_policy_is_measured_at_its_default_and_at_each_value_of_its_grid(tmp_path: Path) -> None:
    demand, _ = demand_of(named("steps"), 1, tmp_path, 0.2)
    found = compared(demand, 1, ("knative",))
    policy = POLICIES["knative"]
    values = {policy.default, *policy.values}
    assert found["knative"].keys() == {f"{value:g}" for value in values}
    assert 0.0 < found["shoal"]["least_met"] <= found["shoal"]["met"] <= 1.0
    assert all(one["usd"] > 0.0 for one in (found["shoal"], *found["knative"].values()))
