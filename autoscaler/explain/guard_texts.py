"""Sentences for guards that delay a change or part of a change."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import count, duration, lasting
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def _paused(reason: Reason, text: Text) -> str:
    return f"scale-in paused: {', '.join(map(text, reason.because))}"


def _no_telemetry(reason: Reason, _: Text) -> str:
    if not reason.quantities:
        return "no telemetry"
    return f"no telemetry for {reason.quantities[0]:.0f} s; scale-in paused"


def _stale(_reason: Reason, _: Text) -> str:
    return "telemetry is stale"


def _gaps(reason: Reason, _: Text) -> str:
    covered_s, window_s = reason.quantities
    return f"telemetry covers only {covered_s:.0f} of the last {window_s:.0f} s"


def _gateway_silent(reason: Reason, _: Text) -> str:
    ages = zip(reason.names, reason.quantities, strict=True)
    names = ", ".join(f"{gateway} for {age_s:.0f} s" for gateway, age_s in ages)
    return f"no report from a gateway that had traffic ({names})"


def _in_flight(reason: Reason, _: Text) -> str:
    return f"no arrivals, but {count(int(reason.quantities[0]), 'request')} in flight"


def _unconfirmed(_reason: Reason, _: Text) -> str:
    return "no arrivals, and no gateway has confirmed the current routes"


def _slo_strained(reason: Reason, _: Text) -> str:
    share, requests = reason.quantities
    return f"only {share:.0%} of {requests:.0f} requests met the SLO"


def _latency_rising(reason: Reason, _: Text) -> str:
    before_ms, now_ms = reason.quantities
    return f"{reason.names[0]} p95 is rising from {before_ms:.0f} to {now_ms:.0f} ms"


def _unread(reason: Reason, _: Text) -> str:
    return f"this controller lags behind on {' and '.join(reason.names)}"


def _no_full_window(_reason: Reason, _: Text) -> str:
    return "no full window since the start"


def _cooldown(reason: Reason, _: Text) -> str:
    return f"cool-down: capacity was added {lasting(reason.quantities[0])} ago"


def _too_many_reversals(_reason: Reason, _: Text) -> str:
    return "the fleet was scaled out and in too often in the last two hours"


def _less_capacity(reason: Reason, _: Text) -> str:
    return f"capacity is {reason.quantities[0]:.0%} of the prediction"


def _start_times(reason: Reason, _: Text) -> str:
    took_s, predicted_s = reason.quantities
    return f"instances start in {duration(took_s)} instead of {duration(predicted_s)}"


def _not_covered(_reason: Reason, _: Text) -> str:
    return "the remaining capacity would not cover demand"


def _fleet_changed(_reason: Reason, _: Text) -> str:
    return "the fleet changed while the plan was made"


def _proposal_outdated(_reason: Reason, _: Text) -> str:
    return "the fleet changed since the proposal"


def _no_room(reason: Reason, _: Text) -> str:
    return f"no room yet for {', '.join(reason.names)}"


def _switch_waits(reason: Reason, _: Text) -> str:
    return f"{', '.join(reason.names)} cannot switch roles now"


def _additions_not_enough(_reason: Reason, _: Text) -> str:
    return "additions alone do not serve all demand"


def _nothing_left(_reason: Reason, _: Text) -> str:
    return "no part of the change can still be applied"


def _freeze(reason: Reason, _: Text) -> str:
    return f"freeze window {reason.names[0]}"


GUARD_TEXTS = {
    Code.SCALE_IN_PAUSED: _paused,
    Code.NO_TELEMETRY: _no_telemetry,
    Code.TELEMETRY_STALE: _stale,
    Code.TELEMETRY_GAPS: _gaps,
    Code.GATEWAY_SILENT: _gateway_silent,
    Code.STILL_IN_FLIGHT: _in_flight,
    Code.ROUTES_UNCONFIRMED: _unconfirmed,
    Code.SLO_STRAINED: _slo_strained,
    Code.LATENCY_RISING: _latency_rising,
    Code.UNREAD: _unread,
    Code.NO_FULL_WINDOW: _no_full_window,
    Code.COOLDOWN: _cooldown,
    Code.TOO_MANY_REVERSALS: _too_many_reversals,
    Code.LESS_CAPACITY: _less_capacity,
    Code.START_TIMES: _start_times,
    Code.NOT_COVERED: _not_covered,
    Code.FLEET_CHANGED: _fleet_changed,
    Code.PROPOSAL_OUTDATED: _proposal_outdated,
    Code.SWITCH_WAITS: _switch_waits,
    Code.NO_ROOM: _no_room,
    Code.ADDITIONS_NOT_ENOUGH: _additions_not_enough,
    Code.NOTHING_LEFT: _nothing_left,
    Code.FREEZE: _freeze,
}
