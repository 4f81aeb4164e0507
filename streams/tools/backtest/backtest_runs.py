"""The runs of a backtest: their list, and their parallel execution.

A run is one (policy, knob, seed, trace). joblib distributes the runs over this machine's cores or
the user's Dask or Ray cluster. A worker reads the traces itself and keeps the last workload that it
read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import joblib
import orjson

from autoscaler.simulation.hindsight import hindsight_cost
from autoscaler.simulation.policies.policy import PolicyContext, policy_context
from autoscaler.simulation.policy_score import Score, score
from autoscaler.simulation.rate_simulator import simulate_rates
from autoscaler.simulation.simulator import simulate
from streams.files.csv_rows import cause_of
from streams.files.user_errors import UserError
from streams.garbage_collection import freeze_objects
from streams.tools.backtest.backtest_demand import Workload, load_workload
from streams.tools.backtest.demand_options import Demand
from streams.tools.backtest.object_policy import policy_of
from streams.tools.playback.timeline_run import RecordedRun, timeline_run

BACKENDS = ("local", "dask", "ray")


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation. policy: a name in the table of policies, or the hindsight plan. timeline: the
    output file. recorded: whether the outcome holds a recording for the console."""

    demand: Demand
    policy: str
    knob: float
    seed: int
    timeline: Path | None = None
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: a score, or the plan in hindsight. recording: see `Run.recorded`."""

    run: Run
    score: Score | None = None
    hindsight: hindsight_cost.Hindsight | None = None
    recording: RecordedRun | None = None


_kept: dict[object, Score] = {}
"""Scores of this process by demand, seed and fleet: several knobs may give the same fixed fleet."""


@lru_cache(maxsize=2)
def prepared(demand: Demand, seed: int) -> tuple[Workload, PolicyContext]:
    """The workload of `demand` and the information that policies may use."""
    workload = load_workload(demand, seed)
    setting = policy_context(workload.scenario, demand.fluid)
    freeze_objects()
    return workload, setting


def run(one: Run) -> Outcome:
    """Simulate `one`, and judge the result by the declared SLOs. UserError: the timeline cannot be
    written."""
    workload, setting = prepared(one.demand, one.seed)
    if one.policy == hindsight_cost.NAME:
        return Outcome(one, hindsight=hindsight_cost.hindsight(setting))
    policy = policy_of(one.policy)
    trial = policy.build(setting, one.knob)
    kept = None if trial.key is None else (one.demand, one.seed, trial.key)
    if kept in _kept and one.timeline is None and not one.recorded:
        return Outcome(one, _kept[kept])
    if one.demand.fluid:
        found = simulate_rates(trial.scenario, trial.decider, trial.plan, policy.tick_s)
    else:
        found = simulate(trial.scenario, trial.decider, trial.plan)
    if one.timeline is not None:
        try:
            with one.timeline.open("wb") as out:
                out.writelines(orjson.dumps(line) + b"\n" for line in found.lines())
        except OSError as error:
            raise UserError(f"{one.timeline}: cannot be written ({cause_of(error)})") from None
    recording = None
    if one.recorded:
        recording = timeline_run(one.policy, found, workload.scenario, setting.lengths)
    result = score(found, workload.scenario, setting.lengths)
    if kept is not None:
        _kept[kept] = result
    return Outcome(one, result, recording=recording)


def run_all(
    runs: Sequence[Run],
    jobs: int,
    backend: str,
    done: Callable[[Run], None],
    known: dict[Run, Outcome],
) -> list[Outcome]:
    """The outcomes of all runs, in the order of `runs`. jobs: processes, -1 = all cores.

    known: outcomes of earlier runs, which are not repeated; the new ones are added. done: called
    with each finished run, in the order in which runs finish.
    """
    left = []
    for one in dict.fromkeys(runs):
        # `known` holds no run with a timeline, so such a run always writes its file.
        if one in known:
            done(one)
        else:
            left.append(one)
    for outcome in _each(left, jobs, backend) if left else ():
        known[replace(outcome.run, timeline=None, recorded=False)] = outcome
        done(outcome.run)
    return [known[replace(one, timeline=None, recorded=False)] for one in runs]


def _each(runs: Sequence[Run], jobs: int, backend: str) -> Iterator[Outcome]:
    if backend == "local" and (jobs == 1 or len(runs) == 1):
        yield from map(run, runs)
        return
    with _cluster(backend):
        # With a cluster, joblib returns all results together at the end.
        mode = "generator_unordered" if backend == "local" else "list"
        yield from joblib.Parallel(n_jobs=jobs, return_as=mode)(
            joblib.delayed(run)(one) for one in runs
        )


@contextmanager
def _cluster(backend: str) -> Iterator[None]:
    """In this context, joblib uses `backend`. UserError if a package of the backend is missing."""
    if backend == "local":
        yield
        return
    try:
        if backend == "dask":
            from distributed import Client
        else:
            from ray.util.joblib import register_ray
    except ImportError as error:
        hint = f"pip install 'shoal[{backend}]'"
        raise UserError(f"--backend {backend}: {error.name} is not installed ({hint})") from None
    # Dask's own configuration names the scheduler; without one Dask starts a local scheduler.
    with Client() if backend == "dask" else nullcontext():
        if backend == "ray":
            register_ray()
        with joblib.parallel_config(backend=backend):
            yield


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The middle 90% of values, by nearest rank.

    For up to 20 values, these are the least and the greatest value.
    """
    ranked = sorted(values)
    last = len(ranked) - 1
    return ranked[math.floor(0.05 * last)], ranked[math.ceil(0.95 * last)]
