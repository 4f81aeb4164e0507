"""Errors of estimates against measured points, per model and system and in total."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from autoscaler.performance.benchmark_points import Estimate, MeasuredPoint

EstimatedPoint = tuple[MeasuredPoint, Estimate]


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute errors relative to measurements, as fractions.

    model, system: the group; for a class of models, `model` is "dense", "mixture of experts" or
    "total" and `system` is "all". An error is None if no point has such a measurement. uncertain:
    whether the profile marks this model or GPU as uncertain.
    """

    model: str
    system: str
    points: int
    ttft_mape: float | None
    tpot_mape: float | None
    ttft_median: float | None
    tpot_median: float | None
    uncertain: bool


def errors_by_group(
    pairs: Sequence[EstimatedPoint], uncertain: Sequence[bool]
) -> list[ErrorSummary]:
    """One summary per (model, system), in sorted order."""
    groups: dict[tuple[str, str], list[tuple[EstimatedPoint, bool]]] = defaultdict(list)
    for pair, unsure in zip(pairs, uncertain, strict=True):
        groups[(pair[0].model, pair[0].system)].append((pair, unsure))
    return [
        _summary(model, system, [pair for pair, _ in own], any(unsure for _, unsure in own))
        for (model, system), own in sorted(groups.items())
    ]


def errors_by_class(pairs: Sequence[EstimatedPoint]) -> list[ErrorSummary]:
    """Summaries of dense models, of mixtures of experts, and of all models. Classes without points
    are left out."""
    dense = [pair for pair in pairs if not pair[0].spec.is_moe]
    sparse = [pair for pair in pairs if pair[0].spec.is_moe]
    classes = [("dense", dense), ("mixture of experts", sparse), ("total", list(pairs))]
    return [_summary(name, "all", own, False) for name, own in classes if own]


def _summary(
    model: str, system: str, pairs: Sequence[EstimatedPoint], uncertain: bool
) -> ErrorSummary:
    ttft = [abs(e.ttft_ms / p.ttft_ms - 1.0) for p, e in pairs if p.ttft_ms is not None]
    tpot = [abs(e.tpot_ms / p.tpot_ms - 1.0) for p, e in pairs if p.tpot_ms is not None]
    return ErrorSummary(
        model,
        system,
        len(pairs),
        fmean(ttft) if ttft else None,
        fmean(tpot) if tpot else None,
        median(ttft) if ttft else None,
        median(tpot) if tpot else None,
        uncertain,
    )
