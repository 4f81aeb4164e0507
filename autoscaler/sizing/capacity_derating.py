"""Rule: requests miss their SLO at a planned load, so the predicted capacity was too high. The
derating factor falls until capacity is below the load at which requests missed. The factor rises
again while requests attain their SLO under load: every ten minutes by one step, or as far as the
served load proves. Misses during a start or above the planned load prove nothing about capacity,
and neither do idle hours. Requests that one instance serves at the same time miss together, so a
group of misses of that size counts as one. If each miss counted as independent, models with enough
capacity would be derated.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Phase
from autoscaler.estimate.change_point import current_rate
from autoscaler.estimate.poisson_tests import is_significant, mean_bounds
from autoscaler.estimate.queue_model import expected_in_flight
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.engine_slowdown import capacity_share, update_slowdown
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

LEAST = 0.5
"""Lowest derating factor, so that misses at most double the planned capacity."""
LOADED = 0.5
"""Requests are evidence about the capacity only at this share of the planned load or above."""
_STEP = 0.85
"""Factor of one decrease. It goes below the load that missed, because requests missed at that
load."""
_BACK = 1.03
"""Factor of one increase. The step is small, because an increase that is too large shows only as
missed SLOs."""
_BACK_EVERY_MS = 600_000
"""Time between two increases in ms, in which an increase that is too large shows as misses."""
_ONE_SIDED_95 = 1.645  # standard deviations of a one-sided bound at 95%
_TOGETHER = 2 / 3
"""Share of the requests that an instance serves at a time that are late together."""


def update_derating(view: ModelView) -> ModelState:
    """The model's state with a lower or higher derating factor; unchanged without evidence."""
    state, now_ms = update_slowdown(view), view.now_ms
    view = replace(view, state=state)
    most = max(LEAST, capacity_share(view))
    if view.serving.nothing_starting and most < state.capacity.derate:
        slow = Reason(
            ReasonCode.SLOW_ENGINES, view.service.model, quantities=(state.capacity.slowdown,)
        )
        return _derated(state, most, slow, now_ms)
    settle_ms = view.policy.local_window_s * 1000
    calm = (
        view.serving.nothing_starting
        and state.capacity.settled_ms
        and now_ms - state.capacity.settled_ms >= 2 * settle_ms
    )
    if not calm or now_ms - state.capacity.derated_ms < 2 * settle_ms:
        return state
    if misses_beyond_chance(view):
        seen = *share_attained(view), view.demand.req_per_s, view.planned_req_per_s
        why = Reason(ReasonCode.OVERESTIMATED, view.service.model, quantities=seen)
        lower = max(LEAST, _STEP * min(state.capacity.derate, _load_that_missed(view)))
        return _derated(state, lower, why, now_ms)
    shown = min(most, _recovered_derating(view)) if state.capacity.derate < most else 0.0
    return (
        replace(state, capacity=replace(state.capacity, derate=shown, derated_ms=now_ms))
        if shown
        else state
    )


def _derated(state: ModelState, factor: float, why: Reason, now_ms: int) -> ModelState:
    return replace(
        state,
        capacity=replace(state.capacity, derate=factor, derated_ms=now_ms),
        target=replace(state.target, why=why),
    )


def _load_that_missed(view: ModelView) -> float:
    """The load at which requests missed, as a share of the predicted capacity. Idle seconds before
    an increase do not lower it."""
    rate = max(view.demand.req_per_s, current_rate(view.demand, view.policy).req_per_s)
    return rate / (view.raw_req_per_s * view.service.utilization)


def _recovered_derating(view: ModelView) -> float:
    """The derating factor that attained requests justify; 0 without such evidence. It is the served
    load as a share of the predicted capacity, but at least one step above the present factor. If
    only the long window is conclusive, it is exactly one step above.
    """
    state, seen, long = view.state, view.demand.local, view.demand.long
    predicted = view.raw_req_per_s * view.service.utilization
    due = view.now_ms - state.capacity.derated_ms >= _BACK_EVERY_MS
    if not due or not isinstance(seen, Stats) or predicted <= 0.0:
        return 0.0
    ended_per_s = seen.attained / max(seen.covered_s, 1)
    carried, step = min(seen.req_per_s, ended_per_s) / predicted, state.capacity.derate * _BACK
    if carried < LOADED * state.capacity.derate:
        return 0.0
    if _surely_attained(seen, view.service.percentile):
        return min(1.0, max(carried, step))
    sure = isinstance(long, Stats) and _surely_attained(long, view.service.percentile)
    return min(1.0, step) if sure else 0.0


def _surely_attained(seen: Stats, percentile: float) -> bool:
    """Whether the share of misses is significantly within the allowed percentile."""
    misses, ended = _misses(seen)
    return mean_bounds(misses, _ONE_SIDED_95)[1] <= ended * (1.0 - percentile)


def _misses(seen: Stats) -> tuple[int, int]:
    """(requests that missed, all requests) among the requests that ended."""
    ended = seen.completions + seen.failures + seen.refused
    return ended - seen.attained, ended


def misses_beyond_chance(view: ModelView) -> bool:
    """Whether more requests missed at a planned load than the percentile allows, and chance is an
    unlikely cause (tested at the square root of `significance`). A group of requests served
    together counts as one miss. False below half of the planned load, because more capacity does
    not help there, and False if no combo meets the SLO.
    """
    seen, planned = view.demand.local, view.planned_req_per_s
    if not isinstance(seen, Stats) or not any(combo.meets_slo for combo in view.serving.ready):
        return False
    if planned <= 0.0 or not LOADED * planned <= seen.req_per_s <= planned:
        return False
    misses, ended = _misses(seen)
    if misses < view.policy.min_samples:
        return False
    clump = max(1.0, _TOGETHER * _concurrency(view))
    allowed = ended * (1.0 - view.service.percentile) / clump
    return is_significant(round(misses / clump), allowed, math.sqrt(view.policy.significance))


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


def share_attained(view: ModelView) -> tuple[float, int]:
    """(share of requests that attained their SLO, number of requests) in the local window; (1, 0)
    if none ended."""
    seen = view.demand.local
    if not isinstance(seen, Stats):
        return 1.0, 0
    misses, ended = _misses(seen)
    return (1.0 - misses / ended if ended else 1.0), ended
