"""Sentences for the triggers of a full plan."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import count, lasting
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]


def _period(reason: Reason, _: Text) -> str:
    return f"every {lasting(reason.quantities[0])}"


def _price(reason: Reason, _: Text) -> str:
    now, before = reason.quantities
    return f"{reason.subject} now {now:.2f} USD/h (was {before:.2f})"


def _bill(reason: Reason, _: Text) -> str:
    now, before = reason.quantities
    return f"the fleet costs {now:.2f} USD/h (was {before:.2f})"


def _availability(reason: Reason, _: Text) -> str:
    now, before = map(int, reason.quantities)
    return f"{reason.subject}: {count(now, 'node')} available (was {before})"


def _nodes(reason: Reason, _: Text) -> str:
    more = int(reason.quantities[0]) - len(reason.names)
    rest = f" and {more} more" if more else ""
    word = "lost" if reason.code is Code.NODE_LOST else "back"
    return f"{', '.join(reason.names)}{rest} {word}"


def _launch_failed(reason: Reason, _: Text) -> str:
    return f"launch failed on {reason.names[0]}"


def _service(reason: Reason, _: Text) -> str:
    if reason.code is Code.SERVICE_MODE:
        before, now = reason.names
        what = f"changed from mode {before} to {now}"
    elif reason.code is Code.SERVICE_FLOOR:
        least, was = reason.quantities
        what = f"has a floor of {least:.0f} instead of {was:.0f}"
    elif reason.code is Code.SERVICE_ADDED:
        what = "was added"
    elif reason.code is Code.SERVICE_REMOVED:
        what = "was removed"
    else:
        what = "was changed"
    return f"{reason.subject} {what}"


def _alert(reason: Reason, text: Text) -> str:
    views = "; ".join(map(text, reason.because))
    return f"alert {reason.subject}" + (f" ({views})" if views else "")


def _engines(reason: Reason, _: Text) -> str:
    if reason.quoted:
        return f"{reason.subject}: engines: {reason.quoted}"
    running, waiting = reason.quantities
    return f"{reason.subject}: engines: {running:.0f} running, {waiting:.0f} waiting"


def _slo_missed(reason: Reason, _: Text) -> str:
    share, requests = reason.quantities
    return f"only {share:.0%} of {requests:.0f} {reason.subject} requests met the SLO"


def _lengths(reason: Reason, _: Text) -> str:
    prompt, answer, old_prompt, old_answer = reason.quantities
    return (
        f"requests of {reason.subject} now have {prompt:.0f} tokens in and {answer:.0f} out "
        f"(were {old_prompt:.0f} and {old_answer:.0f})"
    )


def _roles(reason: Reason, _: Text) -> str:
    return f"{reason.subject} lacks capacity, and its instances may now switch roles"


def _excess(reason: Reason, _: Text) -> str:
    return f"{reason.subject} has excess capacity"


def _left_out(reason: Reason, text: Text) -> str:
    return f"{reason.subject}: {'; '.join(map(text, reason.because))}"


def _scattered(reason: Reason, _: Text) -> str:
    nodes, fewest = reason.quantities
    return f"{reason.subject}: spread over {nodes:.0f} nodes; {fewest:.0f} would be enough"


def _more(_reason: Reason, _: Text) -> str:
    return "further reasons"


TRIGGER_TEXTS = {
    Code.PERIOD: _period,
    Code.PRICE: _price,
    Code.BILL: _bill,
    Code.AVAILABILITY: _availability,
    Code.NODE_LOST: _nodes,
    Code.NODE_BACK: _nodes,
    Code.LAUNCH_FAILED: _launch_failed,
    Code.SERVICE_ADDED: _service,
    Code.SERVICE_REMOVED: _service,
    Code.SERVICE_MODE: _service,
    Code.SERVICE_FLOOR: _service,
    Code.SERVICE_CHANGED: _service,
    Code.ALERT: _alert,
    Code.ENGINES_SEEN: _engines,
    Code.SLO_MISSED: _slo_missed,
    Code.LENGTHS: _lengths,
    Code.ROLES: _roles,
    Code.EXCESS: _excess,
    Code.LEFT_OUT: _left_out,
    Code.SCATTERED: _scattered,
    Code.MORE: _more,
}
