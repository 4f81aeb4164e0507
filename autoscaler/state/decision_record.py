"""Decisions as they are made; their numbers and the leader token come when they are published."""

from __future__ import annotations

from topics.decisions import Decision

SAY_AGAIN_MS = 600_000  # what lasts is said so often
_MOST = 2000  # characters of a reason, as the record allows


def hold(model: str, why: str, at_ms: int, *, kind: str = "hold") -> Decision:
    """Something worth saying that changes nothing. model: a name or "*"."""
    return Decision(
        number=0, leader_token=0, model=model, kind=kind, at_ms=at_ms, applied=True, reason=cut(why)
    )


def cut(why: str) -> str:
    """`why` as a decision's reason, which has an end."""
    return why if len(why) <= _MOST else f"{why[: _MOST - 3]}..."
