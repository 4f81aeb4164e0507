"""The conditions of scale-in, in the order in which they are checked (docs/explanation/sizing.md,
section 5). A condition that fails yields its reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoscaler.domain.cluster import Mode
from autoscaler.domain.reason import Reason
from autoscaler.estimate.scale_in_evidence import is_stale, missing_evidence, slo_pressure
from autoscaler.estimate.windows import Stats
from autoscaler.rollout.reversal_limit import scale_in_within_limit
from autoscaler.sizing.prediction_drift import drift_veto
from autoscaler.sizing.restart_hold import keeps_all
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
    if observed_ms < view.policy.local_window_s * 1000 or keeps_all(view):
        yield Reason(ReasonCode.NO_FULL_WINDOW)


def _stale_telemetry(view: ModelView) -> Iterator[Reason]:
    if is_stale(view.demand):
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
