"""Answer quality: plans which share of the requests each model answers, together with the fleet.

BOute (sec. 4) routes a request by its score: to the first model below the first threshold, to the
last model above the last threshold. The thresholds determine the quality of the answers, the load
of every model, and so the fleet. BOute searches thresholds and fleets together by Bayesian
optimisation. Shoal's planner proves the cheapest fleet for given request shares. So this module
plans a fleet for every point of a grid of shares, and the Pareto front of cost and quality is exact
on that grid (epsilon-constraint method).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

from autoscaler.domain.quality_route import Cuts, QualityRoute, ScoreMix
from autoscaler.domain.validation import InvalidValue

_MOST_SPLITS = 5000
"""Splits that may be listed, which limits time and memory."""

Fleet = TypeVar("Fleet")


@dataclass(frozen=True, slots=True)
class Split:
    """The division of a service's requests among its models.

    cuts: thresholds as numbers of score classes, see `QualityRoute`. thresholds: the same as
    scores. fractions: the share of the requests of each model. quality: mean over all answers.
    """

    cuts: Cuts
    thresholds: tuple[float, ...]
    fractions: tuple[float, ...]
    quality: float


@dataclass(frozen=True, slots=True)
class PricedSplit(Generic[Fleet]):
    """A split, its fleet and the cost of that fleet. underserved: the fleet does not serve the
    whole load."""

    split: Split
    fleet: Fleet
    usd_per_h: float
    underserved: bool


def split_at(route: QualityRoute, cuts: Cuts, mix: ScoreMix) -> Split:
    """The split that `cuts` give for the score distribution `mix`."""
    fractions, quality = route.fractions(cuts, mix), route.mean_quality(cuts, mix)
    return Split(cuts, route.thresholds(cuts), fractions, quality)


def splits(route: QualityRoute, mix: ScoreMix | None = None) -> tuple[Split, ...]:
    """All splits whose thresholds lie between score classes. mix: score distribution; None: that of
    the declared sample. Raises InvalidValue if there are more than _MOST_SPLITS splits.
    """
    classes = len(route.edges) + 1
    found: list[Split] = []
    for cuts in combinations_with_replacement(range(classes + 1), len(route.models) - 1):
        if len(found) >= _MOST_SPLITS:
            allowed = f"so few that there are at most {_MOST_SPLITS} splits"
            raise InvalidValue(f"model {route.name}: quality.steps", classes, allowed)
        found.append(split_at(route, cuts, mix or route.sample))
    return tuple(found)


def price_splits(
    candidates: Sequence[Split], price: Callable[[Split], tuple[Fleet, float, bool]]
) -> Iterator[PricedSplit[Fleet]]:
    """Each of `candidates` with its fleet, in the given order. price: returns (fleet, USD/h,
    underserved)."""
    for split in candidates:
        fleet, usd_per_h, short = price(split)
        yield PricedSplit(split, fleet, usd_per_h, short)


def pareto_front(options: Sequence[PricedSplit[Fleet]]) -> tuple[PricedSplit[Fleet], ...]:
    """The options that no other option beats in both cost and quality, cheapest first."""
    kept: list[PricedSplit[Fleet]] = []
    for option in sorted(
        (o for o in options if not o.underserved), key=lambda o: (o.usd_per_h, -o.split.quality)
    ):
        if not kept or option.split.quality > kept[-1].split.quality + 1e-12:
            kept.append(option)
    return tuple(kept)


def cheapest_split(
    route: QualityRoute, options: Sequence[PricedSplit[Fleet]]
) -> PricedSplit[Fleet]:
    """The cheapest option that has at least the declared quality. Raises InvalidValue if no option
    has it; the error names the best possible quality."""
    best = [o for o in pareto_front(options) if o.split.quality >= route.at_least - 1e-9]
    if best:
        return best[0]
    served = [o.split.quality for o in options if not o.underserved]
    most = f"at most {max(served):.4g}" if served else "a load that the pools can serve"
    raise InvalidValue(f"model {route.name}: quality.at_least", route.at_least, most)


def best_split(route: QualityRoute, options: Sequence[PricedSplit[Fleet]]) -> PricedSplit[Fleet]:
    """The best option for `route`: the cheapest one with the declared quality. Options that serve
    their whole load come before all others. If no option has the declared quality, the option with
    the highest quality is returned.
    """
    pool = [o for o in options if not o.underserved] or list(options)
    good = [o for o in pool if o.split.quality >= route.at_least - 1e-9]
    if good:
        return min(good, key=lambda o: (o.usd_per_h, -o.split.quality))
    return max(pool, key=lambda o: (o.split.quality, -o.usd_per_h))
