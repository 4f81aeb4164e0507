"""Chooses the thresholds of a service with several models, together with the fleet for them.

All splits of sufficient quality are planned. The current thresholds stay unless another split saves
enough to justify a change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from autoscaler.domain.quality_route import Cuts, QualityRoute, ScoreMix
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.modes.quality.answer_quality import PricedSplit, Split, best_split, split_at, splits
from autoscaler.planning.planner_messages import ChosenSplit, RouteTraffic
from topics.reason_codes import ReasonCode

Fleet = TypeVar("Fleet")

_MAX_SPLITS = 48
"""Splits that a plan prices, because each needs a plan of its own."""
# share of the cost; a smaller saving does not pay for starting and stopping instances
_MIN_SAVING = 0.02
_STANDARD_ERRORS = 2.0  # number of standard errors by which a sample may miss the minimum quality


def choose_split(
    route: QualityRoute, ask: RouteTraffic, price: Callable[[Split, int], tuple[Fleet, float, bool]]
) -> tuple[ChosenSplit, Fleet]:
    """The best split and its fleet.

    price: returns (fleet, USD/h including transition costs, underserved) for a split and the number
    of splits that remain to be priced, including this one. Thresholds that moved recently move
    again only if the load is not served in full, or if their quality is below the minimum by more
    than the sampling error.
    """
    found = candidate_splits(route, ask)
    if ask.recently_moved:
        few = [s for s in found if s.cuts == ask.cuts or s.quality < route.at_least - 1e-9]
        options = _priced(few, price, len(few) + len(found))
        now = next(o for o in options if o.split.cuts == ask.cuts)
        if not now.underserved and _is_good(route, ask.mix, now.split, route.at_least):
            return _chosen(route, now, options)
    options = _priced(found, price, len(found))
    best = best_split(route, options)
    known = next((o for o in options if o.split.cuts == ask.cuts), None)
    if known is not None and _keeps_current(route, ask.mix, known, best):
        best = known
    return _chosen(route, best, options)


def candidate_splits(route: QualityRoute, ask: RouteTraffic) -> list[Split]:
    """The splits of sufficient quality (or the split with the best quality if there are none), and
    the current split; at most a few dozen."""
    found = sorted(splits(route, ask.mix), key=lambda s: (s.quality, s.cuts))
    good = [s for s in found if s.quality >= route.at_least - 1e-9] or found[-1:]
    if len(good) > _MAX_SPLITS:
        good = [good[round(i * (len(good) - 1) / (_MAX_SPLITS - 1))] for i in range(_MAX_SPLITS)]
    # The cheapest split and the split just below the minimum show in the plan what the quality
    # costs.
    worse = [s for s in found if s.quality < route.at_least - 1e-9]
    below = worse[:1] + worse[-1:]
    wanted = {s.cuts: s for s in (*below, *good)}
    if ask.cuts:
        wanted.setdefault(ask.cuts, split_at(route, ask.cuts, ask.mix))
    return list(wanted.values())


def with_split(
    route: QualityRoute, split: Split, ask: RouteTraffic, demands: Mapping[str, Demand]
) -> dict[str, Demand]:
    """`demands` after the requests of `route` have been divided by `split` instead of by
    `ask.cuts`."""
    before = route.fractions(ask.cuts, ask.mix) if ask.cuts else (0.0,) * len(route.models)
    made = dict(demands)
    for model, now, then in zip(route.models, before, split.fractions, strict=True):
        rate = made[model].req_per_s + (then - now) * ask.req_per_s
        made[model] = replace(made[model], req_per_s=max(0.0, rate))
    return made


def sampling_error(route: QualityRoute, cuts: Cuts, mix: ScoreMix) -> float:
    """Sampling error of the mean quality, as _STANDARD_ERRORS standard errors for the number of
    requests in `mix`."""
    if not mix.requests:
        return 0.0
    ends = (0, *cuts, len(route.shares))
    mean = route.mean_quality(cuts, mix)
    spread = sum(
        mix.shares[k] * (route.quality[k][i] - mean) ** 2
        for i in range(len(route.models))
        for k in range(ends[i], min(ends[i + 1], len(route.shares)))
    )
    return _STANDARD_ERRORS * math.sqrt(spread / mix.requests)


def binding_reason(
    route: QualityRoute, best: PricedSplit[Fleet], options: Sequence[PricedSplit[Fleet]]
) -> Reason:
    """The constraint that prevents a cheaper or better split than `best`."""
    if best.underserved:
        return Reason(ReasonCode.QUALITY_POOLS, route.name)
    if best.split.quality < route.at_least - 1e-9:
        least = (route.at_least,)
        return Reason(ReasonCode.QUALITY_OUT_OF_REACH, route.name, quantities=least)
    worse = [
        o for o in options if not o.underserved and o.split.quality < route.at_least - 1e-9
    ]  # fmt: skip
    saving = [o for o in worse if o.usd_per_h < best.usd_per_h - 0.005]
    if not saving:
        return Reason(ReasonCode.QUALITY_COSTS_NOTHING, route.name)
    near = max(saving, key=lambda o: o.split.quality)
    saved = best.usd_per_h - near.usd_per_h
    figures = route.at_least, near.split.quality, saved
    return Reason(ReasonCode.QUALITY_COSTS, route.name, quantities=figures)


def _priced(
    found: Sequence[Split], price: Callable[[Split, int], tuple[Fleet, float, bool]], left: int
) -> list[PricedSplit[Fleet]]:
    return [PricedSplit(split, *price(split, left - i)) for i, split in enumerate(found)]


def _chosen(
    route: QualityRoute, best: PricedSplit[Fleet], options: Sequence[PricedSplit[Fleet]]
) -> tuple[ChosenSplit, Fleet]:
    return ChosenSplit(
        route.name,
        best.split.cuts,
        best.split.fractions,
        best.split.quality,
        best.usd_per_h,
        binding_reason(route, best, options),
    ), best.fleet


def _keeps_current(
    route: QualityRoute, mix: ScoreMix, now: PricedSplit[Fleet], best: PricedSplit[Fleet]
) -> bool:
    if now.underserved and not best.underserved:
        return False
    if not _is_good(route, mix, now.split, min(route.at_least, best.split.quality)):
        return False
    return now.usd_per_h <= best.usd_per_h * (1.0 + _MIN_SAVING) + 1e-9


def _is_good(route: QualityRoute, mix: ScoreMix, split: Split, enough: float) -> bool:
    """Whether the quality of `split` is at least `enough`, or below it by no more than the sampling
    error."""
    return split.quality >= enough - 1e-9 - sampling_error(route, split.cuts, mix)
