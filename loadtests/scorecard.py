"""Shoal and other policies on fixed traces, each policy at its default and over a grid.

A seed draws a generated trace, and the models of the requests of a recorded one. Shoal has its
default settings. Each other policy has one main parameter, and the grid is its list of values in
the table of policies. Its best value is chosen on the judged traces themselves, so the other
policies know them beforehand and Shoal does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.policy_score import Score
from loadtests.arrivals import Draw, resampled_lengths
from loadtests.results.entry import Figures
from loadtests.scorecard_scenarios import SCENARIOS, Scenario
from streams.tools.backtest.backtest_runs import Run, run
from streams.tools.backtest.demand_options import Demand
from streams.tools.replay.traces import Trace, load_trace

HERE = Path(__file__).parent
BUNDLED_TRACE = HERE.parent / "streams" / "data" / "azure2023_conv.csv.gz"
BASELINES = ("hpa-utilization", "hpa-rate", "knative", "skyserve", "fixed-peak")
HINDSIGHT = ("fixed-peak",)
"""Policies that know the judged trace whatever their parameter is."""


def measure(seed: int, name: str) -> Figures:
    """The figures of every policy on one draw of the scenario."""
    scenario = next(one for one in SCENARIOS if one.name == name)
    with tempfile.TemporaryDirectory() as folder:
        demand, requests = demand_of(scenario, seed, Path(folder))
        return {"requests": requests} | compared(demand, seed, BASELINES)


def compared(demand: Demand, seed: int, baselines: Sequence[str]) -> Figures:
    """Shoal at its default, and each of `baselines` at every value of its grid."""
    shoal = run(Run(demand, "shoal", POLICIES["shoal"].default, seed)).score
    assert shoal is not None
    found: Figures = {"shoal": figures_of(shoal)}
    for name in baselines:
        policy = POLICIES[name]
        found[name] = {}
        for value in dict.fromkeys((policy.default, *policy.values)):
            score = run(Run(demand, name, value, seed)).score
            assert score is not None
            found[name][f"{value:g}"] = figures_of(score)
    return found


def figures_of(score: Score) -> Figures:
    """Cost, share of requests that met their SLO, and how often the fleet changed."""
    return {
        "usd": score.cost_usd,
        "met": score.slo_attainment,
        "least_met": min(
            (one.attained / one.requests for one in score.models.values() if one.requests),
            default=1.0,
        ),
        "starts": score.starts,
        "reversals_per_h": score.reversals_per_h,
    }


def demand_of(
    scenario: Scenario, seed: int, folder: Path, share: float = 1.0
) -> tuple[Demand, int]:
    """The draw of `seed` as a trace in `folder`, with its number of requests. share: of the
    length."""
    random = np.random.default_rng([seed, *scenario.name.encode()])
    arrivals = drawn_requests(scenario, share, random)
    trace = written_trace(folder / f"{scenario.name}-{seed}.csv", arrivals)
    config = HERE / scenario.config if scenario.config else None
    return Demand((str(trace),), config, fluid=scenario.fluid), len(arrivals)


def drawn_requests(scenario: Scenario, share: float, random: np.random.Generator) -> list[Arrival]:
    """One draw of the scenario's requests. share: of the length."""
    span_s = share * scenario.span_s
    trace = load_trace(HERE.parent / scenario.file if scenario.file else BUNDLED_TRACE)
    pairs = list(zip(trace.input_tokens, trace.output_tokens, strict=True))
    if scenario.make is not None:
        return _generated(scenario, span_s, resampled_lengths(pairs), random)
    return _recorded(scenario, trace, span_s, random)


def _generated(
    scenario: Scenario, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    assert scenario.make is not None
    shares = scenario.models.items()
    rate, make = scenario.req_per_s, scenario.make
    found = [a for model, part in shares for a in make(model, part * rate, span_s, draw, random)]
    return sorted(found, key=lambda arrival: arrival.at_s)


def _recorded(
    scenario: Scenario, trace: Trace, span_s: float, random: np.random.Generator
) -> list[Arrival]:
    """The requests of the first `span_s` seconds, each of a random model."""
    count = sum(at_ms < 1000.0 * span_s for at_ms in trace.arrivals_ms)
    names = random.choice(list(scenario.models), count, p=list(scenario.models.values()))
    rows = zip(trace.arrivals_ms, trace.input_tokens, trace.output_tokens, strict=True)
    return [
        Arrival(at_ms / 1000.0, str(name), inputs, outputs)
        for name, (at_ms, inputs, outputs) in zip(names, rows, strict=False)
    ]


def written_trace(path: Path, arrivals: Sequence[Arrival]) -> Path:
    """Write the requests as a CSV file."""
    rows = [f"{a.at_s:.3f},{a.model},{a.input_tokens},{a.output_tokens}" for a in arrivals]
    path.write_text("\n".join(["time,model,input_tokens,output_tokens", *rows]) + "\n")
    return path
