"""SkyServe's request rate autoscaler: QPS per replica, up after 300 s, down after 1200 s.

Source: skypilot-org/skypilot, sky/serve/autoscalers.py and its documentation "Autoscaling": every
20 s the target is ceil(QPS of the last 60 s / target_qps_per_replica); it is adopted once it lay
above (below) the current one in every look of upscale_delay (downscale_delay).
"""

from __future__ import annotations

import math

from autoscaler.simulation.policies.policy import Policy, Setting, Trial
from autoscaler.simulation.policies.replica_setup import replicas
from autoscaler.simulation.replicas import Replica, Signals

_LOOK_S, _UP_S, _DOWN_S = 20, 300, 1200


class SkyServe:
    """target: requests/s per replica."""

    def __init__(self, replica: Replica, knob: float, first: int) -> None:
        self._target = knob * replica.req_per_s
        self._wanted = first
        self._up = self._down = 0

    def wanted(self, signals: Signals) -> int:
        """The target that stood long enough."""
        if signals.now_s % _LOOK_S or signals.req_per_s is None:
            return self._wanted
        found = max(1, math.ceil(signals.req_per_s / self._target - 1e-9))
        self._up = self._up + 1 if found > self._wanted else 0
        self._down = self._down + 1 if found < self._wanted else 0
        if self._up >= _UP_S // _LOOK_S or self._down >= _DOWN_S // _LOOK_S:
            self._wanted, self._up, self._down = found, 0, 0
        return self._wanted


def build(setting: Setting, knob: float) -> Trial:
    """SkyServe for every model."""
    return replicas(setting, knob, SkyServe, "requests per second")


POLICY = Policy(
    "skyserve",
    "SkyServe request rate autoscaler (up after 300 s, down after 1200 s), best single GPU slice "
    "per model",
    "target QPS as a share of a replica's capacity",
    0.8,
    (0.4, 0.6, 0.8, 1.0),
    "skypilot-org/skypilot sky/serve/autoscalers.py",
    build,
)
