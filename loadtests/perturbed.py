"""Worlds that differ from the predictions: what each policy attains and costs there.

usage: python -m loadtests.perturbed [--policies A,B,...] [--seeds N] [--world W,...] [--jobs N]

The demand is the trace `swing` of the scorecard (25 minutes, single requests). No policy knows the
difference. Prints a row per world and policy: cost, attainment, and the most reversals of one model
within an hour, as means over the seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import joblib
import numpy as np

from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.engine_setups import EngineSetups
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import simulate
from autoscaler.simulation.supply_script import GatewaySilent, LaunchesFail, ScriptEvent
from loadtests.decision_bench import BUNDLED_TRACE
from loadtests.scorecard import drawn_requests, written_trace
from loadtests.scorecard_scenarios import SCENARIOS
from streams.tools.backtest.backtest_runs import prepared
from streams.tools.backtest.demand_options import Demand

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
    workload, setting = prepared(Demand((str(_trace(folder, seed)),)), seed)
    scenario = workload.scenario
    scenario = replace(scenario, script=(*scenario.script, *world.script(scenario)))
    policy = POLICIES[name]
    trial = policy.build(replace(setting, scenario=scenario), policy.default)
    with _engines(world.engine):
        ran = simulate(trial.scenario, trial.decider, trial.plan)
    return score(ran, scenario, setting.lengths)


def _trace(folder: Path, seed: int) -> Path:
    path = folder / f"swing-{seed}.csv"
    if not path.exists():
        swing = next(one for one in SCENARIOS if one.name == "swing")
        random = np.random.default_rng([seed, *b"perturbed"])
        written_trace(path, drawn_requests(swing, BUNDLED_TRACE, 1.0, random)[-1])
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.perturbed")
    parser.add_argument("--policies", default="shoal,hpa-queue,hpa-utilization,knative,skyserve")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--world", default=",".join(world.name for world in WORLDS))
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(argv)
    worlds = [world for world in WORLDS if world.name in args.world.split(",")]
    seeds = range(1, args.seeds + 1)
    print("| world | policy | USD | SLO met | most reversals/h |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            _trace(Path(folder), seed)
        for world in worlds:
            for name in args.policies.split(","):
                made = joblib.Parallel(n_jobs=args.jobs)(
                    joblib.delayed(run)(world, name, seed, Path(folder)) for seed in seeds
                )
                usd = fmean(one.cost_usd for one in made)
                met = fmean(one.slo_attainment for one in made)
                turns = fmean(one.reversals_per_h for one in made)
                print(
                    f"| {world.name} | {name} | {usd:.2f} | {met:.2%} | {turns:.1f} |", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
