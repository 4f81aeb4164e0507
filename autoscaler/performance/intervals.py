"""Intervals of predictions: how far what was measured lies from the estimate, and how often.

Owns both questions, asked of estimates for points that nobody fitted to. Knows no files.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from statistics import fmean

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance.estimate_errors import Pair

SHARE = 0.9
"""Share of points that an interval should hold."""
WIDE = 0.85
"""Share of a prediction below which the lower end of its interval is planned for instead."""
_FEWEST = 20
_WIDENING, _WIDEST = 0.05, 4.0
_WITNESS = 5
"""Points that a (model, system) group must have to speak for others."""
Figures = list[float]


@dataclass(frozen=True, slots=True)
class Interval:
    """Of one class of models ("dense", "mixture of experts") and one figure ("TTFT", "TPOT").

    low, high: what was measured lies between low and high times the estimate for 90% of points.
    covered: share of points that intervals from other (model, system) groups really held; points:
    how many were asked.
    """

    kind: str
    figure: str
    low: float
    high: float
    covered: float
    points: int


def intervals(pairs: Sequence[Pair]) -> list[Interval]:
    """One per class and figure with enough points.

    Each (model, system) is judged by an interval from the other groups of its class alone, so a
    model does not vouch for itself.
    """
    found = []
    for kind, sparse in (("dense", False), ("mixture of experts", True)):
        own = [pair for pair in pairs if pair[0].spec.is_moe is sparse]
        for figure in ("TTFT", "TPOT"):
            groups = _groups(own, figure)
            everything = [ratio for ratios in groups.values() for ratio in ratios]
            if len(everything) < _FEWEST or len(groups) < 2:
                continue
            held = [held for key in groups for held in _held(groups, key)]
            low, high = _bounds(groups)
            found.append(
                Interval(kind, figure, math.exp(low), math.exp(high), fmean(held), len(held))
            )
    return found


@lru_cache(maxsize=1)
def packaged() -> tuple[Interval, ...]:
    """The intervals of the packaged profile's kind, on models that were left out of the fit."""
    path = resources.files("autoscaler").joinpath("data", "intervals_v1.json")
    return tuple(Interval(**row) for row in json.loads(path.read_text(encoding="utf-8")))


def rate_interval(model: ModelSpec, own: Measurement | None = None) -> tuple[float, float]:
    """Least and most of a rate that is predicted as 1 for `model`, in nine cases of ten.

    A rate goes with the time per output token, in which the prompts of others are counted. own: the
    user's measurement, where there is one: twice its mean error on either side.
    """
    if own is not None:
        return 1.0 / (1.0 + 2.0 * own.error), 1.0 + 2.0 * own.error
    kind = "mixture of experts" if model.is_moe else "dense"
    found = next(i for i in packaged() if (i.kind, i.figure) == (kind, "TPOT"))
    return 1.0 / found.high, 1.0 / found.low


def planned_share(model: ModelSpec, own: Measurement | None = None) -> float:
    """How much of a predicted rate is planned for: its interval's lower end where that is wide.

    Wide is an interval that begins below `WIDE` of the prediction: further off than the headroom
    that a utilization of 85% leaves. Elsewhere the prediction itself is planned for.
    """
    low, _ = rate_interval(model, own)
    return low if low < WIDE else 1.0


def _groups(pairs: Sequence[Pair], figure: str) -> dict[tuple[str, str], Figures]:
    """ln(measured / estimate) by (model, system)."""
    groups: dict[tuple[str, str], Figures] = defaultdict(list)
    for point, guess in pairs:
        measured = point.ttft_ms if figure == "TTFT" else point.tpot_ms
        estimate = guess.ttft_ms if figure == "TTFT" else guess.tpot_ms
        if measured is not None:
            groups[point.model, point.system].append(math.log(measured / estimate))
    return dict(groups)


def _held(groups: dict[tuple[str, str], Figures], key: tuple[str, str]) -> list[bool]:
    low, high = _bounds({k: ratios for k, ratios in groups.items() if k != key})
    return [low <= ratio <= high for ratio in groups[key]]


def _bounds(groups: dict[tuple[str, str], Figures]) -> tuple[float, float]:
    """The quantiles of `groups`, widened until each of them, judged by the others, would have been
    held for nine points of ten.

    Quantiles of a dozen models are too narrow for the next one: what they miss among themselves
    says by how much (conformal calibration, models as the folds).
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
        held = sum(
            wider * least <= ratio <= wider * most
            for (least, most), ratios in judged
            for ratio in ratios
        )
        if held >= SHARE * points:
            break
        wider += _WIDENING
    return wider * low, wider * high


def _quantiles(groups: dict[tuple[str, str], Figures]) -> tuple[float, float]:
    """Weighted quantiles that leave 5% on either side; every group weighs the same.

    A model with hundreds of points is one witness of what another model will do, not hundreds; one
    with a handful of points is none, where there are others.
    """
    groups = {k: r for k, r in groups.items() if len(r) >= _WITNESS} or groups
    weighed = sorted((ratio, 1.0 / len(ratios)) for ratios in groups.values() for ratio in ratios)
    total = sum(weight for _, weight in weighed)
    aside = 0.5 * (1.0 - SHARE) * total
    return _at(weighed, aside), -_at([(-r, w) for r, w in reversed(weighed)], aside)


def _at(weighed: Sequence[tuple[float, float]], amount: float) -> float:
    """The value below which less than `amount` of the weight lies."""
    seen = 0.0
    for value, weight in weighed:
        seen += weight
        if seen > amount:
            return value
    return weighed[-1][0]
