"""Staged demand over time, for tests of the page."""

from __future__ import annotations

import math

from tests.integration.console.staged_decisions import NOW_MS


def demand_at(k: int, at_ms: int) -> float:
    """Demand of model k in requests/s, with a slow wave, a surge and noise."""
    s = at_ms / 1000.0
    wave = 1.0 + 0.45 * math.sin(s / 900.0 + k)
    surge = 1.1 / (1.0 + math.exp(-(s - NOW_MS / 1000.0 + 900.0) / 60.0)) if k % 3 == 0 else 0.0
    noise = 0.06 * math.sin(s / 7.0 + 3 * k) + 0.04 * math.sin(s / 3.1 + k)
    return (4.0 + 3.0 * (k % 5)) * max(0.05, wave + surge + noise)


def target_at(k: int, at_ms: int) -> float:
    """Target of model k in requests/s, which follows its demand in steps."""
    step_ms = at_ms // 240_000 * 240_000
    return 1.12 * max(demand_at(k, step_ms), demand_at(k, at_ms - 60_000))
