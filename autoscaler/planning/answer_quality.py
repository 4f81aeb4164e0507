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

from autoscaler.domain.quality_route import Cuts, QualityRoute, ScoreMix
from autoscaler.domain.validation import InvalidValue

_MOST_SPLITS = 5000

Fleet = TypeVar("Fleet")


@dataclass(frozen=True, slots=True)
class Split:
    """Who answers what. cuts: see `QualityRoute`; thresholds: the same as scores. fractions: of the
    requests, per model. quality: the mean of all answers."""

    cuts: Cuts
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


def split_at(route: QualityRoute, cuts: Cuts, mix: ScoreMix) -> Split:
    """What `cuts` make of `mix`."""
    fractions, quality = route.fractions(cuts, mix), route.mean_quality(cuts, mix)
    return Split(cuts, route.thresholds(cuts), fractions, quality)


def splits(route: QualityRoute, mix: ScoreMix | None = None) -> tuple[Split, ...]:
    """All splits whose thresholds stand between classes. mix: left out, the declared sample."""
    classes = len(route.edges) + 1
    found: list[Split] = []
    for cuts in combinations_with_replacement(range(classes + 1), len(route.models) - 1):
        if len(found) >= _MOST_SPLITS:
            allowed = f"so few that there are at most {_MOST_SPLITS} splits"
            raise InvalidValue(f"model {route.name}: quality.steps", classes, allowed)
        found.append(split_at(route, cuts, mix or route.sample))
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


def best_of(route: QualityRoute, options: Sequence[Priced[Fleet]]) -> Priced[Fleet]:
    """As `cheapest`, and where the quality cannot be had the next best: among options that serve
    their load, or else among all, those of enough quality come first, then the best quality."""
    pool = [o for o in options if not o.short] or list(options)
    good = [o for o in pool if o.split.quality >= route.at_least - 1e-9]
    if good:
        return min(good, key=lambda o: (o.usd_per_h, -o.split.quality))
    return max(pool, key=lambda o: (o.split.quality, -o.usd_per_h))
