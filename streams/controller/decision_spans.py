"""Spans of decisions, and of the assignments that carry them out. Their traces go with the records.

A trace begins with a decision. Its assignments are children, and executors continue them until an
instance is ready.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.decide import ControllerState, Effect
from autoscaler.state.effects import PublishAssignment, PublishDecision
from topics.decisions import Decision
from topics.fleet import Assignment
from topics.spans import Spans


class DecisionSpans:
    """Adds a trace to the records of a tick, before they are published."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._last: dict[str, str] = {}

    def traced(self, before: ControllerState, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """`effects` with traces. before: the state before the tick."""
        if not self._spans.on:
            return effects
        decided = [
            PublishDecision(self._decision(one.record)) if isinstance(one, PublishDecision) else one
            for one in effects
        ]
        return tuple(
            PublishAssignment(self._assignment(before, one.record))
            if isinstance(one, PublishAssignment)
            else one
            for one in decided
        )

    def _decision(self, decision: Decision) -> Decision:
        """`decision` with the trace of its span, which begins with the excess of demand."""
        span = self._spans.open("decision", decision.over_since_ms or decision.at_ms)
        attributes = {
            "shoal.model": decision.model,
            "shoal.decision.kind": decision.kind,
            "shoal.decision.number": decision.number,
            "shoal.decision.leader_token": decision.leader_token,
            "shoal.decision.applied": decision.applied,
            "shoal.decision.codes": list(decision.codes),
            "shoal.decision.usd_per_h": decision.cost_delta_usd_per_h,
            "shoal.demand.req_per_s": decision.demand_req_per_s,
        }
        span.end(decision.at_ms, attributes)
        if decision.change:
            self._last[decision.model] = span.trace
        return replace(decision, trace=span.trace)

    def _assignment(self, before: ControllerState, record: Assignment) -> Assignment:
        """`record` with the trace of its span, if it has instances that the last one lacks."""
        last = before.published.assignments.get(record.node)
        known = {one.instance for one in last.instances} if last else set()
        new = [one for one in record.instances if one.instance not in known]
        parents = [self._last[one.model] for one in new if one.model in self._last]
        if not parents:
            return record
        span = self._spans.open("assignment", record.issued_ms, parents[0])
        attributes = {
            "shoal.node": record.node,
            "shoal.pool": record.pool,
            "shoal.generation": record.generation,
            "shoal.instances": [one.instance for one in new],
        }
        span.end(record.issued_ms, attributes)
        return replace(record, trace=span.trace)
