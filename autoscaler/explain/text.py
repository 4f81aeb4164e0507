"""The sentence of each reason. Only this module composes them, and no program parses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.change_texts import CHANGE_TEXTS
from autoscaler.explain.event_texts import EVENT_TEXTS
from autoscaler.explain.guard_texts import GUARD_TEXTS
from autoscaler.explain.plan_texts import PLAN_TEXTS
from autoscaler.explain.target_texts import TARGET_TEXTS
from autoscaler.explain.trigger_texts import TRIGGER_TEXTS
from topics.reason_codes import ReasonCode

_MOST = 2000  # characters: the maximal length of a reason in a decision record

Family = Mapping[ReasonCode, Callable[[Reason, Callable[[Reason], str]], str]]

FAMILIES: Mapping[str, Family] = {
    "Why all models are planned again": TRIGGER_TEXTS,
    "Why so much demand is planned for": TARGET_TEXTS,
    "What makes up a change, or is missing from it": CHANGE_TEXTS,
    "Why a change waits": GUARD_TEXTS,
    "What operators said and what was noticed": EVENT_TEXTS,
    "What a plan is bound by, breaks, or could not do": PLAN_TEXTS,
}
"""The sentences of each family of codes, under its title."""

TEXTS: Family = {code: own for family in FAMILIES.values() for code, own in family.items()}


def text(reason: Reason) -> str:
    """The sentence of `reason`, with units; it names the subject only if the sentence needs it.

    If ids or figures are missing, the result is the meaning of the reason's code, so that no
    decision fails.
    """
    try:
        return TEXTS[reason.code](reason, text)
    except (ValueError, IndexError):
        return reason.code.meaning


def text_with_subject(reason: Reason) -> str:
    """The sentence of `reason` after its subject, if it has one: "chat: 3 instances planned"."""
    has_subject = reason.subject not in ("", "*")
    return f"{reason.subject}: {text(reason)}" if has_subject else text(reason)


def texts(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The sentences of `reasons`, without repetitions."""
    return tuple(dict.fromkeys(map(text, reasons)))


def joined(reasons: Iterable[Reason]) -> str:
    """All sentences of `reasons` in one line, truncated to the length that a decision record
    allows."""
    line = "; ".join(map(text, reasons))
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."
