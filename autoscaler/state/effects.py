"""Effects of a tick: records to publish, and plans to request. The I/O layer executes them."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.planning.planner_messages import PlanRequest
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment
from topics.ledger import LedgerEntry
from topics.routing import Routes


@dataclass(frozen=True, slots=True)
class PublishAssignment:
    """Write `record` to `assignments`."""

    record: Assignment


@dataclass(frozen=True, slots=True)
class PublishRoutes:
    """Write `record` to `routes`."""

    record: Routes


@dataclass(frozen=True, slots=True)
class PublishDecision:
    """Write `record` to `decisions`."""

    record: Decision


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """Write `record` to `plans`."""

    record: PlanRecord


@dataclass(frozen=True, slots=True)
class PublishLedger:
    """Write `record` to `ledger`."""

    record: LedgerEntry


@dataclass(frozen=True, slots=True)
class DeleteKey:
    """Delete the key of a finalized name. place: (short topic name, key)."""

    place: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SolveRequested:
    """Request a plan (`planning.planner`). The answer comes in one later `Observation.answers`.

    An urgent request must not wait for a full request. If an answer does not come in time, the loop
    abandons the request and requests again.
    """

    request: PlanRequest


Effect = (
    PublishAssignment
    | PublishRoutes
    | PublishDecision
    | PublishPlan
    | PublishLedger
    | DeleteKey
    | SolveRequested
)
