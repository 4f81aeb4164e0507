"""Corrects the planned capacity by measurements, with one factor for each model.

The factor falls if requests miss their SLO at a planned load, or if engines are slow. It falls
below the load at which requests missed. It rises while requests attain their SLO: to 1 if the load
is at least half of the planned one, every ten minutes by one step or as far as the served load
proves. Above 1 it rises as far as measurements prove more than planned (`sizing.capacity_gain`).
Misses during a start, while the queue of a shortage drains, or above the planned load prove nothing
about a factor up to 1, and neither do idle hours.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.estimate.change_point import current_rate
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.capacity_gain import STEP, gain_is_lost, learnt_gain
from autoscaler.sizing.engine_slowdown import capacity_share, update_slowdown
from autoscaler.sizing.slo_misses import beyond_chance, misses, share_attained, surely_attained
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

LEAST = 0.5
"""Lowest factor, so that misses at most double the planned capacity."""
LOADED = 0.5
"""Requests are evidence about the capacity only at this share of the planned load or above."""
_STEP = 0.85
"""Factor of one decrease. It goes below the load that missed, because requests missed at that
load."""
_BACK_EVERY_MS = 600_000
"""Time between two increases in ms, in which an increase that is too large shows as misses."""


def update_derating(view: ModelView) -> ModelState:
    """The model's state with a lower or higher factor; unchanged without evidence."""
    before = view.state.capacity
    state, now_ms = update_slowdown(view), view.now_ms
    view = _of_running(view if state is view.state else replace(view, state=state))
    known = state.capacity
    if known.derate > 1.0 and gain_is_lost(view):
        state = replace(state, capacity=replace(known, gain_lost_ms=now_ms))
        return _derated(state, 1.0, _overestimated(view), now_ms)
    # A gain by fast tokens ends with them. Other gains do not depend on the time per token.
    off = known.slowdown != 1.0 or before.slowdown < 1.0
    most = max(LEAST, capacity_share(view) * known.predicted) if off else known.derate
    if view.serving.nothing_starting and most < known.derate:
        slow = Reason(ReasonCode.SLOW_ENGINES, view.service.model, quantities=(known.slowdown,))
        return _derated(state, most, slow, now_ms)
    settle_ms = view.policy.local_window_s * 1000
    calm = (
        view.serving.nothing_starting
        and known.settled_ms
        and now_ms - known.settled_ms >= 2 * settle_ms
    )
    if not calm or now_ms - known.derated_ms < 2 * settle_ms:
        return state
    if misses_beyond_chance(view):
        lower = max(LEAST, _STEP * min(known.derate, _load_that_missed(view)))
        return _derated(state, lower, _overestimated(view), now_ms)
    higher = _higher_factor(view)
    if higher <= known.derate:
        return state
    return replace(state, capacity=replace(known, derate=higher, derated_ms=now_ms))


def _of_running(view: ModelView) -> ModelView:
    """`view` with the capacity of the running servers, for a model that Shoal does not change:
    recommended servers serve no requests."""
    running = sum(combo.req_per_s for combo in view.serving.ready)
    return view if view.service.managed or not running else replace(view, raw_req_per_s=running)


def _overestimated(view: ModelView) -> Reason:
    seen = *share_attained(view), view.demand.req_per_s, view.planned_req_per_s
    return Reason(ReasonCode.OVERESTIMATED, view.service.model, quantities=seen)


def _derated(state: ModelState, factor: float, why: Reason, now_ms: int) -> ModelState:
    return replace(
        state,
        capacity=replace(state.capacity, derate=factor, derated_ms=now_ms),
        target=replace(state.target, why=why),
    )


def _load_that_missed(view: ModelView) -> float:
    """The load at which requests missed, as a share of the planned capacity. Idle seconds before an
    increase do not lower it."""
    rate = max(view.demand.req_per_s, current_rate(view.demand, view.policy).req_per_s)
    return rate / (view.raw_req_per_s * view.service.utilization)


def _higher_factor(view: ModelView) -> float:
    """The factor that attained requests justify; 0 without such evidence."""
    known, seen, long = view.state.capacity, view.demand.local, view.demand.long
    planned = view.raw_req_per_s * view.service.utilization
    due = view.now_ms - known.derated_ms >= _BACK_EVERY_MS
    if not due or not isinstance(seen, Stats) or planned <= 0.0:
        return 0.0
    sure = surely_attained(seen, view.service.percentile)
    step = known.derate * (1.0 + STEP)
    if not sure and not (
        isinstance(long, Stats) and surely_attained(long, view.service.percentile)
    ):
        return 0.0
    if known.derate >= 1.0:
        return learnt_gain(view)
    ended_per_s = seen.attained / max(seen.covered_s, 1)
    carried = min(seen.req_per_s, ended_per_s) / planned
    if carried < LOADED * known.derate:
        return 0.0
    most = min(1.0, max(LEAST, capacity_share(view) * known.predicted))
    return min(most, max(carried, step) if sure else step)


def misses_beyond_chance(view: ModelView) -> bool:
    """Whether more requests missed at a planned load than the percentile allows, beyond chance.
    False below half of the planned load, because more capacity does not help there, and False if no
    combo meets the SLO.
    """
    seen, planned = view.demand.local, view.planned_req_per_s
    if not isinstance(seen, Stats) or not any(combo.meets_slo for combo in view.serving.ready):
        return False
    if planned <= 0.0 or not LOADED * planned <= seen.req_per_s <= planned:
        return False
    return beyond_chance(view, *misses(seen))
