"""Evidence that a draining pod is idle, although routers follow its label with a lag. Pure.

A router that selects pods by label may send requests until it has seen the new label. A drained
pod therefore counts as idle after the declared lag, and after several idle probes in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVED_LAG_S = 5.0
"""Time for gateways to learn the new address of an instance that moved to another pod."""

_IDLE_PROBES = 3


@dataclass(slots=True)
class DrainGate:
    """One drain. unrouted_s: monotonic time at which the label changed, 0 = not confirmed yet.
    extra_lag_s: time for routers in addition to the declared lag.
    """

    unrouted_s: float = 0.0
    extra_lag_s: float = 0.0
    _idle: int = 0

    def is_idle(self, in_flight: int, lag_s: float, now_s: float) -> bool:
        """Whether the pod counts as idle after a probe that reported `in_flight` requests."""
        waited = self.unrouted_s > 0 and now_s - self.unrouted_s >= lag_s + self.extra_lag_s
        self._idle = self._idle + 1 if waited and in_flight == 0 else 0
        return self._idle >= _IDLE_PROBES
