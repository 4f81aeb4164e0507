"""Requests miss their SLO although the load is what was planned for: capacity was overestimated.

Owns the derating of a model's capacity: down to less than the load that missed, up again where
requests attain their SLO under load, every ten minutes by a step or as far as the load itself
proves it. Misses while something starts, or while more arrives than is planned for, say nothing
about capacity, and neither do idle hours.

Requests that an instance serves together are late together, so misses come in clumps: simulated at
a planned load that 95 to 97% attain, their number in two minutes varies 3 to 6 times as much as if
each came by itself, which is 0.4 to 0.9 of what an instance serves at a time. Where there is enough
capacity, a test that takes each miss by itself finds too little once to five times an hour; counted
in clumps, at most once in four hours. Where engines are 10% slower than predicted, which 75 to 80%
attain, the former takes two minutes and the latter two to seven.
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
from autoscaler.state.controller_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

LEAST = 0.5
LOADED = 0.5
"""From this share of the planned load on, requests show something of the capacity."""
_STEP = 0.85
_BACK = 1.03
_BACK_EVERY_MS = 600_000
_SURELY = 1.645  # standard deviations: one chance in twenty
_TOGETHER = 2 / 3
"""So many of the requests that an instance serves at a time are late together."""


def derated(view: ModelView) -> ModelState:
    """The model's state with its capacity derated, or less so; unchanged if neither."""
    state, now_ms = view.state, view.now_ms
    settle_ms = view.policy.local_window_s * 1000
    calm = view.nothing_starting and state.settled_ms and now_ms - state.settled_ms >= 2 * settle_ms
    if not calm or now_ms - state.derated_ms < 2 * settle_ms:
        return state
    if missed(view):
        seen = *share_attained(view), view.demand.req_per_s, view.planned_req_per_s
        why = Reason(ReasonCode.OVERESTIMATED, view.service.model, quantities=seen)
        lower = max(LEAST, _STEP * min(state.derate, _loaded(view)))
        return replace(state, derate=lower, derated_ms=now_ms, target_why=why)
    shown = _shown(view) if state.derate < 1.0 else 0.0
    return replace(state, derate=shown, derated_ms=now_ms) if shown else state


def _loaded(view: ModelView) -> float:
    """The load that missed, as a share of the capacity that is predicted: idle seconds of the local
    window before the rate rose are no part of it."""
    rate = max(view.demand.req_per_s, current_rate(view.demand, view.policy).req_per_s)
    return rate / (view.raw_req_per_s * view.service.utilization)


def _shown(view: ModelView) -> float:
    """The derating that requests which attain their SLO speak for: that of the load that arrived in
    the local window and ended (what arrived may still wait), a step at least; a step where only the
    long window is sure; 0 for none."""
    state, seen, long = view.state, view.demand.local, view.demand.long
    predicted = view.raw_req_per_s * view.service.utilization
    due = view.now_ms - state.derated_ms >= _BACK_EVERY_MS
    if not due or not isinstance(seen, Stats) or predicted <= 0.0:
        return 0.0
    ended_per_s = seen.attained / max(seen.covered_s, 1)
    carried, step = min(seen.req_per_s, ended_per_s) / predicted, state.derate * _BACK
    if carried < LOADED * state.derate:
        return 0.0
    if _attained(seen, view.service.percentile):
        return min(1.0, max(carried, step))
    sure = isinstance(long, Stats) and _attained(long, view.service.percentile)
    return min(1.0, step) if sure else 0.0


def _attained(seen: Stats, percentile: float) -> bool:
    """Whether no more requests miss than the percentile allows, beyond doubt."""
    misses, ended = _misses(seen)
    return mean_bounds(misses, _SURELY)[1] <= ended * (1.0 - percentile)


def _misses(seen: Stats) -> tuple[int, int]:
    """(those that missed their SLO, all) of the requests that ended."""
    ended = seen.completions + seen.failures + seen.refused
    return ended - seen.attained, ended


def missed(view: ModelView) -> bool:
    """Whether more requests missed than the percentile allows, likely beyond chance (the root of
    `significance`), at a planned load. A clump of misses counts as one.

    Below half of the planned load more capacity is no remedy; where no combo can meet the SLO it
    would be none either.
    """
    seen, planned = view.demand.local, view.planned_req_per_s
    if not isinstance(seen, Stats) or not any(combo.meets_slo for combo in view.ready):
        return False
    if planned <= 0.0 or not LOADED * planned <= seen.req_per_s <= planned:
        return False
    misses, ended = _misses(seen)
    if misses < view.policy.min_samples:
        return False
    clump = max(1.0, _TOGETHER * _at_a_time(view))
    allowed = ended * (1.0 - view.service.percentile) / clump
    return is_significant(round(misses / clump), allowed, math.sqrt(view.policy.significance))


def _at_a_time(view: ModelView) -> float:
    """Requests that an instance serves at a time at the load of the local window, by Little's law:
    what waits beside them tells no clumps apart."""
    together = expected_in_flight(view.demand.req_per_s, view.ready, view.state.lengths)
    return together / max(1, sum(_serving(combo) for combo in view.ready))


def _serving(combo: Combo) -> int:
    """How many instances of `combo` share its requests: those that write the answers."""
    return sum(m.count for m in combo.members if m.phase is not Phase.PREFILL and m.stage <= 1)


def share_attained(view: ModelView) -> tuple[float, int]:
    """(share, requests) of the local window that attained their SLO; (1, 0) where none ended."""
    seen = view.demand.local
    if not isinstance(seen, Stats):
        return 1.0, 0
    misses, ended = _misses(seen)
    return (1.0 - misses / ended if ended else 1.0), ended
