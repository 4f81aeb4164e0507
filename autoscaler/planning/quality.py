"""Answer quality: which share of the requests each of several models gets, planned with its cost.

BOute (sec. 4) routes a request by its score: to the first model below the first threshold, to the
last above the last. Thresholds decide the quality of the answers and the load of every model, and
so the fleet. The paper searches thresholds and fleets together with Bayesian optimisation. Given
the shares, the fleet is our planner's, with its proof; so the shares are stepped through and the
front of cost and quality is exact on that grid (an epsilon constraint), with no search to converge.
Knows no files and no solver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

import numpy as np

from autoscaler.domain.checks import InvalidValue, finite, whole
from autoscaler.optimizer.arrays import Floats

_MOST_SPLITS = 5000

Fleet = TypeVar("Fleet")


@dataclass(frozen=True, slots=True)
class QualityRoute:
    """A service that stands for several models, the one for the easiest requests first.

    scores (n,): of sampled requests, rising with difficulty. quality (n, m): of each model's answer
    to each, in whatever unit the user scores in. at_least: the mean that answers must reach, in
    that unit. req_per_s: of this service, on top of what its models get directly.
    """

    name: str
    models: tuple[str, ...]
    scores: Floats
    quality: Floats
    at_least: float
    req_per_s: float

    def __post_init__(self) -> None:
        who = f"model {self.name}"
        if len(self.models) < 2 or len(set(self.models)) < len(self.models):
            raise InvalidValue(f"{who}: models", list(self.models), "two or more different models")
        if self.quality.shape != (len(self.scores), len(self.models)) or not len(self.scores):
            raise InvalidValue(f"{who}: scores", self.quality.shape, "a quality per model and row")
        for what, values in (("score", self.scores), ("quality", self.quality)):
            if not np.all(np.isfinite(values)):
                raise InvalidValue(f"{who}: {what}", "not finite", "finite numbers")
        finite(f"{who}: at_least", self.at_least)
        finite(f"{who}: req_per_s", self.req_per_s, 1e-9, 1e9)


@dataclass(frozen=True, slots=True)
class Split:
    """Who answers what. thresholds: model i gets scores from thresholds[i - 1] up to below
    thresholds[i]. fractions: of the requests, per model. quality: the mean over the sample."""

    thresholds: tuple[float, ...]
    fractions: tuple[float, ...]
    quality: float


@dataclass(frozen=True, slots=True)
class Priced(Generic[Fleet]):
    """A split, the fleet for it and what that costs. short: it does not serve all of its load."""

    split: Split
    fleet: Fleet
    usd_per_h: float
    short: bool


def splits(route: QualityRoute, steps: int = 40) -> tuple[Split, ...]:
    """All splits whose thresholds stand at one of `steps` equal parts of the sample.

    Requests of equal score stay together, so shares are those that thresholds can give.
    """
    whole("steps", steps, 1, 1000)
    order = np.argsort(route.scores, kind="stable")
    scores, quality = route.scores[order], route.quality[order]
    total = len(scores)
    wanted = {round(total * k / steps) for k in range(steps + 1)}
    cuts = sorted({int(np.searchsorted(scores, scores[c])) if c < total else total for c in wanted})
    below = np.vstack([np.zeros(len(route.models)), np.cumsum(quality, axis=0)])
    models = len(route.models)
    found: list[Split] = []
    for borders in combinations_with_replacement(cuts, models - 1):
        if len(found) >= _MOST_SPLITS:
            allowed = f"so few that there are at most {_MOST_SPLITS} splits"
            raise InvalidValue("steps", steps, allowed)
        ends = (0, *borders, total)
        counts = [ends[i + 1] - ends[i] for i in range(models)]
        mean = sum(below[ends[i + 1], i] - below[ends[i], i] for i in range(models)) / total
        marks = tuple(float(scores[b]) if b < total else float("inf") for b in borders)
        found.append(Split(marks, tuple(n / total for n in counts), float(mean)))
    return tuple(found)


def priced(
    found: Sequence[Split], price: Callable[[Split], tuple[Fleet, float, bool]]
) -> Iterator[Priced[Fleet]]:
    """Every split with its fleet, in the order given. price: (fleet, USD/h, falls short)."""
    for split in found:
        fleet, usd_per_h, short = price(split)
        yield Priced(split, fleet, usd_per_h, short)


def front(options: Sequence[Priced[Fleet]]) -> tuple[Priced[Fleet], ...]:
    """Options that no other beats in both cost and quality, cheapest first."""
    kept: list[Priced[Fleet]] = []
    for option in sorted(
        (o for o in options if not o.short), key=lambda o: (o.usd_per_h, -o.split.quality)
    ):
        if not kept or option.split.quality > kept[-1].split.quality + 1e-12:
            kept.append(option)
    return tuple(kept)


def cheapest(route: QualityRoute, options: Sequence[Priced[Fleet]]) -> Priced[Fleet]:
    """The cheapest option of at least the declared quality. InvalidValue says what can be had."""
    best = [o for o in front(options) if o.split.quality >= route.at_least - 1e-9]
    if best:
        return best[0]
    served = [o.split.quality for o in options if not o.short]
    most = f"at most {max(served):.4g}" if served else "a load that the pools can serve"
    raise InvalidValue(f"model {route.name}: quality.at_least", route.at_least, most)
