"""Knative's pod autoscaler: concurrency over a stable window of 60 s and a panic window of 6 s.

A tick takes place every 2 s. Panic begins at 200% of the capacity of the ready pods, and prevents
any scale-down. One tick divides the number of pods by at most 2, or multiplies it by at most 1000.
The target is 70%. Source: knative/serving, pkg/autoscaler/scaling/autoscaler.go, and the
documentation "Additional autoscaling configuration for the KPA".
"""

from __future__ import annotations

import math
from collections import deque

from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.policies.replica_setup import replica_trial
from autoscaler.simulation.replicas import CheckTimes, ReplicaCapacity, Signals

_TICK_S, _STABLE_S, _PANIC_S = 2, 60, 6
_PANIC_THRESHOLD = 2.0
_MAX_UP, _MAX_DOWN = 1000.0, 2.0


class Knative:
    """The rule of one model. target: concurrency per replica."""

    def __init__(self, replica: ReplicaCapacity, knob: float, first: int) -> None:
        self._target = max(0.01, knob * replica.concurrency)
        self._in_flight: deque[tuple[int, int]] = deque()  # (second, requests)
        self._desired = first
        self._checks = CheckTimes(_TICK_S)
        self._panic_s: int | None = None
        self._panic_most = 0

    def desired_replicas(self, signals: Signals) -> int:
        """The number of pods for the stable window; in panic, the larger number of both windows."""
        seen = self._in_flight
        seen.append((signals.now_s, signals.in_flight))
        while seen[0][0] <= signals.now_s - _STABLE_S:
            seen.popleft()
        is_due = self._checks.is_due(signals.now_s)
        if not is_due or (signals.req_per_s is None and not signals.in_flight):
            return self._desired
        if not signals.ready:
            return self._desired  # the first replicas are starting
        in_flight = [requests for _, requests in seen]
        ready = max(1, signals.ready)
        low, high = math.floor(ready / _MAX_DOWN), math.ceil(_MAX_UP * ready)
        stable = math.ceil(sum(in_flight) / len(in_flight) / self._target)
        last = [requests for at_s, requests in seen if at_s > signals.now_s - _PANIC_S]
        panic = math.ceil(sum(last) / len(last) / self._target)
        over = panic / ready >= _PANIC_THRESHOLD
        if over:
            self._panic_s = signals.now_s
        elif self._panic_s is not None and signals.now_s - self._panic_s > _STABLE_S:
            self._panic_s, self._panic_most = None, 0
        desired = min(max(stable, low), high)
        if self._panic_s is not None:
            self._panic_most = max(self._panic_most, desired, min(max(panic, low), high))
            desired = self._panic_most
        self._desired = desired
        return desired


def build(context: PolicyContext, knob: float) -> PolicyRun:
    """Knative for every model."""
    return replica_trial(context, knob, Knative, "concurrency")


POLICY = Policy(
    "knative",
    "Knative pod autoscaler (60 s / 6 s windows, panic at 200%), best single GPU slice per model",
    "target share of a replica's concurrency",
    0.7,
    (0.3, 0.5, 0.7, 0.9, 1.1),
    "knative/serving pkg/autoscaler/scaling/autoscaler.go",
    build,
    tick_s=_TICK_S,
    published=f"tick {_TICK_S} s, stable window {_STABLE_S} s, panic window {_PANIC_S} s, panic at "
    f"{_PANIC_THRESHOLD:.0%}, rates of change {_MAX_UP:g} up and {_MAX_DOWN:g} down, target 70%",
)
