"""Decisions as they are made; their numbers and the leader token come when they are published."""

from __future__ import annotations

from topics.decisions import Decision


def hold(model: str, why: str, at_ms: int, *, kind: str = "hold") -> Decision:
    """Something worth saying that changes nothing. model: a name or "*"."""
    return Decision(
        number=0, leader_token=0, model=model, kind=kind, at_ms=at_ms, applied=True, reason=why
    )
