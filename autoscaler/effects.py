"""What deciding leads to: records to publish, and long work to ask for.

Owns the values. Must not know who carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.workload import Demand, Lengths
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment
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
class ScaleOutTablesRequested:
    """Build tables at these workload lengths: `planning.tables.build_tables(cluster, dict(lengths),
    None, profile)`; they come back in `Observation.tables`. Asked again if they do not come."""

    lengths: tuple[tuple[str, Lengths], ...]


@dataclass(frozen=True, slots=True)
class RefinementRequested:
    """Re-solve the whole cluster; the answer is a `Refinement` with the same `request`.

    demands: per model, the rate to plan for (utilization not applied) and its lengths. running:
    (model, combo id, count) of what is wanted now. scope: models that may change, by name.
    """

    request: int
    at_ms: int
    demands: tuple[Demand, ...]
    running: tuple[tuple[str, str, int], ...]
    obtainable: tuple[tuple[str, int], ...]
    scarce: tuple[str, ...]
    scope: tuple[str, ...]


Effect = (
    PublishAssignment
    | PublishRoutes
    | PublishDecision
    | PublishPlan
    | ScaleOutTablesRequested
    | RefinementRequested
)
