"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2) with all settings of its object.

At each sync the rule computes, for each metric, how many replicas would bring it to its target; a
difference within the tolerance changes nothing; the metric that needs the most replicas decides.
The result passes the stabilization windows and then the limits of change, as in Kubernetes'
`pkg/controller/podautoscaler` (`stabilizeRecommendationWithBehaviors`,
`convertDesiredReplicasWithBehaviorRate`) and its documentation "Horizontal Pod Autoscaling".
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum

from autoscaler.simulation.replicas import CheckTimes, Signals

SYNC_S, TOLERANCE = 15, 0.1
STABLE_DOWN_S = 300
_ROUNDING = 1e-9


class Quantity(StrEnum):
    """The count in a metric, over all replicas."""

    RUNNING = "running"
    WAITING = "waiting"
    RATE = "rate"


class Form(StrEnum):
    """How a metric is compared. PODS: the mean over ready replicas; replicas that are not ready
    count as idle when scaling up, and are left out when scaling down. AVERAGE: the total of an
    external metric, divided by all replicas. VALUE: the total itself."""

    PODS = "pods"
    AVERAGE = "average"
    VALUE = "value"


class Select(StrEnum):
    """Which of several limits of change applies: the one that allows most or least, or none."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class Metric:
    """target: of the quantity (`Form` says of what); > 0."""

    quantity: Quantity
    form: Form
    target: float

    def total(self, signals: Signals) -> float:
        """The metric over all replicas. Requires `signals.req_per_s`."""
        if self.quantity is Quantity.RATE:
            return signals.req_per_s or 0.0
        waiting = self.quantity is Quantity.WAITING
        return signals.waiting if waiting else signals.in_flight - signals.waiting


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` replicas, or percent of them, are added or removed in `period_s` seconds."""

    value: int
    is_percent: bool
    period_s: int


@dataclass(frozen=True, slots=True)
class Behavior:
    """The behaviour in one direction. stable_s: a recommendation must have lasted for so long.
    tolerance: relative difference from the target that changes nothing."""

    limits: tuple[Limit, ...]
    stable_s: int
    select: Select = Select.MAX
    tolerance: float = TOLERANCE


UP = Behavior((Limit(4, False, SYNC_S), Limit(100, True, SYNC_S)), 0)
DOWN = Behavior((Limit(100, True, SYNC_S),), STABLE_DOWN_S)
"""Kubernetes' defaults."""


@dataclass(frozen=True, slots=True)
class HpaObject:
    """One object. least, most: minReplicas and maxReplicas."""

    metrics: tuple[Metric, ...]
    up: Behavior = UP
    down: Behavior = DOWN
    least: int = 1
    most: int = 1 << 30

    def scaled(self, factor: float) -> HpaObject:
        """The object with each target multiplied by `factor`."""
        metrics = (replace(one, target=factor * one.target) for one in self.metrics)
        return replace(self, metrics=tuple(metrics))


class Hpa:
    """The rule of one object. first: number of replicas at the start."""

    def __init__(self, declared: HpaObject, first: int) -> None:
        self._object = declared
        self._desired = self._bounded(first)
        self._checks = CheckTimes(SYNC_S)
        self._recommended: deque[tuple[int, int]] = deque([(-1, first)])
        self._changes: deque[tuple[int, int]] = deque()  # (second, added or removed)

    def desired_replicas(self, signals: Signals) -> int:
        """The desired number of replicas, recomputed at each sync."""
        if not self._checks.is_due(signals.now_s) or signals.req_per_s is None:
            return self._desired
        current = max(1, signals.desired)
        found = [self._recommendation(metric, signals, current) for metric in self._object.metrics]
        known = [one for one in found if one is not None]
        if not known:
            return self._desired
        stable = self._stabilized(self._bounded(max(known)), current, signals.now_s)
        desired = self._bounded(self._limited(stable, current, signals.now_s))
        if desired != current:
            self._changes.append((signals.now_s, desired - current))
        self._desired = desired
        return desired

    def _bounded(self, count: int) -> int:
        return min(self._object.most, max(self._object.least, count))

    def _recommendation(self, metric: Metric, signals: Signals, current: int) -> int | None:
        """Replicas that bring `metric` to its target; None if it is unknown."""
        total = metric.total(signals)
        if metric.form is Form.PODS:
            return self._for_pods(total / metric.target, signals.ready, current)
        if metric.form is Form.VALUE:
            ratio = total / metric.target
            within = self._is_tolerable(ratio)
            return current if within else math.ceil(ratio * max(1, signals.ready) - _ROUNDING)
        needed = total / metric.target
        within = self._is_tolerable(needed / current)
        return current if within else max(1, math.ceil(needed - _ROUNDING))

    def _for_pods(self, needed: float, ready: int, current: int) -> int | None:
        if not ready:
            return None
        ratio, base = needed / ready, ready
        if ratio > 1.0:
            ratio, base = max(1.0, needed / current), current
        if self._is_tolerable(ratio):
            return current
        desired = max(1, math.ceil(base * ratio - _ROUNDING))
        return min(desired, current) if ratio < 1.0 else desired

    def _is_tolerable(self, ratio: float) -> bool:
        behavior = self._object.up if ratio > 1.0 else self._object.down
        return abs(ratio - 1.0) <= behavior.tolerance

    def _stabilized(self, desired: int, current: int, now_s: int) -> int:
        """`desired`, after the stabilization windows of both directions."""
        up_s, down_s = self._object.up.stable_s, self._object.down.stable_s
        self._recommended.append((now_s, desired))
        while self._recommended[0][0] <= now_s - max(up_s, down_s, 1):
            self._recommended.popleft()
        rise = min(n for at_s, n in self._recommended if at_s > now_s - max(1, up_s))
        fall = max(n for at_s, n in self._recommended if at_s > now_s - max(1, down_s))
        return min(max(current, rise), fall)

    def _limited(self, desired: int, current: int, now_s: int) -> int:
        """`desired` within the limits of change."""
        if desired > current:
            most = self._reach(self._object.up, current, now_s, 1)
            return min(desired, max(current, most))
        least = self._reach(self._object.down, current, now_s, -1)
        return max(desired, min(current, least))

    def _reach(self, behavior: Behavior, current: int, now_s: int, sign: int) -> int:
        """The number of replicas that `behavior` allows at most (sign 1) or at least (-1)."""
        if behavior.select is Select.DISABLED:
            return current
        reached = []
        for limit in behavior.limits:
            first = current - sum(n for at_s, n in self._changes if at_s > now_s - limit.period_s)
            step = first * limit.value / 100.0 if limit.is_percent else limit.value
            exact = first + sign * step
            reached.append(math.ceil(exact - _ROUNDING) if sign > 0 else math.floor(exact))
        periods = (*self._object.up.limits, *self._object.down.limits)
        longest_s = max(limit.period_s for limit in periods) if periods else 0
        while self._changes and self._changes[0][0] <= now_s - longest_s:
            self._changes.popleft()
        widest = behavior.select is Select.MAX
        return (
            max(reached, default=current) if widest is (sign > 0) else min(reached, default=current)
        )
