"""Decisions as they are made; their numbers and the leader token come when they are published."""

from __future__ import annotations

from autoscaler.domain.reason import Reason, codes_of
from autoscaler.explain.text import joined
from topics.decisions import Decision

NOTICE_INTERVAL_MS = 600_000  # what lasts is said so often


def notice(model: str, why: Reason, at_ms: int, *, kind: str = "hold") -> Decision:
    """Something worth saying that changes nothing. model: a name or "*"."""
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
