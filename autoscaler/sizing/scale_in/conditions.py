"""The conditions of scale-in, in the order in which they are checked (docs/explanation/sizing.md,
section 5). A condition that fails yields its reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoscaler.domain.cluster import Mode, Policy, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.prediction_drift import drift_veto
from autoscaler.sizing.scale_in.evidence import missing_evidence, slo_pressure
from autoscaler.sizing.scale_in.reversals import scale_in_within_limit
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

Condition = Callable[[ModelView], Iterator[Reason]]


def _frozen(view: ModelView) -> Iterator[Reason]:
    if view.frozen is not None:
        yield view.frozen


def _canary_compared(view: ModelView) -> Iterator[Reason]:
    policy, known = view.service.rollout.canary, view.state.rollout.comparison
    if policy is None or known is None or not known.serves_ms:
        return
    if view.now_ms - known.serves_ms < 1000 * policy.within_s:
        yield Reason(ReasonCode.CANARY_COMPARED)


def _too_many_reversals(view: ModelView) -> Iterator[Reason]:
    turns, most_per_h = view.state.hysteresis.reversals, view.policy.reversals_per_h
    if not scale_in_within_limit(turns, view.now_ms, most_per_h):
        yield Reason(ReasonCode.TOO_MANY_REVERSALS)


def _no_full_window(view: ModelView) -> Iterator[Reason]:
    observed_ms = view.now_ms - view.started_ms
    if observed_ms < view.policy.local_window_s * 1000 or _keeps_all(view):
        yield Reason(ReasonCode.NO_FULL_WINDOW)


def _stale_telemetry(view: ModelView) -> Iterator[Reason]:
    if view.demand.is_stale:
        yield Reason(ReasonCode.TELEMETRY_STALE)


def _incomplete_telemetry(view: ModelView) -> Iterator[Reason]:
    seen = view.serving
    why = missing_evidence(
        view.demand, view.policy, seen.route_generation, seen.requests_in_engines
    )
    if why is not None:
        yield why


def _slo_pressure(view: ModelView) -> Iterator[Reason]:
    why = slo_pressure(view.demand, view.service)
    if why is not None:
        yield why


def _drifting_predictions(view: ModelView) -> Iterator[Reason]:
    if view.service.mode is Mode.ACT:
        seen = view.demand.local
        load = seen.req_per_s if isinstance(seen, Stats) else 0.0
        yield from drift_veto(view.state, view.now_ms, load, view.planned_req_per_s)


def _keeps_all(view: ModelView) -> bool:
    """Whether no instance of a held model may be removed, because no excess could be proven yet."""
    return _is_held(view, excess_duration_s(view.service, view.policy))


def _is_held(view: ModelView, for_s: int) -> bool:
    """Whether the model is held, `for_s` seconds after the start. Instances that a new controller
    takes over without memory, e.g. after its topics were lost, are held: its predecessor kept them
    for a reason, and the declared lengths of requests say little about their capacity."""
    return view.state.target.restart_hold and view.now_ms - view.started_ms < 1000 * for_s


LOWER_TARGET = (_no_full_window, _stale_telemetry, _incomplete_telemetry)
"""Conditions of a lower target."""
_LESS_CAPACITY = (*LOWER_TARGET, _slo_pressure, _drifting_predictions)
REMOVAL = (_frozen, _canary_compared, _too_many_reversals, *_LESS_CAPACITY)
"""Conditions of a removal: all of them."""
EXCHANGE = (_frozen, _canary_compared, *_LESS_CAPACITY)
"""Conditions of an exchange that loses a little capacity, which is no reversal."""
REALLOCATION = (_frozen, _stale_telemetry)
"""Conditions of moving capacity to another model within a budget; no excess must be proven."""
NO_LOSS = (_frozen, _canary_compared)
"""Conditions of a removal that additions outweigh."""


def failed_condition(view: ModelView, conditions: tuple[Condition, ...]) -> Reason | None:
    """The reason why scale-in is paused: the first of `conditions` that fails. None if all hold."""
    for condition in conditions:
        if causes := tuple(condition(view)):
            return Reason(ReasonCode.SCALE_IN_PAUSED, because=causes)
    return None


def is_unmeasured(view: ModelView) -> bool:
    """Whether a held model has not been observed for a local window yet. Until then no capacity is
    added or exchanged."""
    return _is_held(view, view.policy.local_window_s)


def excess_duration_s(service: Service, policy: Policy) -> int:
    """Seconds for which an excess must last, in blocks of 10 s: `scale_in_after`, at least the
    local window, and at most the long window without its first, partly covered block."""
    most = max(1, policy.global_window_s // BLOCK_S - 1)
    least_s = max(service.scale_in_after_s, policy.local_window_s)
    return BLOCK_S * min(round(least_s / BLOCK_S), most)
