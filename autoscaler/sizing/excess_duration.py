"""How long an excess of capacity must last before a scale-in."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy, Service
from autoscaler.estimate.arrival_counts import BLOCK_S


def excess_duration_s(service: Service, policy: Policy) -> int:
    """Seconds for which an excess must last, in blocks of 10 s: `scale_in_after`, at least the
    local window, and at most the long window without its first, partly covered block."""
    most = max(1, policy.global_window_s // BLOCK_S - 1)
    least_s = max(service.scale_in_after_s, policy.local_window_s)
    return BLOCK_S * min(round(least_s / BLOCK_S), most)
