"""Generated arrivals of requests, for benchmarks.

Every draw comes from the seeded generator that the caller passes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.validation import InvalidValue, finite
from autoscaler.simulation.arrivals import Arrival

Draw = Callable[[np.random.Generator], tuple[int, int]]
"""The input and output tokens of one request."""


def lognormal_lengths(
    input_mean: float, output_mean: float, cv: float = 1.0, most: int = 32_768
) -> Draw:
    """Independent lognormal lengths with these means and a standard deviation of cv x mean.

    Each length is in [1, most / 2], so every request fits a model with max_len `most`.
    """
    finite("lengths: cv", cv, 0.0, 100.0)
    sigma = math.sqrt(math.log(1.0 + cv * cv))

    def draw(random: np.random.Generator) -> tuple[int, int]:
        found = [
            random.lognormal(math.log(mean) - 0.5 * sigma * sigma, sigma)
            for mean in (input_mean, output_mean)
        ]
        return _whole(found[0], most // 2), _whole(found[1], most // 2)

    return draw


def resampled_lengths(pairs: Sequence[tuple[int, int]]) -> Draw:
    """Lengths drawn with replacement from recorded (input, output) pairs."""
    if not pairs:
        raise InvalidValue("lengths", "no requests", "at least one recorded request")

    def draw(random: np.random.Generator) -> tuple[int, int]:
        found = pairs[int(random.integers(len(pairs)))]
        return max(1, found[0]), max(1, found[1])

    return draw


@dataclass(frozen=True, slots=True)
class Step:
    """From `at_s` on, `req_per_s` requests per second on average."""

    at_s: float
    req_per_s: float


def poisson(
    model: str, steps: Sequence[Step], end_s: float, lengths: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Poisson arrivals whose rate changes at `steps` (rising times), until `end_s`."""
    arrivals: list[Arrival] = []
    for index, step in enumerate(steps):
        until_s = steps[index + 1].at_s if index + 1 < len(steps) else end_s
        at_s = step.at_s
        while step.req_per_s > 0.0:
            at_s += random.exponential(1.0 / step.req_per_s)
            if at_s >= until_s:
                break
            arrivals.append(Arrival(at_s, model, *lengths(random)))
    return arrivals


@dataclass(frozen=True, slots=True)
class Swing:
    """A rate that swings once in `period_s` from its lowest value to `ratio` times that value and
    back.
    """

    mean_req_per_s: float
    ratio: float
    period_s: float

    def __post_init__(self) -> None:
        finite("swing: mean_req_per_s", self.mean_req_per_s, 1e-6, 1e6)
        finite("swing: ratio", self.ratio, 1.0, 1e3)
        finite("swing: period_s", self.period_s, 1.0, 1e7)

    def req_per_s(self, at_s: float) -> float:
        """The rate at `at_s`."""
        part = (self.ratio - 1.0) / (self.ratio + 1.0)
        return self.mean_req_per_s * (1.0 - part * math.cos(2.0 * math.pi * at_s / self.period_s))


def swinging(
    model: str, swing: Swing, end_s: float, lengths: Draw, random: np.random.Generator
) -> list[Arrival]:
    """Poisson arrivals with the rate of `swing`.

    They are drawn at the highest rate and then thinned.
    """
    highest = swing.req_per_s(0.5 * swing.period_s)
    arrivals: list[Arrival] = []
    at_s = 0.0
    while True:
        at_s += random.exponential(1.0 / highest)
        if at_s >= end_s:
            return arrivals
        if random.random() * highest < swing.req_per_s(at_s):
            arrivals.append(Arrival(at_s, model, *lengths(random)))


def gamma_renewal(
    model: str,
    req_per_s: float,
    cv: float,
    end_s: float,
    lengths: Draw,
    random: np.random.Generator,
) -> list[Arrival]:
    """Renewal arrivals whose gaps are Gamma distributed with standard deviation cv x mean.

    cv = 1 gives a Poisson process; cv = 3 to 4 gives bursts with long gaps between them.
    """
    finite("gamma: cv", cv, 0.01, 100.0)
    finite("gamma: req_per_s", req_per_s, 1e-6, 1e6)
    shape = 1.0 / (cv * cv)
    arrivals: list[Arrival] = []
    at_s = 0.0
    while True:
        at_s += random.gamma(shape, 1.0 / (req_per_s * shape))
        if at_s >= end_s:
            return arrivals
        arrivals.append(Arrival(at_s, model, *lengths(random)))


def _whole(value: float, most: int) -> int:
    return max(1, min(most, round(value)))
