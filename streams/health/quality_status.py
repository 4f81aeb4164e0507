"""Status of a service that routes over several models.

Defines the JSON names of a service in `/v1/status` and `/v1/explain/NAME`, which are stable because
other programs read them.
"""

from __future__ import annotations

from typing import Any

from autoscaler.domain.quality_route import QualityRoute
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.score_drift import current_score_mix
from autoscaler.explain.quality_texts import thresholds
from autoscaler.explain.reason_texts import text
from autoscaler.state.quality_state import SplitState
from streams.loop.tick_loop import TickResult
from topics.scoring import ALL_REQUESTS, FALLBACK


def service_facts(route: QualityRoute, done: TickResult) -> dict[str, Any]:
    """Thresholds, shares and quality, as planned and for the current scores, and the binding
    constraint.

    requests: number of requests behind `shares` and `quality`; 0 if they come from the declared
    sample. served: requests in the local window. fallbacks: requests in the local window that
    another model answered because the model for their score had no free capacity.
    """
    known = done.after.splits.get(route.name, SplitState())
    demand = done.observation.demand.get(route.name, UNKNOWN_DEMAND)
    mix, chosen = current_score_mix(route, demand), known.chosen
    return {
        "name": route.name,
        "models": route.models,
        "req_per_s": demand.req_per_s if demand.reported_ms is not None else None,
        "thresholds": thresholds(route.thresholds(known.cuts)) if known.cuts else "",
        "shares": route.fractions(known.cuts, mix) if known.cuts else (),
        "unscored": mix.unscored,
        "quality": route.mean_quality(known.cuts, mix) if known.cuts else None,
        "at_least": route.at_least,
        "requests": mix.requests,
        "planned_thresholds": thresholds(route.thresholds(known.target_cuts))
        if known.target_cuts
        else "",
        "planned_shares": chosen.fractions if chosen else (),
        "planned_quality": chosen.quality if chosen else None,
        "bound_by": text(chosen.bound_by) if chosen else "",
        "served": demand.kinds.get(ALL_REQUESTS, 0),
        "fallbacks": demand.kinds.get(FALLBACK, 0),
    }
