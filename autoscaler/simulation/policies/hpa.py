"""Kubernetes' HorizontalPodAutoscaler, on batch utilisation, queue length or the rate of requests.

Rule: every 15 s, desired = ceil(replicas x metric / target); a difference within a tolerance of 10%
changes nothing. For scaling down, the highest recommendation of the last 5 min applies. Replicas
that are not ready count as idle when scaling up and are left out when scaling down. Default
behaviour of scale-up: the larger of 4 replicas and 100% per 15 s. Source: Kubernetes documentation
"Horizontal Pod Autoscaling". The metrics, batch size or queue size, are those that GKE's guide for
autoscaling LLM inference recommends. The rate of requests per replica is an external metric of the
type `AverageValue`, as KEDA's Prometheus scaler declares it. Its rule is ceil(rate / target), and
starting replicas count as present.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial

from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.policies.replica_setup import Rule, replica_trial
from autoscaler.simulation.replicas import CheckTimes, ReplicaCapacity, Signals

_LOOP_S, _STABLE_S = 15, 300
_TOLERANCE = 0.1
_MAX_ADDED = 4


class _Hpa:
    def __init__(self, target: float, first: int, on_queue: bool) -> None:
        self._target = target
        self._on_queue = on_queue
        self._desired = first
        self._checks = CheckTimes(_LOOP_S)
        self._history: deque[int] = deque([first], maxlen=_STABLE_S // _LOOP_S)

    def desired_replicas(self, signals: Signals) -> int:
        """The desired number of replicas, recomputed every 15 s."""
        is_due = self._checks.is_due(signals.now_s)
        if not is_due or signals.req_per_s is None or not signals.ready:
            return self._desired
        total = signals.waiting if self._on_queue else signals.in_flight - signals.waiting
        current = max(1, signals.desired)
        ratio = total / signals.ready / self._target
        if ratio > 1.0:
            ratio = max(1.0, total / current / self._target)
            base = current
        else:
            base = signals.ready
        desired = current
        if abs(ratio - 1.0) > _TOLERANCE:
            desired = max(1, math.ceil(base * ratio - 1e-9))
            if ratio < 1.0:
                desired = min(desired, current)
        return self._stabilized(desired, current)

    def _stabilized(self, desired: int, current: int) -> int:
        """`desired` within the limit of scale-up, and after the stabilization of scale-down."""
        desired = min(desired, current + max(_MAX_ADDED, current))
        self._history.append(desired)
        self._desired = max(desired, max(self._history)) if desired < current else desired
        self._desired = min(self._desired, current) if desired < current else self._desired
        return self._desired


class _HpaOnRate(_Hpa):
    def desired_replicas(self, signals: Signals) -> int:
        """The desired number of replicas, recomputed every 15 s."""
        if not self._checks.is_due(signals.now_s) or signals.req_per_s is None:
            return self._desired
        current = max(1, signals.desired)
        load = signals.req_per_s / self._target
        within = abs(load / current - 1.0) <= _TOLERANCE
        return self._stabilized(current if within else max(1, math.ceil(load - 1e-9)), current)


def on_rate(replica: ReplicaCapacity, knob: float, first: int) -> _Hpa:
    """HPA on requests/s. The target is the used share of a replica's capacity."""
    return _HpaOnRate(knob * replica.req_per_s, first, on_queue=False)


def on_utilization(replica: ReplicaCapacity, knob: float, first: int) -> _Hpa:
    """HPA on batch utilisation. The target is the used share of a replica's concurrency."""
    return _Hpa(max(0.01, knob * replica.concurrency), first, on_queue=False)


def on_queue(replica: ReplicaCapacity, knob: float, first: int) -> _Hpa:
    """HPA on queue length. The target is the number of waiting requests per replica."""
    del replica
    return _Hpa(knob, first, on_queue=True)


def _build(context: PolicyContext, knob: float, rule: Rule, metric: str) -> PolicyRun:
    return replica_trial(context, knob, rule, metric)


_PUBLISHED = (
    f"sync period {_LOOP_S} s, tolerance {_TOLERANCE:.0%}, stabilization before scale-down "
    f"{_STABLE_S} s, scale-up by {_MAX_ADDED} pods or 100% per {_LOOP_S} s"
)
_SOURCE = "kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale"

UTILIZATION = Policy(
    "hpa-utilization",
    "HorizontalPodAutoscaler on batch utilisation (15 s, 10%, 5 min), best single GPU slice per "
    "model",
    "target share of a replica's concurrency",
    0.7,
    (0.3, 0.5, 0.7, 0.9),
    _SOURCE,
    partial(_build, rule=on_utilization, metric="batch utilisation"),
    tick_s=_LOOP_S,
    published=_PUBLISHED,
)

QUEUE = Policy(
    "hpa-queue",
    "HorizontalPodAutoscaler on queue length (15 s, 10%, 5 min), best single GPU slice per model",
    "target waiting requests per replica",
    3.0,
    (0.5, 1.0, 3.0, 5.0),
    _SOURCE,
    partial(_build, rule=on_queue, metric="queue length"),
    tick_s=_LOOP_S,
    published=_PUBLISHED,
)

RATE = Policy(
    "hpa-rate",
    "HorizontalPodAutoscaler or KEDA on requests/s (15 s, 10%, 5 min), best single GPU slice per "
    "model",
    "target share of a replica's capacity",
    0.7,
    (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    f"{_SOURCE}; keda.sh/docs/latest/scalers/prometheus",
    partial(_build, rule=on_rate, metric="requests/s"),
    tick_s=_LOOP_S,
    published=_PUBLISHED,
)
