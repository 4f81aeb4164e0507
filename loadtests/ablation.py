"""Measures what each rule of the product is worth: runs with all rules, and without one of them.

usage: python -m loadtests.ablation [--traces DIR] [--work DIR] [--seeds N] [--only RULE,...]
      [--on TRACE,...] [--jobs N] [--out FILE]

The traces are those of the scorecard except the fleet's day, and five generated ones; all are
simulated as rates, with the declared percentile. Each seed is a new draw of a generated trace, and
of the assignment of a recorded trace's requests to the models. A rule that changed no result of its
function in a run is not taken out of that run. --work keeps the figures of each run, so the command
can be stopped and continued.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import joblib
import numpy as np
import orjson

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import score
from autoscaler.simulation.rate_simulator import simulate_rates
from loadtests.ablation_page import write
from loadtests.ablation_rules import RULES, WITH_ALL, Case, Figures, removed, watching
from loadtests.arrivals import Draw, Step, gamma_renewal, poisson
from loadtests.scorecard import (
    HERE,
    ROOT,
    commit_of_code,
    drawn_requests,
    source_of,
    written_trace,
)
from loadtests.scorecard_scenarios import SCENARIOS, Scenario
from streams.tools.backtest.backtest_runs import prepared
from streams.tools.backtest.demand_options import Demand


def _flash(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Five times the rate from a third of the time on, falling back within three minutes."""
    at_s = span_s / 3.0
    falls = [Step(at_s + 30.0 * n, rate * (5.0 - 4.0 * n / 6.0)) for n in range(7)]
    return poisson(model, [Step(0.0, rate), *falls], span_s, draw, random)


def _sawtooth(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """The rate rises from 0.4 to 1.6 of the mean within ten minutes, and falls at once."""
    steps = [
        Step(at_s, rate * (0.4 + 1.2 * at_s % 600.0 / 600.0))
        for at_s in np.arange(0.0, span_s, 30.0)
    ]
    return poisson(model, steps, span_s, draw, random)


def _in_turn(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Each model has most of its requests in another third of the time."""
    third_s, first = span_s / 3.0, sum(model.encode()) % 3
    steps = [Step(n * third_s, rate * (2.2 if n == first else 0.4)) for n in range(3)]
    return poisson(model, steps, span_s, draw, random)


def _pauses(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Five minutes of requests, then five minutes without any."""
    begins = np.arange(0.0, span_s, 600.0)
    steps = [
        Step(at_s + off, each) for at_s in begins for off, each in ((0.0, 2 * rate), (300.0, 0.0))
    ]
    return poisson(model, steps, span_s, draw, random)


def _waves(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Bursts around a rate that a new draw changes every four minutes."""
    found: list[Arrival] = []
    for at_s in np.arange(0.0, span_s, 240.0):
        now = rate * random.gamma(4.0, 0.25)
        made = gamma_renewal(model, max(now, 0.05), 2.0, min(240.0, span_s - at_s), draw, random)
        found += [
            Arrival(at_s + one.at_s, model, one.input_tokens, one.output_tokens) for one in made
        ]
    return found


GENERATED = (
    Scenario("flash", "five times the rate, suddenly", 1500.0, _flash, req_per_s=6.0),
    Scenario("sawtooth", "rises for ten minutes, falls at once", 1800.0, _sawtooth, req_per_s=10.0),
    Scenario("in turn", "a peak of each model in turn", 1800.0, _in_turn, req_per_s=12.0),
    Scenario("pauses", "five minutes on, five minutes off", 1800.0, _pauses, req_per_s=8.0),
    Scenario("waves", "bursts around a changing rate", 1800.0, _waves, req_per_s=8.0),
)
TRACES = (*(one for one in SCENARIOS if one.recipe is None), *GENERATED)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.ablation")
    parser.add_argument("--traces", type=Path, help="the folder of the public traces")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "ablation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(rule.name for rule in RULES), metavar="RULE,...")
    parser.add_argument("--on", default=",".join(one.name for one in TRACES), metavar="TRACE,...")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "rules.md")
    args = parser.parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = args.only.split(",")
    traces = [one for one in TRACES if one.name in args.on.split(",")]
    found: dict[Case, Figures] = {}
    cases = [Case(one.name, seed, WITH_ALL) for one in traces for seed in range(1, args.seeds + 1)]
    _run(cases, args, found)
    cases = [
        Case(case.trace, case.seed, rule.name)
        for rule in RULES
        for case, figures in list(found.items())
        if rule.name in wanted and rule.name in figures.made_a_difference
    ]
    _run(cases, args, found)
    rules, names = [one for one in RULES if one.name in wanted], [one.name for one in traces]
    how = (
        f"{datetime.now(UTC).date().isoformat()}, commit {commit_of_code()}. Written by `python -m "
        f"loadtests.ablation --traces FOLDER`, with {args.seeds} seeds. Figures are means over all "
        "traces; the change of a trace on which the rule makes no difference is 0."
    )
    write(args.out, rules, names, found, how)
    print(f"{args.out}: {len(found)} runs")
    return 0


def _run(cases: Sequence[Case], args: argparse.Namespace, found: dict[Case, Figures]) -> None:
    """Add the figures of all `cases` to `found`, from --work or from new runs."""
    left = []
    for case in cases:
        path = _path(args.work, case)
        if path.exists():
            known = orjson.loads(path.read_bytes())
            known["made_a_difference"] = tuple(known["made_a_difference"])
            found[case] = Figures(**known)
        else:
            left.append(case)
    runs = (joblib.delayed(_figures)(case, args.traces, args.work) for case in left)
    begin_s = time.monotonic()
    made = joblib.Parallel(n_jobs=args.jobs, return_as="generator")(runs)
    for number, (case, figures) in enumerate(zip(left, made, strict=True), 1):
        found[case] = figures
        took_s = time.monotonic() - begin_s
        run = f"{case.trace} {case.seed} without {case.rule or 'nothing'}"
        result = f"{figures.usd:.2f} USD, {figures.attained:.2%}"
        print(f"{number} of {len(left)} runs, {took_s:.0f} s: {run}: {result}", flush=True)


def _path(work: Path, case: Case) -> Path:
    return work / f"{case.trace}-{case.seed}-{case.rule or 'all rules'}.json"


def _figures(case: Case, traces: Path | None, work: Path) -> Figures:
    scenario = next(one for one in TRACES if one.name == case.trace)
    demand = _demand(scenario, case.seed, traces, work)
    rule = next((one for one in RULES if one.name == case.rule), None)
    workload, setting = prepared(demand, case.seed)
    policy = POLICIES["shoal"]
    trial = policy.build(setting, 0.0)
    with watching(RULES) if rule is None else removed(rule) as seen:
        ran = simulate_rates(trial.scenario, trial.decider, trial.plan, policy.tick_s)
    result = score(ran, workload.scenario, setting.lengths)
    changed = sum(abs(n) for one in ran.decisions if one.applied for _, n in one.change)
    figures = Figures(result.cost_usd, result.slo_attainment, changed, tuple(sorted(seen)))
    _path(work, case).write_bytes(orjson.dumps(asdict(figures)))
    return figures


def _demand(scenario: Scenario, seed: int, traces: Path | None, work: Path) -> Demand:
    """The scenario's demand of one seed, written to `work` if it is not there."""
    source = source_of(scenario, traces)
    if source is None:
        raise SystemExit(f"--traces: {scenario.file} is not there")
    path = work / f"{scenario.name}-{seed}.csv"
    if not path.exists():
        random = np.random.default_rng([seed, *scenario.name.encode()])
        written_trace(path, drawn_requests(scenario, source, 1.0, random)[-1])
    config = HERE / scenario.config if scenario.config else None
    return Demand((str(path),), config, fluid=True)


if __name__ == "__main__":
    sys.exit(main())
