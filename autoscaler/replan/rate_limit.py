"""How often plans and what they choose may change.

Owns the limits that all triggers share. Knows no rule.
"""

from __future__ import annotations

MOST = 6
WITHIN_MS = 60_000
_THRESHOLDS_REST_MS = 600_000


def plan_allowed(asked_ms: tuple[int, ...], now_ms: int) -> bool:
    """Whether a full plan may be asked for now: at most MOST in a minute."""
    return sum(now_ms - at_ms < WITHIN_MS for at_ms in asked_ms) < MOST


def thresholds_may_move(changed_ms: int, now_ms: int, drifted: bool, window_s: float) -> bool:
    """Whether a service that stands for several models may get other thresholds, which last moved
    at `changed_ms` (0: it has none).

    Every move sends part of the requests to another fleet, so for ten minutes after one a lower
    bill alone is no reason. Scores that drifted beyond chance are, once the window that shows it
    (`window_s`) lies behind the last move as a whole: half of the old mix is no mix to plan for.
    """
    rested_ms = now_ms - changed_ms
    return rested_ms >= (1000.0 * window_s if drifted else _THRESHOLDS_REST_MS)
