"""Decisions before publication, which adds a number and the leader token."""

from __future__ import annotations

from autoscaler.domain.reason import Reason, codes_of
from autoscaler.explain.reason_texts import joined
from topics.decisions import Decision

NOTICE_INTERVAL_MS = 600_000  # time between two notices of a lasting condition


def notice(model: str, why: Reason, at_ms: int, *, kind: str = "hold") -> Decision:
    """A decision that reports a condition and changes nothing. model: a name or "*"."""
    return Decision(
        number=0,
        leader_token=0,
        model=model,
        kind=kind,
        at_ms=at_ms,
        applied=True,
        reason=joined((why,)),
        codes=codes_of((why,)),
    )
