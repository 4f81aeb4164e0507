"""Missed SLOs of a model, and tests whether they are more or fewer than the percentile allows.

Requests that one instance serves at the same time miss together, so a group of misses of that size
counts as one. If each miss counted as independent, models with enough capacity would be derated.
"""

from __future__ import annotations

import math

from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Phase
from autoscaler.estimate.poisson_tests import is_significant, mean_bounds
from autoscaler.estimate.queue_model import expected_in_flight
from autoscaler.estimate.windows import Stats, WindowStats
from autoscaler.state.model_view import ModelView

_ONE_SIDED_95 = 1.645  # standard deviations of a one-sided bound at 95%
_TOGETHER = 2 / 3
"""Share of the requests that an instance serves at a time that are late together."""


def surely_attained(seen: Stats, percentile: float) -> bool:
    """Whether the share of misses is significantly within the allowed percentile."""
    missed, ended = misses(seen)
    return mean_bounds(missed, _ONE_SIDED_95)[1] <= ended * (1.0 - percentile)


def remaining_budget(seen: WindowStats, percentile: float) -> float:
    """Requests that may still miss in a window within the percentile; below 0 if too many missed, 0
    for a window without data."""
    if not isinstance(seen, Stats):
        return 0.0
    missed, ended = misses(seen)
    return ended * (1.0 - percentile) - missed


def misses(seen: Stats) -> tuple[int, int]:
    """(requests that missed, all requests) among the requests that ended."""
    ended = seen.completions + seen.failures + seen.refused
    return ended - seen.attained, ended


def beyond_chance(view: ModelView, missed: int, ended: int) -> bool:
    """Whether `missed` of `ended` requests are more than the percentile allows, and chance is an
    unlikely cause (tested at the square root of `significance`)."""
    if missed < view.policy.min_samples:
        return False
    clump = max(1.0, _TOGETHER * _concurrency(view))
    allowed = ended * (1.0 - view.service.percentile) / clump
    return is_significant(round(missed / clump), allowed, math.sqrt(view.policy.significance))


def share_attained(view: ModelView) -> tuple[float, int]:
    """(share of requests that attained their SLO, number of requests) in the local window; (1, 0)
    if none ended."""
    seen = view.demand.local
    if not isinstance(seen, Stats):
        return 1.0, 0
    missed, ended = misses(seen)
    return (1.0 - missed / ended if ended else 1.0), ended


def _concurrency(view: ModelView) -> float:
    """Requests that one instance serves at the same time at the load of the local window, by
    Little's law. Waiting requests do not count."""
    together = expected_in_flight(
        view.demand.req_per_s, view.serving.ready, view.state.estimate.lengths
    )
    return together / max(1, sum(_decode_instances(combo) for combo in view.serving.ready))


def _decode_instances(combo: Combo) -> int:
    """Number of decode instances in `combo`. Its requests are split over these instances."""
    return sum(m.count for m in combo.members if m.phase is not Phase.PREFILL and m.stage <= 1)
