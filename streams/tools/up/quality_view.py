"""Services of several models in the live view: each model's share of answers, and the quality.

Pure: telemetry and routes are input, values and texts are output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.quality_route import QualityRoute
from autoscaler.explain.quality_texts import thresholds
from topics.records import Routes, Telemetry
from topics.scoring import ALL_REQUESTS, FALLBACK


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One service. shares: (model, served, planned); served is None without answers.

    quality: quality of the answers by the scores of requests; None without scores. thresholds:
    scores that separate its models, as text; "" if there are none. fallbacks: requests that another
    model answered, because the model for their score had no capacity.
    """

    name: str
    req_per_s: float | None
    shares: tuple[tuple[str, float | None, float], ...]
    thresholds: str
    quality: float | None
    at_least: float
    fallbacks: int

    @property
    def missed(self) -> bool:
        """Whether the quality of the answers is below the declared quality."""
        return self.quality is not None and self.quality < self.at_least


def service_row(
    route: QualityRoute, routes: Routes | None, shown: Iterable[Telemetry],
    recent: Iterable[Telemetry],
) -> ServiceRow:  # fmt: skip
    """The row of one service. shown: telemetry from which rates are computed. recent: telemetry
    from which shares and scores are computed."""
    covered_s, arrivals = 0.0, 0
    for record in shown:
        covered_s, arrivals = covered_s + record.span_ms / 1000.0, arrivals + record.arrivals
    sent, classes, fallbacks = Counter[str](), Counter[int](), 0
    for record in recent:
        sent.update(record.sent.get(ALL_REQUESTS, {}))
        classes.update(record.classes)
        fallbacks += sum(record.sent.get(FALLBACK, {}).values())
    split = routes.split if routes is not None else None
    planned = dict(zip(split.models, split.shares, strict=False)) if split else {}
    total = sent.total()
    return ServiceRow(
        route.name,
        arrivals / covered_s if covered_s else None,
        tuple((m, sent[m] / total if total else None, planned.get(m, 0.0)) for m in route.models),
        thresholds(route.thresholds(split.cuts)) if split else "",
        route.mean_quality(split.cuts, route.mix(classes)) if split and classes else None,
        route.at_least,
        fallbacks,
    )


def service_parts(row: ServiceRow) -> list[str]:
    """The texts on a service, the most important first."""
    if not row.thresholds:
        return [f"{row.name}: no thresholds yet"]
    shares = ", ".join(
        f"{model} {'-' if served is None else f'{served:.0%}'} of {planned:.0%} planned"
        for model, served, planned in row.shares
    )
    rate = "" if row.req_per_s is None else f" {row.req_per_s:.1f} req/s"
    quality = "-" if row.quality is None else f"{row.quality:.4g}"
    return [
        f"{row.name}{rate}: {shares}",
        f"{'! ' if row.missed else ''}quality {quality}, at least {row.at_least:g}",
        f"{row.fallbacks} fell back",
        f"thresholds {row.thresholds}",
    ]
