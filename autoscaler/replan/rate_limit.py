"""Rate limits of full plans and of threshold changes, shared by all triggers."""

from __future__ import annotations

MOST = 6
"""Full plans that may be requested within `WITHIN_MS`, because each occupies the solver."""
WITHIN_MS = 60_000
"""Span of the rate limit in ms."""
_THRESHOLDS_REST_MS = 600_000
"""Time in ms after a change of thresholds in which a lower cost does not change them again."""


def plan_allowed(asked_ms: tuple[int, ...], now_ms: int) -> bool:
    """Whether a full plan may be requested now: at most MOST in a minute."""
    return sum(now_ms - at_ms < WITHIN_MS for at_ms in asked_ms) < MOST


def thresholds_may_move(changed_ms: int, now_ms: int, drifted: bool, window_s: float) -> bool:
    """Whether the thresholds of a service that routes to several models may change. changed_ms:
    time of their last change (0: no thresholds yet).

    Each change moves requests to another fleet, so for ten minutes a lower cost alone does not
    justify a change. A significant drift of scores does, as soon as its window (`window_s`) lies
    entirely after the last change.
    """
    rested_ms = now_ms - changed_ms
    return rested_ms >= (1000.0 * window_s if drifted else _THRESHOLDS_REST_MS)
