"""Sentences for the reasons of services that route to several models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import rate
from autoscaler.explain.sentences import Sentence, Text
from topics.reason_codes import ReasonCode as Code


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


QUALITY_TEXTS: Mapping[Code, Sentence] = {
    Code.ROUTED: _routed,
    Code.NO_THRESHOLDS: "{subject} has no thresholds yet",
    Code.SCORES: "the scores of {subject}'s requests have changed",
    Code.THRESHOLDS_CHOSEN: _thresholds_chosen,
    Code.THRESHOLDS_IN_FORCE: _thresholds_in_force,
    Code.FLEET_NOT_READY: "the fleet for the new thresholds is not ready",
    Code.QUALITY_POOLS: "the pools: not all of the load can be served",
    Code.QUALITY_OUT_OF_REACH: "no split of these requests reaches quality {0:g}",
    Code.QUALITY_COSTS_NOTHING: "the models' limits and the pools: less quality would save nothing",
    Code.QUALITY_COSTS: "quality >= {0:g}; {1:.4g} would save {2:.2f} USD/h",
}
