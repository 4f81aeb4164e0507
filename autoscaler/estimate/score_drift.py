"""How the scores of requests fall on classes now, and whether that is another mix than before.

Owns the choice between the declared sample, the long window and the local one. Knows nothing of
thresholds.
"""

from __future__ import annotations

import math

from autoscaler.domain.quality_route import QualityRoute, ScoreMix
from autoscaler.estimate.model_demand import ModelDemand

_LEAST = 100  # requests that say more than the declared sample
_MATTERS = 0.05  # share of the requests that must have moved, beyond what chance moves
_CHANCE = 1.5


def present_mix(route: QualityRoute, demand: ModelDemand) -> ScoreMix:
    """The mix to plan for: of the long window, or of the local one where it has changed since; the
    declared sample while hardly a request was seen."""
    long = route.mix(demand.long_lengths.classes)
    if long.requests < _LEAST:
        return route.sample
    local = route.mix(demand.local_lengths.classes)
    return local if has_drifted(route, long, local) else long


def has_drifted(route: QualityRoute, before: ScoreMix, now: ScoreMix) -> bool:
    """Whether more of the requests moved between classes than chance moves.

    The share that moved is the total variation distance. Between two samples of the same requests
    of n1 and n2 it is about the sum of sqrt(p (1 - p) (1/n1 + 1/n2) / (2 pi)): with 40 classes, 400
    and 3,600 requests, 0.13.
    """
    if now.requests < _LEAST:
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
    return moved > _CHANCE * usual + _MATTERS
