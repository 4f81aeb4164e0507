"""Chooses the distribution of request scores to plan for: the declared sample, or that of the long
or the local window."""

from __future__ import annotations

import math

from autoscaler.domain.quality_route import QualityRoute, ScoreMix
from autoscaler.estimate.model_demand import ModelDemand

_MIN_REQUESTS = 100  # with fewer requests, the declared sample stays in use
# smallest share of requests moved between classes, in excess of chance, that counts as drift
_MIN_SHIFT = 0.05
_CHANCE_FACTOR = 1.5
"""Multiple of the usual difference of two samples that chance may reach."""


def current_score_mix(route: QualityRoute, demand: ModelDemand) -> ScoreMix:
    """The score distribution of the long window, or of the local window if the scores drifted; the
    declared sample while there are few requests."""
    long = route.mix(demand.long_lengths.classes)
    if long.requests < _MIN_REQUESTS:
        return route.sample
    local = route.mix(demand.local_lengths.classes)
    return local if has_drifted(route, long, local) else long


def has_drifted(route: QualityRoute, before: ScoreMix, now: ScoreMix) -> bool:
    """Whether more requests moved between classes than chance explains.

    The share that moved is the total variation distance. For two samples of n1 and n2 requests from
    one distribution with class shares p, chance makes it about the sum of sqrt(p (1 - p) (1/n1 +
    1/n2) / (2 pi)) over the classes. Example: 0.13 for 40 classes, 400 and 3,600 requests.
    """
    if now.requests < _MIN_REQUESTS:
        return False
    pairs = [
        *zip(before.shares, now.shares, strict=True),
        (before.unscored, now.unscored),
    ]
    moved = sum(abs(one - other) for one, other in pairs) / 2.0
    both = 1.0 / (before.requests or route.sampled) + 1.0 / now.requests
    usual = sum(
        math.sqrt(mean * (1.0 - mean) * both / (2.0 * math.pi))
        for mean in (min(1.0, (one + other) / 2.0) for one, other in pairs)
    )
    return moved > _CHANCE_FACTOR * usual + _MIN_SHIFT
