"""Worlds that differ from the predictions: what each policy attains and costs there.

The demand is the trace `swing` of the scorecard (single requests). No policy knows the difference,
and each has its default settings.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.engine_setups import EngineSetups
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import GatewaySilent, LaunchesFail, ScriptEvent
from loadtests.results.entry import Figures
from loadtests.scorecard import demand_of, figures_of
from loadtests.scorecard_scenarios import SCENARIOS
from streams.tools.backtest.backtest_runs import prepared

CONTENDERS = ("shoal", "hpa-rate", "knative", "skyserve")
_SWING = next(replace(one, fluid=False) for one in SCENARIOS if one.name == "swing")
INPUTS = _SWING.inputs
_SLOWER = 1.0 / 0.75
_FAILS_S = 30.0


@dataclass(frozen=True, slots=True)
class World:
    """One difference from the predictions. engine: changes the engines. script: events that are
    added to the scenario."""

    name: str
    engine: Callable[[EngineSetup], EngineSetup] = lambda setup: setup
    script: Callable[[Scenario], Iterator[ScriptEvent]] = lambda scenario: iter(())


def _slower(setup: EngineSetup) -> EngineSetup:
    """An engine at three quarters of the predicted speed."""
    times = setup.times
    corrected = times.correction.scaled(_SLOWER, _SLOWER)
    return replace(setup, times=replace(times, correction=corrected))


def _late(setup: EngineSetup) -> EngineSetup:
    return replace(setup, startup_s=2.0 * setup.startup_s)


def _silence(scenario: Scenario) -> Iterator[ScriptEvent]:
    """No telemetry for ten minutes, from the rise of the demand on."""
    at_s = scenario.lead_s + 0.2 * scenario.duration_s
    yield GatewaySilent(at_s, 0, at_s + 600.0)


def _failures(scenario: Scenario) -> Iterator[ScriptEvent]:
    """Launches fail in every second half minute."""
    for at_s in np.arange(scenario.lead_s, scenario.end_s, 2.0 * _FAILS_S):
        for pool in scenario.cluster.pools:
            yield LaunchesFail(float(at_s), pool.id, float(at_s) + _FAILS_S)


WORLDS = (
    World("as predicted"),
    World("engines 25% slower", engine=_slower),
    World("starts take twice as long", engine=_late),
    World("no telemetry for 10 min", script=_silence),
    World("half of the launches fail", script=_failures),
)


@contextmanager
def _engines(change: Callable[[EngineSetup], EngineSetup]) -> Iterator[None]:
    known = EngineSetups.setup

    def setup(self: EngineSetups, *args: Any) -> Any:
        found = known(self, *args)
        return change(found) if isinstance(found, EngineSetup) else found

    with mock.patch.object(EngineSetups, "setup", setup):
        yield


def run(world: World, name: str, seed: int, folder: Path) -> Score:
    """The score of the policy `name` in `world`."""
    workload, setting = prepared(demand_of(_SWING, seed, folder)[0], seed)
    scenario = workload.scenario
    scenario = replace(scenario, script=(*scenario.script, *world.script(scenario)))
    policy = POLICIES[name]
    trial = policy.build(replace(setting, scenario=scenario), policy.default)
    with _engines(world.engine):
        ran = simulate(trial.scenario, trial.decider, trial.plan)
    return score(ran, scenario, setting.lengths)


def measure(seed: int) -> Figures:
    """The figures of each policy in each world."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            world.name: {
                name: figures_of(run(world, name, seed, Path(folder))) for name in CONTENDERS
            }
            for world in WORLDS
        }
