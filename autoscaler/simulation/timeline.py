"""Rows of a simulation run, complete enough to recompute every figure, and their JSON form.

Seconds count from the controller's start. `run_measures` and `policy_score` evaluate the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.rollout.serving_group import combo_id_of
from autoscaler.serving.billing import NodeSpan
from autoscaler.simulation.decider import PlannedRates
from autoscaler.simulation.instance_spans import InstanceSpan
from autoscaler.simulation.simulated_request import Call, Ending
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment

_DIGITS = 6  # microseconds


class RequestRow(NamedTuple):
    """One request. first_token_s, end_s: None if the request has no first token or no end."""

    id: int
    model: str
    arrival_s: float
    first_token_s: float | None
    end_s: float | None
    input_tokens: int
    output_tokens: int
    outcome: str


@dataclass(frozen=True, slots=True)
class OrderedFleet:
    """The assigned fleet from `at_s` on: combo id -> number of groups that do not drain."""

    at_s: float
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class FlowRow:
    """Requests of `model` that arrived around `arrival_s`, with counts by outcome.

    tokens: output tokens of the requests that attained their SLO.
    """

    model: str
    arrival_s: float
    requests: int
    served: int
    attained: float
    tokens: float


@dataclass(slots=True)
class Timeline:
    """Everything recorded in one run.

    calls: requests in order of arrival, in their current state. requests: rows of the calls, after
    `finish`. flows: replaces requests if rates were simulated. plan_requests, plan_answers: each
    with the second of its tick. origin_ms: second 0 of the timeline in ms since the epoch, for the
    controller's records. launches: number of started processes. planned: changes of the rates that
    the decider plans for, with their seconds.
    """

    origin_ms: int = 0
    calls: list[Call] = field(default_factory=list)
    requests: list[RequestRow] = field(default_factory=list)
    flows: list[FlowRow] = field(default_factory=list)
    nodes: list[NodeSpan] = field(default_factory=list)
    instances: list[InstanceSpan] = field(default_factory=list)
    planned: list[tuple[float, Mapping[str, PlannedRates]]] = field(default_factory=list)
    ordered: list[OrderedFleet] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    plans: list[PlanRecord] = field(default_factory=list)
    plan_requests: list[tuple[float, PlanRequest]] = field(default_factory=list)
    plan_answers: list[tuple[float, PlanAnswer]] = field(default_factory=list)
    launches: int = 0

    def finish(self) -> None:
        """Convert the calls to rows. Calls that have not ended count as dropped."""
        for call in self.calls:
            if call.ending is Ending.PENDING:
                call.ending = Ending.DROPPED
        self.requests = [
            RequestRow(
                call.id,
                call.model,
                _seconds(call.arrival_ms),
                None if call.first_ms is None else _seconds(call.first_ms),
                None if call.end_ms is None else _seconds(call.end_ms),
                call.input_tokens,
                call.output_tokens,
                str(call.ending),
            )
            for call in self.calls
        ]

    def second_of(self, epoch_ms: int) -> float:
        """A record's time, converted to seconds of the simulation."""
        return (epoch_ms - self.origin_ms) / 1000.0

    def lines(self) -> Iterable[dict[str, Any]]:
        """The timeline as JSON objects, requests first."""
        for row in self.requests:
            yield {
                "kind": "request",
                "id": row.id,
                "model": row.model,
                "arrival_s": row.arrival_s,
                "first_token_s": row.first_token_s,
                "end_s": row.end_s,
                "input_tokens": row.input_tokens,
                "output_tokens": row.output_tokens,
                "outcome": row.outcome,
            }
        for span in self.nodes:
            yield {
                "kind": "node",
                "node": span.node,
                "pool": span.pool,
                "usd_per_h": span.usd_per_h,
                "from_s": span.from_s,
                "to_s": span.to_s,
            }


def active_group_counts(assignments: Iterable[Assignment]) -> dict[str, int]:
    """Combo id -> number of groups with at least one assigned instance that does not drain."""
    groups = {
        wanted.group
        for assignment in assignments
        for wanted in assignment.instances
        if not wanted.drain
    }
    counts: dict[str, int] = {}
    for group in sorted(groups):
        combo_id = combo_id_of(group)
        counts[combo_id] = counts.get(combo_id, 0) + 1
    return counts


def _seconds(at_ms: float) -> float:
    return round(at_ms / 1000.0, _DIGITS)
