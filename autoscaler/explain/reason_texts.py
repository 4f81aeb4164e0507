"""The sentences of reasons. Only `autoscaler.explain` composes them, and no program parses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.budget_texts import BUDGET_TEXTS
from autoscaler.explain.change_texts import CHANGE_TEXTS
from autoscaler.explain.condition_texts import CONDITION_TEXTS
from autoscaler.explain.event_texts import EVENT_TEXTS
from autoscaler.explain.guard_texts import GUARD_TEXTS
from autoscaler.explain.plan_texts import PLAN_TEXTS
from autoscaler.explain.quality_texts import QUALITY_TEXTS
from autoscaler.explain.sentences import Sentence, compose
from autoscaler.explain.target_texts import TARGET_TEXTS
from autoscaler.explain.trigger_texts import TRIGGER_TEXTS
from topics.reason_codes import ReasonCode

_MOST = 2000  # maximal length of a reason in a decision record, in characters

FAMILIES: Mapping[str, Mapping[ReasonCode, Sentence]] = {
    "Triggers of a full plan": TRIGGER_TEXTS,
    "Reasons for the planned demand": TARGET_TEXTS,
    "Parts of a change": CHANGE_TEXTS,
    "Reasons to delay a change": GUARD_TEXTS,
    "Operator actions and events": EVENT_TEXTS,
    "Conditions of a model": CONDITION_TEXTS,
    "Limits, violations and failures of a plan": PLAN_TEXTS,
    "Budget mode and mixes of request types": BUDGET_TEXTS,
    "Services that route to several models": QUALITY_TEXTS,
}
"""The sentences of each family of codes, under its title."""

TEXTS = {code: own for family in FAMILIES.values() for code, own in family.items()}


def text(reason: Reason) -> str:
    """The sentence of `reason`, with units; it names the subject only if the sentence needs it.

    If ids or figures are missing, it returns the meaning of the reason's code, because a decision
    must not fail for its text.
    """
    try:
        return compose(TEXTS[reason.code], reason, text)
    except (ValueError, LookupError):
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
