"""Sentences for guards that delay a change or part of a change."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.combo_labels import pools_of
from autoscaler.explain.quantity_texts import count
from autoscaler.explain.sentences import Sentence, Text
from topics.reason_codes import ReasonCode as Code


def _paused(reason: Reason, text: Text) -> str:
    return f"scale-in paused: {', '.join(map(text, reason.because))}"


def _no_telemetry(reason: Reason, _: Text) -> str:
    if not reason.quantities:
        return "no telemetry"
    return f"no telemetry for {reason.quantities[0]:.0f} s; scale-in paused"


def _gateway_silent(reason: Reason, _: Text) -> str:
    ages = zip(reason.names, reason.quantities, strict=True)
    names = ", ".join(f"{gateway} for {age_s:.0f} s" for gateway, age_s in ages)
    return f"no report from a gateway that had traffic ({names})"


def _in_flight(reason: Reason, _: Text) -> str:
    return f"no arrivals, but {count(int(reason.quantities[0]), 'request')} in flight"


def _unread(reason: Reason, _: Text) -> str:
    return f"this controller lags behind on {' and '.join(reason.names)}"


def _no_room(reason: Reason, _: Text) -> str:
    pools = dict.fromkeys(pool for combo in reason.names for pool in pools_of(combo))
    where = f" in {' or '.join(pools)}" if pools else ""
    return f"no free GPUs{where} yet for {', '.join(reason.names)}"


GUARD_TEXTS: Mapping[Code, Sentence] = {
    Code.SCALE_IN_PAUSED: _paused,
    Code.NO_TELEMETRY: _no_telemetry,
    Code.TELEMETRY_STALE: "telemetry is stale",
    Code.TELEMETRY_GAPS: "telemetry covers only {0:.0f} of the last {1:.0f} s",
    Code.GATEWAY_SILENT: _gateway_silent,
    Code.STILL_IN_FLIGHT: _in_flight,
    Code.ENGINES_DISAGREE: "no arrivals, but engines accepted {0:.0f} requests in {1:.0f} s",
    Code.ROUTES_UNCONFIRMED: "no arrivals, and no gateway has confirmed the current routes",
    Code.SLO_STRAINED: "only {0:.0%} of {1:.0f} requests met the SLO",
    Code.LATENCY_RISING: "{names[0]} p95 is rising from {0:.0f} to {1:.0f} ms",
    Code.UNREAD: _unread,
    Code.NO_FULL_WINDOW: "no full window since the start",
    Code.TOO_MANY_REVERSALS: "the fleet was scaled out and in too often in the last two hours",
    Code.LESS_CAPACITY: "capacity is {0:.0%} of the prediction",
    Code.START_TIMES: "instances start in {0:duration} instead of {1:duration}",
    Code.NOT_COVERED: "the remaining capacity would not cover demand",
    Code.FLEET_CHANGED: "the fleet changed while the plan was made",
    Code.PROPOSAL_OUTDATED: "the fleet changed since the proposal",
    Code.SWITCH_WAITS: (
        "the role switch of {all_names} waits until it is ready and other instances can serve its "
        "load"
    ),
    Code.NO_ROOM: _no_room,
    Code.ADDITIONS_NOT_ENOUGH: "additions alone do not serve all demand",
    Code.NOTHING_LEFT: "no part of the change can still be applied",
    Code.FREEZE: "freeze window {names[0]}",
}
