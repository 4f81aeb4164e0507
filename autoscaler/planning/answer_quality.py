"""Answer quality: plans the shares of the requests that several models answer, together with the
fleet.

BOute (sec. 4) routes a request by its score: to the first model below the first threshold, to the
last model above the last threshold. The thresholds determine the quality of the answers, the load
of every model, and so the fleet. BOute searches thresholds and fleets together by Bayesian
optimisation. For given request shares, the planner finds the cheapest fleet with a proof. So this
module tries all shares on a grid, and the Pareto front of cost and quality is exact on that grid
(an epsilon constraint).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

from autoscaler.domain.quality_route import Cuts, QualityRoute, ScoreMix
from autoscaler.domain.validation import InvalidValue

_MOST_SPLITS = 5000

Fleet = TypeVar("Fleet")


@dataclass(frozen=True, slots=True)
class Split:
    """The division of a service's requests among its models.

    cuts: see `QualityRoute`. thresholds: the cuts as scores. fractions: the share of the requests
    of each model. quality: mean over all answers.
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
    """All splits whose thresholds lie between score classes. mix: the declared sample if None.

    InvalidValue: there are too many splits.
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
    found: Sequence[Split], price: Callable[[Split], tuple[Fleet, float, bool]]
) -> Iterator[PricedSplit[Fleet]]:
    """Every split in `found` with its fleet, in the given order. price: returns (fleet, USD/h,
    underserved)."""
    for split in found:
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
    """The cheapest option that has at least the declared quality. InvalidValue: no option has it;
    the error names the best possible quality."""
    best = [o for o in pareto_front(options) if o.split.quality >= route.at_least - 1e-9]
    if best:
        return best[0]
    served = [o.split.quality for o in options if not o.underserved]
    most = f"at most {max(served):.4g}" if served else "a load that the pools can serve"
    raise InvalidValue(f"model {route.name}: quality.at_least", route.at_least, most)


def best_split(route: QualityRoute, options: Sequence[PricedSplit[Fleet]]) -> PricedSplit[Fleet]:
    """The cheapest option that has at least the declared quality, or the next best option if there
    is none.

    Options that serve their load come before the others. Among options that miss the quality, the
    best quality comes first.
    """
    pool = [o for o in options if not o.underserved] or list(options)
    good = [o for o in pool if o.split.quality >= route.at_least - 1e-9]
    if good:
        return min(good, key=lambda o: (o.usd_per_h, -o.split.quality))
    return max(pool, key=lambda o: (o.split.quality, -o.usd_per_h))
