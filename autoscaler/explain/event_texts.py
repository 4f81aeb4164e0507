"""Sentences for operator actions, and for events of the fleet and its feeds."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.combo_labels import change_words
from autoscaler.explain.quantity_texts import count, setting
from autoscaler.explain.sentences import Sentence, Text
from autoscaler.planning.time_limits import MOST_S
from topics.reason_codes import ReasonCode as Code


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


def _proposal(reason: Reason) -> str:
    return f"proposal #{reason.quantities[0]:.0f}"


def _updated(reason: Reason, _: Text) -> str:
    changes = (name.partition(" ") for name in reason.names)
    before = change_words((combo, int(count)) for count, _, combo in changes)
    return f"updates #{reason.quantities[0]:.0f}, which proposed {before}"


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


def _request_limit_too_short(reason: Reason, _: Text) -> str:
    declared, needed = map(setting, reason.quantities)
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


def _start_failed(reason: Reason, _: Text) -> str:
    return reason.quoted or "it failed to start"


def _price_set_aside(reason: Reason, _: Text) -> str:
    price, *good = reason.quantities
    stands = f"{good[0]:g}" if good else "the declared one"
    return f"{reason.subject}: implausible price {price:g} USD/h ignored; {stands} stays in force"


def _unmanaged(reason: Reason, _: Text) -> str:
    now, *earlier = reason.quantities
    verb = "runs" if now == 1 else "run"
    then = f" ({earlier[0]:.0f} before)" if earlier else ""
    servers = f"{now:.0f} of {reason.names[0]} {verb} that Shoal did not start{then}"
    return f"{servers}; recommendations start from them"


def _uncertain(reason: Reason, text: Text) -> str:
    return f"uncertain: {', '.join(map(text, reason.because))}"


EVENT_TEXTS: Mapping[Code, Sentence] = {
    Code.PAUSED: _paused,
    Code.RELEASED: _released,
    Code.FROZEN: _frozen,
    Code.UNFROZEN: "no longer frozen",
    Code.FREEZE_BEGAN: "freeze window {names[0]} began; scale-in paused",
    Code.SCHEDULED_FLOOR: "scheduled floor of {0:.0f} ({names[0]})",
    Code.LEFT_RUNNING: (
        "no longer declared; its instances keep running (to stop them, declare it in mode act and "
        "remove it again)"
    ),
    Code.HELD_RUNNING: (
        "no longer declared; its instances keep running until a person lets Shoal manage it again"
    ),
    Code.RESUMED: "resumed",
    Code.MANAGED_AGAIN: "managed by Shoal again",
    Code.DECLARED_AGAIN: ("declared again, or its instances have stopped"),
    Code.WINDOW_OVER: "{names[0]} window is over",
    Code.PROPOSAL_EXPIRED: "proposal #{0:.0f} has expired without an answer",
    Code.UNASKED: "without approval: at most {0:.2f} USD/h and {1:.0f} instances in an hour",
    Code.ACCEPTED_FOR: "without approval: {names[0]} accepted changes for {0:lasting} more",
    Code.PROPOSAL_UPDATED: _updated,
    Code.PROPOSAL_WITHDRAWN: "proposal #{0:.0f} is withdrawn: {because}",
    Code.PROPOSAL_REJECTED: _rejected,
    Code.PROPOSAL_APPROVED: _approved,
    Code.PROPOSAL_DROPPED: _dropped,
    Code.REBUILT: _rebuilt,
    Code.DRAIN_TOO_SHORT: (
        "policy.drain_timeout {0:setting} is shorter than the longest answers of {subject} "
        "({1:setting} at the TPOT limit), so scale-in may cut requests; leave the key out to "
        "derive it from the workload"
    ),
    Code.DRAIN_LONG_ENOUGH: "the drain time-out is long enough for its answers again",
    Code.START_BELOW_PROVISION: (
        "policy.start_timeout {0:setting} is shorter than the provision_time {1:setting} of "
        "{subject}: for this pool Shoal waits twice the expected start time instead"
    ),
    Code.APPROVAL_TOO_SHORT: (
        "policy.approve_within {0:setting} is shorter than policy.replan_every {1:setting}: a "
        "proposal expires before the next full plan can repeat it"
    ),
    Code.REQUEST_LIMIT_TOO_SHORT: _request_limit_too_short,
    Code.READER_BEHIND: _behind,
    Code.READER_CAUGHT_UP: "this controller has caught up: silent nodes count as lost again",
    Code.BACKING_OFF: "{subject}: {because}; backing off from {names[0]} for {0:lasting}",
    Code.START_FAILED: _start_failed,
    Code.NOT_READY: "not ready after {0:.0f} s",
    Code.STRAY: "{subject} runs on {names[0]} without an assignment: its executor stops it",
    Code.PRICE_SET_ASIDE: _price_set_aside,
    Code.PRICE_STALE: (
        "{subject}: price is {0:.0f} min old; Shoal assumes at least the declared price"
    ),
    Code.PRICE_FRESH: "{subject}: price is fresh again",
    Code.OFFER_STALE: (
        "{subject}: availability is {0:.0f} min old; Shoal assumes at most one available node"
    ),
    Code.OFFER_FRESH: "{subject}: availability is fresh again",
    Code.UNMANAGED: _unmanaged,
    Code.UNCERTAIN: _uncertain,
    Code.AS_PREDICTED: "as predicted again (within 20%)",
    Code.KV_MEASURED: (
        "KV cache on {names[0]}: {0:.0f} tokens at a start, {1:.0f} predicted; plans use the former"
    ),
    Code.START_REFUSED: (
        "an engine on {names[0]} refused to start for lack of memory with requests of {0:.0f} "
        "tokens; plans avoid {names[0]} until the settings change"
    ),
    Code.KV_IMPOSSIBLE: "its report of the KV cache is ignored: {quoted}",
    Code.NOT_MEASURED: "estimates reset: the measured instances are gone",
    Code.NO_NEW_PLAN: "no new plan ({because}); the last good plan stays in force",
    Code.NO_ANSWER: "no answer in time",
}
