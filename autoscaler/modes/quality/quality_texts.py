"""Sentences for the reasons of services that route to several models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import rate
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def shares(models: Iterable[str], fractions: Iterable[float]) -> str:
    """The models with their shares of the requests: "mini 62.5%, chat 37.5%"."""
    return ", ".join(f"{m} {part:.1%}" for m, part in zip(models, fractions, strict=True))


def thresholds(marks: Iterable[float]) -> str:
    """Thresholds as text: "0.42, 0.61". "none" stands for a threshold below all scores, "all" for
    one above all scores."""
    ends = {-math.inf: "none", math.inf: "all"}
    return ", ".join(ends.get(mark, f"{mark:.4g}") for mark in marks)


def _routed(reason: Reason, text: Text) -> str:
    routed = f"{rate(reason.quantities[0])} req/s routed by {reason.names[0]}"
    return "; ".join([routed, *map(text, reason.because)])


def _no_thresholds(reason: Reason, _: Text) -> str:
    return f"{reason.subject} has no thresholds yet"


def _scores(reason: Reason, _: Text) -> str:
    return f"the scores of {reason.subject}'s requests have changed"


def _thresholds_chosen(reason: Reason, text: Text) -> str:
    models = len(reason.names)
    fractions, rest = reason.quantities[:models], reason.quantities[models:]
    *marks, quality, at_least = rest
    bound = "; ".join(map(text, reason.because))
    return (
        f"{shares(reason.names, fractions)} (thresholds {thresholds(marks)}); "
        f"quality {quality:.4g}, at least {at_least:g} is required; bound by {bound}"
    )


def _thresholds_in_force(reason: Reason, text: Text) -> str:
    began = f"thresholds {thresholds(reason.quantities)} in force"
    return "; ".join([began, *map(text, reason.because)])


def _not_ready(_reason: Reason, _: Text) -> str:
    return "the fleet for the new thresholds is not ready"


def _quality_pools(_reason: Reason, _: Text) -> str:
    return "the pools: not all of the load can be served"


def _quality_out_of_reach(reason: Reason, _: Text) -> str:
    return f"no split of these requests reaches quality {reason.quantities[0]:g}"


def _quality_costs_nothing(_reason: Reason, _: Text) -> str:
    return "the models' limits and the pools: less quality would save nothing"


def _quality_costs(reason: Reason, _: Text) -> str:
    at_least, less, saved = reason.quantities
    return f"quality >= {at_least:g}; {less:.4g} would save {saved:.2f} USD/h"


QUALITY_TEXTS = {
    Code.ROUTED: _routed,
    Code.NO_THRESHOLDS: _no_thresholds,
    Code.SCORES: _scores,
    Code.THRESHOLDS_CHOSEN: _thresholds_chosen,
    Code.THRESHOLDS_IN_FORCE: _thresholds_in_force,
    Code.FLEET_NOT_READY: _not_ready,
    Code.QUALITY_POOLS: _quality_pools,
    Code.QUALITY_OUT_OF_REACH: _quality_out_of_reach,
    Code.QUALITY_COSTS_NOTHING: _quality_costs_nothing,
    Code.QUALITY_COSTS: _quality_costs,
}
