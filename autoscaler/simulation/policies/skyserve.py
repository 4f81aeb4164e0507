"""SkyServe's request rate autoscaler: QPS per replica, up after 300 s, down after 1200 s.

Every 20 s the target is ceil(QPS of the last 60 s / target_qps_per_replica). The target is adopted
if it was above the current number at every check within upscale_delay, or below it at every check
within downscale_delay. Source: skypilot-org/skypilot, sky/serve/autoscalers.py and its
documentation "Autoscaling".
"""

from __future__ import annotations

import math

from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.policies.replica_setup import replica_trial
from autoscaler.simulation.replicas import CheckTimes, ReplicaCapacity, Signals

_CHECK_PERIOD_S, _UP_S, _DOWN_S = 20, 300, 1200


class SkyServe:
    """The rule of one model. target: requests/s per replica."""

    def __init__(self, replica: ReplicaCapacity, knob: float, first: int) -> None:
        self._target = knob * replica.req_per_s
        self._desired = first
        self._checks = CheckTimes(_CHECK_PERIOD_S)
        self._up = self._down = 0

    def desired_replicas(self, signals: Signals) -> int:
        """The last adopted target."""
        if not self._checks.is_due(signals.now_s) or signals.req_per_s is None:
            return self._desired
        target = max(1, math.ceil(signals.req_per_s / self._target - 1e-9))
        self._up = self._up + 1 if target > self._desired else 0
        self._down = self._down + 1 if target < self._desired else 0
        if self._up >= _UP_S // _CHECK_PERIOD_S or self._down >= _DOWN_S // _CHECK_PERIOD_S:
            self._desired, self._up, self._down = target, 0, 0
        return self._desired


def build(context: PolicyContext, knob: float) -> PolicyRun:
    """SkyServe for every model."""
    return replica_trial(context, knob, SkyServe, "requests per second")


POLICY = Policy(
    "skyserve",
    "SkyServe request rate autoscaler (up after 300 s, down after 1200 s), best single GPU slice "
    "per model",
    "target QPS as a share of a replica's capacity",
    0.8,
    (0.4, 0.6, 0.8, 1.0),
    "skypilot-org/skypilot sky/serve/autoscalers.py",
    build,
    tick_s=_CHECK_PERIOD_S,
    published=f"decision every {_CHECK_PERIOD_S} s, rate over 60 s, upscale delay {_UP_S} s, "
    f"downscale delay {_DOWN_S} s",
)
