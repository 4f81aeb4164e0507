"""The scorecard's scenarios: cut, generated and built traces, each with its configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.registry import VARIANTS
from loadtests import fleet_day
from loadtests.arrivals import (
    Draw,
    Step,
    Swing,
    gamma_renewal,
    lognormal_lengths,
    poisson,
    swinging,
)

MODELS = {"chat": 0.25, "code": 0.3, "mini": 0.45}
FEW = ("shoal", *VARIANTS, "homo", "fixed-peak")
Make = Callable[[str, float, float, Draw, np.random.Generator], list[Arrival]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. about: text for the page. make: generates arrivals of one model at a mean rate
    for a number of seconds, with the lengths of the bundled trace; req_per_s is the rate over all
    models. None = the slice [from_s, from_s + span_s) of the trace in `file`, with its requests
    assigned to the models at random. config: a file in this folder, "" for the bundled one. models:
    shares of the requests. policies: those to run if a run takes long, empty = all. fluid: simulate
    rates (`shoal backtest --fluid`). recipe: builds the whole backtest from the folder of `file`
    and a folder for its own files, as options of `shoal backtest`; its knobs are not tuned."""

    name: str
    about: str
    span_s: float
    make: Make | None = None
    file: str = ""
    from_s: float = 0.0
    rate_scale: float = 1.0
    req_per_s: float = 5.5
    config: str = ""
    models: Mapping[str, float] = field(default_factory=lambda: MODELS)
    policies: tuple[str, ...] = ()
    fluid: bool = False
    recipe: Callable[[Path, Path], list[str]] | None = None


def _swing(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    return swinging(model, Swing(rate, 4.0, span_s), span_s, draw, random)


def _bursts(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    return gamma_renewal(model, rate, 3.5, span_s, draw, random)


def _steps(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    low, high = 0.5 * rate, 2.0 * rate
    steps = [Step(0.0, low), Step(span_s / 3, high), Step(2 * span_s / 3, low)]
    return poisson(model, steps, span_s, draw, random)


def _hourly(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Jobs that start on the hour: the rate in the first tenth of every hour is four times the rate
    in the rest of the hour."""
    high = rate / 0.325
    steps = [
        Step(at_s, each)
        for hour_s in np.arange(0.0, span_s, 3600.0)
        for at_s, each in ((hour_s, high), (hour_s + 360.0, 0.25 * high))
        if at_s < span_s
    ]
    return poisson(model, steps, span_s, draw, random)


def _roles(
    model: str, rate: float, span_s: float, _: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Requests with long prompts and short answers; in the middle third of the time, requests with
    shorter prompts and longer answers at a higher rate."""
    third_s = span_s / 3.0
    prompts, answers = lognormal_lengths(6000.0, 150.0, 0.7), lognormal_lengths(2000.0, 400.0, 0.7)
    parts = ((0.82, prompts), (1.36, answers), (0.82, prompts))
    return [
        one
        for number, (share, draw) in enumerate(parts)
        for one in poisson(
            model, [Step(number * third_s, share * rate)], (number + 1) * third_s, draw, random
        )
    ]


def _mix(
    model: str, rate: float, span_s: float, _: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Requests at a constant rate that change from long prompts with short answers to short prompts
    with long answers, and back."""
    long, short = lognormal_lengths(8000.0, 80.0, 0.5), lognormal_lengths(500.0, 400.0, 0.5)
    return [
        one
        if random.random() < 0.5 + 0.5 * math.cos(2.0 * math.pi * one.at_s / span_s)
        else Arrival(one.at_s, model, *short(random))
        for one in poisson(model, [Step(0.0, rate)], span_s, long, random)
    ]


SCENARIOS = (
    Scenario(
        "conversation", "The first 20 min of Azure's conversations of 2023, at 5.5 req/s.", 1200.0
    ),
    Scenario(
        "aibrix",
        "8 min of AIBrix; the rate rises and falls.",
        480.0,
        file="aibrix_8min_up_and_down.csv.gz",
    ),
    Scenario(
        "mooncake",
        "The first 15 min of Mooncake, at 3.9 req/s. Prompts are long: 15,000 tokens on average.",
        900.0,
        file="mooncake_synthetic.jsonl.gz",
    ),
    Scenario(
        "servegen",
        "ServeGen m-large, 07:00 to 07:30 of its second day, at 3% of its rate.",
        1800.0,
        file="servegen/m-large_rate_10min.csv.gz",
        from_s=31 * 3600.0,
        rate_scale=0.03,
    ),
    Scenario(
        "swing",
        "25 min around 16.5 req/s. The rate rises to four times its lowest value and falls, once.",
        1500.0,
        _swing,
        req_per_s=16.5,
    ),
    Scenario(
        "bursts",
        "20 min of bursts at a mean of 5.5 req/s "
        "(Gamma arrivals with a coefficient of variation of 3.5).",
        1200.0,
        _bursts,
    ),
    Scenario("steps", "7 min at 2.75 req/s, 7 min at 11, and 7 min at 2.75.", 1260.0, _steps),
    Scenario(
        "large",
        "25 min around 24 req/s. The rate rises to four times its lowest value and falls, once. "
        "Two large models (chat 40%, code 60%) have a TTFT limit of 1 s. Each of five kinds of "
        "nodes is scarce (`loadtests/scorecard_large.yaml`). Simulated as rates.",
        1500.0,
        _swing,
        req_per_s=24.0,
        config="scorecard_large.yaml",
        models={"chat": 0.4, "code": 0.6},
        policies=FEW,
        fluid=True,
    ),
    Scenario(
        "roles",
        "8 min at 14.5 req/s with 6,000 tokens in and 150 out, 8 min at 24 req/s with 2,000 in and "
        "400 out, and 8 min as before. One model has a TPOT limit of 10 ms. Only six nodes exist "
        "(`loadtests/scorecard_roles.yaml`).",
        1440.0,
        _roles,
        req_per_s=17.67,
        config="scorecard_roles.yaml",
        models={"chat": 1.0},
        policies=FEW,
    ),
    Scenario(
        "hourly",
        "5 h at 1.5 req/s, except 6 req/s in the first 6 min of each hour. One model runs on nodes "
        "that take a minute to start (`loadtests/scorecard_hourly.yaml`). Simulated as rates.",
        18_000.0,
        _hourly,
        req_per_s=1.95,
        config="scorecard_hourly.yaml",
        models={"code": 1.0},
        policies=FEW,
        fluid=True,
    ),
    Scenario(
        "mix",
        "25 min at 16 req/s. Requests change once from 8,000 tokens in and 80 out to 500 in and "
        "400 out, and back. One model has at most twelve nodes (`loadtests/scorecard_mix.yaml`). "
        "Simulated as rates.",
        1500.0,
        _mix,
        req_per_s=16.0,
        config="scorecard_mix.yaml",
        models={"chat": 1.0},
        policies=FEW,
        fluid=True,
    ),
    Scenario(
        "scarce",
        "The requests of mix with a TTFT limit of 1 s, on three H100 and sixteen L40S "
        "(`loadtests/scorecard_scarce.yaml`). Simulated as rates.",
        1500.0,
        _mix,
        req_per_s=16.0,
        config="scorecard_scarce.yaml",
        models={"chat": 1.0},
        policies=FEW,
        fluid=True,
    ),
    Scenario(
        "fleet",
        "A day of twelve models from two of ServeGen's records, split by client. Prices and offers "
        "of five GPU types in three regions change, on demand and spot "
        "(`streams/data/fleet.yaml`, `python -m loadtests.fleet_day`). Simulated as rates.",
        86_400.0,
        file="servegen/m-large_clients_10min.csv.gz",
        policies=("shoal", "hpa-utilization", "skyserve", "fixed-peak"),
        recipe=fleet_day.options,
    ),
)
