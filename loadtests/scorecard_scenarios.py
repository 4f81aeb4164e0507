"""The scorecard's scenarios: cut, generated and built traces, each with its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoscaler.simulation.arrivals import Arrival
from loadtests.arrivals import (
    Draw,
    Step,
    Swing,
    gamma_renewal,
    poisson,
    swinging,
)

MODELS = {"chat": 0.25, "code": 0.3, "mini": 0.45}
Make = Callable[[str, float, float, Draw, np.random.Generator], list[Arrival]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. about: text for the page. make: generates arrivals of one model at a mean rate
    for a number of seconds, with the lengths of the bundled trace; req_per_s is the rate over all
    models. None = the first span_s seconds of the trace in `file` ("" for the bundled one), with
    its requests assigned to the models at random. config: a file in this folder, "" for the bundled
    one. models: shares of the requests. fluid: simulate rates (`shoal backtest --fluid`)."""

    name: str
    about: str
    span_s: float
    make: Make | None = None
    file: str = ""
    req_per_s: float = 5.5
    config: str = ""
    models: Mapping[str, float] = field(default_factory=lambda: MODELS)
    fluid: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that the scenario reads, relative to the root."""
        trace = self.file or "streams/data/azure2023_conv.csv.gz"
        config = f"loadtests/{self.config}" if self.config else "streams/data/backtest.yaml"
        return trace, config


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


SCENARIOS = (
    Scenario(
        "conversation", "The first 10 min of Azure's conversations of 2023, at 5.5 req/s.", 600.0
    ),
    Scenario(
        "aibrix",
        "8 min of AIBrix; the rate rises and falls.",
        480.0,
        file="loadtests/data/traces/aibrix_8min_up_and_down.csv.gz",
    ),
    Scenario(
        "mooncake",
        "The first 8 min of Mooncake, at 3.9 req/s. Prompts are long: 15,000 tokens on average.",
        480.0,
        file="loadtests/data/traces/mooncake_15min.csv.gz",
    ),
    Scenario(
        "swing",
        "25 min around 8 req/s. The rate rises to four times its lowest value and falls, once. "
        "Simulated as rates.",
        1500.0,
        _swing,
        req_per_s=8.0,
        fluid=True,
    ),
    Scenario(
        "bursts",
        "10 min of bursts at a mean of 5.5 req/s "
        "(Gamma arrivals with a coefficient of variation of 3.5).",
        600.0,
        _bursts,
    ),
    Scenario(
        "steps",
        "7 min at 2.75 req/s, 7 min at 11, and 7 min at 2.75. Simulated as rates.",
        1260.0,
        _steps,
        fluid=True,
    ),
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
        fluid=True,
    ),
)
