"""Prediction intervals of estimates, from the errors at held-out points."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from statistics import fmean

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance.estimate_errors import EstimatedPoint

COVERAGE, FORMAT_COVERAGE = 0.9, 0.85
"""Share of points that an interval should contain: of all, and of each GPU and weight format."""
WIDE = 0.85
"""If an interval begins below this share of the prediction, plans use its lower end instead of the
prediction."""
_MIN_POINTS = 20
_WIDENING, _WIDEST = 0.05, 4.0
_MIN_GROUP_POINTS = 5
"""A (model, system) group needs at least this many points to count for other groups."""
Figures = list[float]


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval of one class of models ("dense", "mixture of experts", or a weight format) and
    one figure ("TTFT", "TPOT").

    low, high: 90% of measurements are between low and high times the estimate. covered: share of
    points within intervals that were computed from other (model, system) groups. points: number of
    points in this check. gpus: the GPU types to which the interval of a weight format applies.
    """

    kind: str
    figure: str
    low: float
    high: float
    covered: float
    points: int
    gpus: tuple[str, ...] = ()


def intervals(pairs: Sequence[EstimatedPoint]) -> list[Interval]:
    """One interval per class and figure with enough points.

    Each (model, system) is checked against an interval from the other groups of its class, so that
    no group confirms itself.
    """
    found = []
    for kind, sparse in (("dense", False), ("mixture of experts", True)):
        own = [pair for pair in pairs if pair[0].spec.is_moe is sparse]
        rows = (_interval(kind, figure, own) for figure in ("TTFT", "TPOT"))
        found += [row for row in rows if row is not None]
    return found


def intervals_on(
    pairs: Sequence[EstimatedPoint], held_out: Sequence[EstimatedPoint] = ()
) -> list[Interval]:
    """Intervals of both classes on the GPUs of `pairs`.

    A class with a few points has the interval of all points, and a class without points has none.
    Each interval holds `FORMAT_COVERAGE` of the points of each GPU and weight format, and of those
    in `held_out`: the points of models that chose no factor. The errors of the others are too small
    to tell how far a new model is off.
    """
    found = []
    for kind, sparse in (("dense", False), ("mixture of experts", True)):
        own = [pair for pair in pairs if pair[0].spec.is_moe is sparse]
        if not own:
            continue
        for figure in ("TTFT", "TPOT"):
            for judged in (own, pairs):
                if row := _interval(kind, figure, judged):
                    new = [pair for pair in held_out if judged is pairs or pair in own]
                    found.append(_widened(_widened(row, judged), new))
                    break
    return found


def _widened(row: Interval, pairs: Sequence[EstimatedPoint]) -> Interval:
    """`row`, widened for each GPU and weight format of `pairs` that it does not hold."""
    low, high = math.log(row.low), math.log(row.high)
    formats: dict[tuple[str, str], list[EstimatedPoint]] = defaultdict(list)
    for pair in pairs:
        formats[pair[0].gpu.name, pair[0].spec.weight_dtype].append(pair)
    for own in formats.values():
        ratios = sorted(r for group in _groups(own, row.figure).values() for r in group)
        aside = int(0.5 * (1.0 - FORMAT_COVERAGE) * len(ratios))
        if len(ratios) >= _MIN_GROUP_POINTS:
            low, high = min(low, ratios[aside]), max(high, ratios[-1 - aside])
    return replace(row, low=math.exp(low), high=math.exp(high))


def _interval(kind: str, figure: str, pairs: Sequence[EstimatedPoint]) -> Interval | None:
    """The interval of `pairs`; None without enough points and groups."""
    groups = _groups(pairs, figure)
    if sum(len(ratios) for ratios in groups.values()) < _MIN_POINTS or len(groups) < 2:
        return None
    within = [within for key in groups for within in _within_bounds(groups, key)]
    low, high = _bounds(groups)
    return Interval(kind, figure, math.exp(low), math.exp(high), fmean(within), len(within))


@lru_cache(maxsize=1)
def packaged_intervals() -> tuple[Interval, ...]:
    """The intervals of the packaged profile. The points of each model were estimated by a fit to
    the other models."""
    path = resources.files("autoscaler").joinpath("data", "intervals_v1.json")
    rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(Interval(**{**row, "gpus": tuple(row.get("gpus", ()))}) for row in rows)


def rate_interval(
    model: ModelSpec, own: Measurement | None = None, gpu: str = ""
) -> tuple[float, float]:
    """The 90% interval of a rate of `model` on GPUs called `gpu`, relative to its prediction.

    It is the interval of the time per output token, which determines rates. own: the user's
    measurement, if any; the interval is then twice its mean error on either side.
    """
    if own is not None:
        return 1.0 / (1.0 + 2.0 * own.error), 1.0 + 2.0 * own.error
    found = interval_of("TPOT", model, gpu)
    return 1.0 / found.high, 1.0 / found.low


def interval_of(figure: str, model: ModelSpec, gpu: str = "") -> Interval:
    """The packaged interval of `figure` for `model` on GPUs called `gpu`: that of its weight format
    on this GPU, that of its class on this GPU, or that of its class."""
    kind = "mixture of experts" if model.is_moe else "dense"
    known = [one for one in packaged_intervals() if one.figure == figure]
    own = {one.kind: one for one in known if gpu in one.gpus}
    general = {one.kind: one for one in known if not one.gpus}
    return own.get(model.weight_dtype) or own.get(kind) or general[kind]


def planned_share(model: ModelSpec, own: Measurement | None = None, gpu: str = "") -> float:
    """The share of a predicted rate to plan for: the lower end of the interval if the interval is
    wide, else 1.

    An interval is wide if it begins below `WIDE` of the prediction: the headroom of 85% utilization
    does not cover such an error.
    """
    low, _ = rate_interval(model, own, gpu)
    return low if low < WIDE else 1.0


def _groups(pairs: Sequence[EstimatedPoint], figure: str) -> dict[tuple[str, str], Figures]:
    """ln(measured / estimate) by (model, system)."""
    groups: dict[tuple[str, str], Figures] = defaultdict(list)
    for point, guess in pairs:
        measured = point.ttft_ms if figure == "TTFT" else point.tpot_ms
        estimate = guess.ttft_ms if figure == "TTFT" else guess.tpot_ms
        if measured is not None:
            groups[point.model, point.system].append(math.log(measured / estimate))
    return dict(groups)


def _within_bounds(groups: dict[tuple[str, str], Figures], key: tuple[str, str]) -> list[bool]:
    low, high = _bounds({k: ratios for k, ratios in groups.items() if k != key})
    return [low <= ratio <= high for ratio in groups[key]]


def _bounds(groups: dict[tuple[str, str], Figures]) -> tuple[float, float]:
    """The quantiles of `groups`, widened until the quantiles of the other groups contain 90% of
    each group's points.

    The reason is that quantiles of a dozen models are too narrow for a new model. How much too
    narrow is measured by leaving out one model at a time (conformal calibration with models as
    folds).
    """
    low, high = _quantiles(groups)
    if len(groups) < 3:
        return low, high
    judged = [
        (_quantiles({k: r for k, r in groups.items() if k != key}), groups[key]) for key in groups
    ]
    points = sum(len(ratios) for _, ratios in judged)
    wider = 1.0
    while wider < _WIDEST:
        within = sum(
            wider * least <= ratio <= wider * most
            for (least, most), ratios in judged
            for ratio in ratios
        )
        if within >= COVERAGE * points:
            break
        wider += _WIDENING
    return wider * low, wider * high


def _quantiles(groups: dict[tuple[str, str], Figures]) -> tuple[float, float]:
    """Weighted quantiles that leave 5% on either side. All groups have equal weight.

    Even hundreds of points of one model are only one observation about other models. Groups of only
    a few points are left out if there are others.
    """
    groups = {k: r for k, r in groups.items() if len(r) >= _MIN_GROUP_POINTS} or groups
    weighted = sorted((ratio, 1.0 / len(ratios)) for ratios in groups.values() for ratio in ratios)
    total = sum(weight for _, weight in weighted)
    aside = 0.5 * (1.0 - COVERAGE) * total
    return _weighted_quantile(weighted, aside), -_weighted_quantile(
        [(-r, w) for r, w in reversed(weighted)], aside
    )


def _weighted_quantile(weighted: Sequence[tuple[float, float]], amount: float) -> float:
    """The first value at which the cumulative weight exceeds `amount`."""
    seen = 0.0
    for value, weight in weighted:
        seen += weight
        if seen > amount:
            return value
    return weighted[-1][0]
