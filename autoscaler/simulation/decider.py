"""Interface of a simulation's decider, with its input and its output at each tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from autoscaler.domain.cluster import Cluster
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from topics.alerts import Alert
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment, Status
from topics.routing import Routes
from topics.supply import Availability, Price


@dataclass(frozen=True, slots=True)
class DeciderInput:
    """Input of a tick.

    statuses: latest status per node. availability, prices: latest record per pool. answers, alerts:
    records since the last tick.
    """

    cluster: Cluster
    windows: TelemetryWindows
    statuses: Mapping[str, Status]
    availability: Mapping[str, Availability] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    answers: tuple[PlanAnswer, ...] = ()
    alerts: tuple[Alert, ...] = ()


class PlannedRates(NamedTuple):
    """Rates in requests/s that a decider plans for. need: capacity is bought for it. target:
    capacity for it stays. derate: measured / planned capacity of instances."""

    need_req_per_s: float
    target_req_per_s: float
    derate: float


@dataclass(frozen=True, slots=True)
class DeciderOutput:
    """Output of a tick: records to publish, and plan requests. planned: rates of the models whose
    rates changed; empty if the decider has none."""

    assignments: tuple[Assignment, ...] = ()
    routes: tuple[Routes, ...] = ()
    decisions: tuple[Decision, ...] = ()
    plans: tuple[PlanRecord, ...] = ()
    requests: tuple[PlanRequest, ...] = ()
    planned: Mapping[str, PlannedRates] = field(default_factory=dict)


class Decider(Protocol):
    """The decider of a simulation. It is called once per domain second."""

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """One tick at `now_ms`, domain ms since the epoch."""
        ...
