"""Sentences for the triggers of a full plan."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import count
from autoscaler.explain.sentences import Sentence, Text
from topics.reason_codes import ReasonCode as Code


def _availability(reason: Reason, _: Text) -> str:
    now, before = map(int, reason.quantities)
    return f"{reason.subject}: {count(now, 'node')} available (was {before})"


def _nodes(reason: Reason, _: Text) -> str:
    more = int(reason.quantities[0]) - len(reason.names)
    rest = f" and {more} more" if more else ""
    word = "lost" if reason.code is Code.NODE_LOST else "back"
    return f"{', '.join(reason.names)}{rest} {word}"


def _alert(reason: Reason, text: Text) -> str:
    views = "; ".join(map(text, reason.because))
    return f"alert {reason.subject}" + (f" ({views})" if views else "")


def _engines(reason: Reason, _: Text) -> str:
    if reason.quoted:
        return f"{reason.subject}: engines: {reason.quoted}"
    running, waiting = reason.quantities
    return f"{reason.subject}: engines: {running:.0f} running, {waiting:.0f} waiting"


TRIGGER_TEXTS: Mapping[Code, Sentence] = {
    Code.PERIOD: "every {0:lasting}",
    Code.PRICE: "{subject} now {0:.2f} USD/h (was {1:.2f})",
    Code.AVAILABILITY: _availability,
    Code.NODE_LOST: _nodes,
    Code.NODE_BACK: _nodes,
    Code.LAUNCH_FAILED: "launch failed on {names[0]}",
    Code.SERVICE_ADDED: "{subject} was added",
    Code.SERVICE_REMOVED: "{subject} was removed",
    Code.SERVICE_MODE: "{subject} changed from mode {names[0]} to {names[1]}",
    Code.SERVICE_FLOOR: "{subject} has a floor of {0:.0f} instead of {1:.0f}",
    Code.SERVICE_CHANGED: "{subject} was changed",
    Code.ALERT: _alert,
    Code.ENGINES_SEEN: _engines,
    Code.SLO_MISSED: "only {0:.0%} of {1:.0f} {subject} requests met the SLO",
    Code.LENGTHS: (
        "requests of {subject} now have {0:.0f} tokens in and {1:.0f} out (were {2:.0f} and "
        "{3:.0f})"
    ),
    Code.ROLES: "{subject} lacks capacity, and its instances may now switch roles",
    Code.EXCESS: "{subject} has excess capacity",
    Code.LEFT_OUT: "{subject}: {because}",
    Code.SCATTERED: "{subject}: spread over {0:.0f} nodes; {1:.0f} would be enough",
    Code.MORE: "further reasons",
    Code.EXTENSION: "{names[0]}: {quoted}",
}
