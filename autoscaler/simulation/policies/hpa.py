"""Kubernetes' HorizontalPodAutoscaler with its default behaviour, on one metric each.

The metrics, batch size or queue size, are those that GKE's guide for autoscaling LLM inference
recommends. The rate of requests per replica is an external metric of the type `AverageValue`, as
KEDA's Prometheus scaler declares it.
"""

from __future__ import annotations

from functools import partial

from autoscaler.simulation.policies.hpa_object import (
    STABLE_DOWN_S,
    SYNC_S,
    TOLERANCE,
    UP,
    Form,
    Hpa,
    HpaObject,
    Metric,
    Quantity,
)
from autoscaler.simulation.policies.policy import Policy
from autoscaler.simulation.policies.replica_setup import replica_trial
from autoscaler.simulation.replicas import ReplicaCapacity


def on_rate(replica: ReplicaCapacity, knob: float, first: int) -> Hpa:
    """HPA on requests/s. The target is the used share of a replica's capacity."""
    return _hpa(Quantity.RATE, Form.AVERAGE, knob * replica.req_per_s, first)


def on_utilization(replica: ReplicaCapacity, knob: float, first: int) -> Hpa:
    """HPA on batch utilisation. The target is the used share of a replica's concurrency."""
    return _hpa(Quantity.RUNNING, Form.PODS, max(0.01, knob * replica.concurrency), first)


def on_queue(replica: ReplicaCapacity, knob: float, first: int) -> Hpa:
    """HPA on queue length. The target is the number of waiting requests per replica."""
    del replica
    return _hpa(Quantity.WAITING, Form.PODS, knob, first)


def _hpa(quantity: Quantity, form: Form, target: float, first: int) -> Hpa:
    return Hpa(HpaObject((Metric(quantity, form, target),)), first)


_PUBLISHED = (
    f"sync period {SYNC_S} s, tolerance {TOLERANCE:.0%}, stabilization before scale-down "
    f"{STABLE_DOWN_S} s, scale-up by {UP.limits[0].value} pods or 100% per {SYNC_S} s"
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
    partial(replica_trial, rule=on_utilization, why="batch utilisation"),
    tick_s=SYNC_S,
    published=_PUBLISHED,
)

QUEUE = Policy(
    "hpa-queue",
    "HorizontalPodAutoscaler on queue length (15 s, 10%, 5 min), best single GPU slice per model",
    "target waiting requests per replica",
    3.0,
    (0.5, 1.0, 3.0, 5.0),
    _SOURCE,
    partial(replica_trial, rule=on_queue, why="queue length"),
    tick_s=SYNC_S,
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
    partial(replica_trial, rule=on_rate, why="requests/s"),
    tick_s=SYNC_S,
    published=_PUBLISHED,
)
