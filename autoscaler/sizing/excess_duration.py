"""How long an excess of capacity must last before a scale-in."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy, Service
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.rollout.reversal_limit import Reversals, reversed_lately


def excess_duration_s(service: Service, policy: Policy, turns: Reversals, now_ms: int) -> int:
    """Seconds for which an excess must last, in blocks of 10 s: `scale_in_after`, but at least the
    local window. At most, and if a scale-in now would be another reversal, the long window without
    its first, partly covered block."""
    most = max(1, policy.global_window_s // BLOCK_S - 1)
    least_s = max(service.scale_in_after_s, policy.local_window_s)
    if reversed_lately(turns, now_ms):
        return BLOCK_S * most
    return BLOCK_S * min(round(least_s / BLOCK_S), most)
