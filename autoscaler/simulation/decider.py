"""Who decides in a simulation: the interface, and what a decider is told and says.

Owns the values. Knows no fold and no planner: `live` joins the real ones to this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autoscaler.domain.cluster import Cluster
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from topics.alerts import Alert
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment, Status
from topics.routing import Routes
from topics.supply import Availability, Price


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known at a tick. statuses: latest per node; availability, prices: latest per pool;
    answers, alerts: those that came since the last tick."""

    cluster: Cluster
    windows: TelemetryWindows
    statuses: Mapping[str, Status]
    availability: Mapping[str, Availability] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    answers: tuple[PlanAnswer, ...] = ()
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a tick leads to: records to publish and questions to the planner."""

    assignments: tuple[Assignment, ...] = ()
    routes: tuple[Routes, ...] = ()
    decisions: tuple[Decision, ...] = ()
    plans: tuple[PlanRecord, ...] = ()
    requests: tuple[PlanRequest, ...] = ()


class Decider(Protocol):
    """Called once per domain second."""

    def decide(self, seen: Seen, now_ms: int) -> Said:
        """One tick at `now_ms`, domain ms since the epoch."""
        ...
