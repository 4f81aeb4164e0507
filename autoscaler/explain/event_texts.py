"""Sentences for operator actions, and for events of the fleet and its feeds."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import count, lasting
from autoscaler.planning.time_limits import MOST_S
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def _by(reason: Reason) -> str:
    """The operator and the reason of a control: " by ada: too dear"; "" if the control has
    neither."""
    who = f" by {reason.names[0]}" if reason.names and reason.names[0] else ""
    return who + (f": {reason.quoted}" if reason.quoted else "")


def control_text(reason: Reason) -> str:
    """The text of a pause or a release, without its effect, e.g. "paused by ada: too dear"."""
    return f"{'paused' if reason.code is Code.PAUSED else 'released'}{_by(reason)}"


def _paused(reason: Reason, _: Text) -> str:
    return f"{control_text(reason)}; Shoal makes no changes"


def _released(reason: Reason, _: Text) -> str:
    return f"{control_text(reason)}; Shoal no longer manages it"


def _frozen(reason: Reason, _: Text) -> str:
    return f"frozen{_by(reason)}; nothing is removed"


def _unfrozen(_reason: Reason, _: Text) -> str:
    return "no longer frozen"


def _freeze_began(reason: Reason, _: Text) -> str:
    return f"freeze window {reason.names[0]} began; scale-in paused"


def _scheduled_floor(reason: Reason, _: Text) -> str:
    return f"scheduled floor of {reason.quantities[0]:.0f} ({reason.names[0]})"


def _left_running(_reason: Reason, _: Text) -> str:
    return (
        "no longer declared; its instances keep running "
        "(to stop them, declare it in mode act and remove it again)"
    )


def _held_running(_reason: Reason, _: Text) -> str:
    return (
        "no longer declared; its instances keep running until a person lets Shoal manage it again"
    )


def _resumed(_reason: Reason, _: Text) -> str:
    return "resumed"


def _managed_again(_reason: Reason, _: Text) -> str:
    return "managed by Shoal again"


def _declared_again(_reason: Reason, _: Text) -> str:
    return "declared again, or its instances have stopped"


def _window_over(reason: Reason, _: Text) -> str:
    return f"{reason.names[0]} window is over"


def _proposal(reason: Reason) -> str:
    return f"proposal #{reason.quantities[0]:.0f}"


def _expired(reason: Reason, _: Text) -> str:
    return f"{_proposal(reason)} has expired without an answer"


def _withdrawn(reason: Reason, text: Text) -> str:
    return f"{_proposal(reason)} is withdrawn: {'; '.join(map(text, reason.because))}"


def _rejected(reason: Reason, _: Text) -> str:
    return f"{_proposal(reason)} was rejected{_by(reason)}"


def _approved(reason: Reason, _: Text) -> str:
    return f"#{reason.quantities[0]:.0f} approved{_by(reason)}"


def _dropped(reason: Reason, text: Text) -> str:
    why = "; ".join(map(text, reason.because))
    return f"{_proposal(reason)} was approved{_by(reason)}, but not applied: {why}"


def _rebuilt(reason: Reason, _: Text) -> str:
    instances, models, declared = map(int, reason.quantities)
    return (
        f"rebuilt from the topics: {count(instances, 'instance')} of {count(models, 'model')} "
        f"taken over, {declared} declared"
    )


def _limit(seconds: float) -> str:
    """A duration as written in configuration files: "90s", "16m"; rounded to the minute above two
    minutes."""
    return f"{seconds:g}s" if seconds < 120.0 else f"{seconds / 60.0:.0f}m"


def _drain_too_short(reason: Reason, _: Text) -> str:
    declared, needed = map(_limit, reason.quantities)
    return (
        f"policy.drain_timeout {declared} is shorter than the longest answers of {reason.subject} "
        f"({needed} at the TPOT limit), so scale-in may cut requests; "
        "leave the key out to derive it from the workload"
    )


def _drain_long_enough(_reason: Reason, _: Text) -> str:
    return "the drain time-out is long enough for its answers again"


def _start_below_provision(reason: Reason, _: Text) -> str:
    declared, needed = map(_limit, reason.quantities)
    return (
        f"policy.start_timeout {declared} is shorter than the provision_time {needed} of "
        f"{reason.subject}: for this pool Shoal waits twice the expected start time instead"
    )


def _approval_too_short(reason: Reason, _: Text) -> str:
    declared, needed = map(_limit, reason.quantities)
    return (
        f"policy.approve_within {declared} is shorter than policy.replan_every {needed}: "
        "a proposal expires before the next full plan can repeat it"
    )


def _request_limit_too_short(reason: Reason, _: Text) -> str:
    declared, needed = map(_limit, reason.quantities)
    enough_s = min(reason.quantities[1], MOST_S)
    return (
        f"answers of {reason.subject} may take {needed}, and a gateway ends them after "
        f"{declared}: start gateways with --request-s {enough_s:.0f} or more (shoal up does)"
    )


def _behind(reason: Reason, _: Text) -> str:
    return (
        f"this controller lags behind on {' and '.join(reason.names)}: "
        "no node counts as lost, and scale-in is paused, until it has caught up"
    )


def _caught_up(_reason: Reason, _: Text) -> str:
    return "this controller has caught up: silent nodes count as lost again"


def _backing_off(reason: Reason, text: Text) -> str:
    why = "; ".join(map(text, reason.because))
    wait = lasting(reason.quantities[0])
    return f"{reason.subject}: {why}; backing off from {reason.names[0]} for {wait}"


def _start_failed(reason: Reason, _: Text) -> str:
    return reason.quoted or "it failed to start"


def _not_ready(reason: Reason, _: Text) -> str:
    return f"not ready after {reason.quantities[0]:.0f} s"


def _stray(reason: Reason, _: Text) -> str:
    where = reason.names[0]
    return f"{reason.subject} runs on {where} without an assignment: its executor stops it"


def _price_set_aside(reason: Reason, _: Text) -> str:
    price, *good = reason.quantities
    stands = f"{good[0]:g}" if good else "the declared one"
    return f"{reason.subject}: implausible price {price:g} USD/h ignored; {stands} stays in force"


def _price_stale(reason: Reason, _: Text) -> str:
    age = f"{reason.quantities[0]:.0f} min old"
    return f"{reason.subject}: price is {age}; Shoal assumes at least the declared price"


def _price_fresh(reason: Reason, _: Text) -> str:
    return f"{reason.subject}: price is fresh again"


def _offer_stale(reason: Reason, _: Text) -> str:
    age = f"{reason.quantities[0]:.0f} min old"
    return f"{reason.subject}: availability is {age}; Shoal assumes at most one available node"


def _offer_fresh(reason: Reason, _: Text) -> str:
    return f"{reason.subject}: availability is fresh again"


def _unmanaged(reason: Reason, _: Text) -> str:
    now, *earlier = reason.quantities
    verb = "runs" if now == 1 else "run"
    then = f" ({earlier[0]:.0f} before)" if earlier else ""
    servers = f"{now:.0f} of {reason.names[0]} {verb} that Shoal did not start{then}"
    return f"{servers}; recommendations start from them"


def _uncertain(reason: Reason, text: Text) -> str:
    return f"uncertain: {', '.join(map(text, reason.because))}"


def _as_predicted(_reason: Reason, _: Text) -> str:
    return "as predicted again (within 20%)"


def _not_measured(_reason: Reason, _: Text) -> str:
    return "estimates reset: the measured instances are gone"


def _no_new_plan(reason: Reason, text: Text) -> str:
    why = "; ".join(map(text, reason.because))
    return f"no new plan ({why}); the last good plan stays in force"


def _no_answer(_reason: Reason, _: Text) -> str:
    return "no answer in time"


EVENT_TEXTS = {
    Code.PAUSED: _paused,
    Code.RELEASED: _released,
    Code.FROZEN: _frozen,
    Code.UNFROZEN: _unfrozen,
    Code.FREEZE_BEGAN: _freeze_began,
    Code.SCHEDULED_FLOOR: _scheduled_floor,
    Code.LEFT_RUNNING: _left_running,
    Code.HELD_RUNNING: _held_running,
    Code.RESUMED: _resumed,
    Code.MANAGED_AGAIN: _managed_again,
    Code.DECLARED_AGAIN: _declared_again,
    Code.WINDOW_OVER: _window_over,
    Code.PROPOSAL_EXPIRED: _expired,
    Code.PROPOSAL_WITHDRAWN: _withdrawn,
    Code.PROPOSAL_REJECTED: _rejected,
    Code.PROPOSAL_APPROVED: _approved,
    Code.PROPOSAL_DROPPED: _dropped,
    Code.REBUILT: _rebuilt,
    Code.DRAIN_TOO_SHORT: _drain_too_short,
    Code.DRAIN_LONG_ENOUGH: _drain_long_enough,
    Code.START_BELOW_PROVISION: _start_below_provision,
    Code.APPROVAL_TOO_SHORT: _approval_too_short,
    Code.REQUEST_LIMIT_TOO_SHORT: _request_limit_too_short,
    Code.READER_BEHIND: _behind,
    Code.READER_CAUGHT_UP: _caught_up,
    Code.BACKING_OFF: _backing_off,
    Code.START_FAILED: _start_failed,
    Code.NOT_READY: _not_ready,
    Code.STRAY: _stray,
    Code.PRICE_SET_ASIDE: _price_set_aside,
    Code.PRICE_STALE: _price_stale,
    Code.PRICE_FRESH: _price_fresh,
    Code.OFFER_STALE: _offer_stale,
    Code.OFFER_FRESH: _offer_fresh,
    Code.UNMANAGED: _unmanaged,
    Code.UNCERTAIN: _uncertain,
    Code.AS_PREDICTED: _as_predicted,
    Code.NOT_MEASURED: _not_measured,
    Code.NO_NEW_PLAN: _no_new_plan,
    Code.NO_ANSWER: _no_answer,
}
