"""Spans of starting instances: when they open and end, and their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from executors.node.node_state import InstanceRecord, NodeState
from executors.node.start_spans import StartSpans
from topics.fleet import Assignment, DesiredInstance, InstanceState
from topics.spans import Spans

WISH = DesiredInstance("a", "chat", "aggregated", "g", (0,))
ASSIGNED = Assignment("n0", "r/p/owned", 1, 1, 0, (WISH,), trace="00-trace")
IDLE = NodeState("n0", "r/p/owned", ASSIGNED)
STARTING, READY = InstanceState.STARTING, InstanceState.READY


class FakeSpans:
    """Notes the spans as text."""

    def __init__(self, on: bool = True) -> None:
        self.on = on
        self.lines: list[tuple[Any, ...]] = []
        self.attributes: list[Mapping[str, Any]] = []

    def open(self, name: str, at_ms: int, parent: str) -> FakeSpans:
        self.lines.append(("open", name, at_ms, parent))
        return self

    def add_event(self, name: str, at_ms: int) -> None:
        self.lines.append((name, at_ms))

    def end(self, at_ms: int, attributes: Mapping[str, Any], error: str) -> None:
        self.lines.append(("end", at_ms, error))
        self.attributes.append(attributes)


def holding(state: InstanceState, **changes: Any) -> NodeState:
    item = replace(InstanceRecord(WISH, state, 0, launched_ms=1000), **changes)
    return replace(IDLE, instances=(item,))


def spans_of(*states: NodeState, on: bool = True) -> FakeSpans:
    """The spans of a node that has `states` at 1 s, 2 s, ..., and no instance before."""
    fake = FakeSpans(on)
    spans = StartSpans(cast(Spans, fake), "n0")
    for second, (before, after) in enumerate(zip((IDLE, *states), states, strict=False), 1):
        spans.step(before, after, 1000 * second)
    return fake


BEGUN = ("open", "start", 1000, "00-trace")


@pytest.mark.parametrize("state", [READY, InstanceState.SWITCHING])
def test_a_span_lasts_from_the_assignment_until_the_instance_serves(state: InstanceState) -> None:
    found = spans_of(holding(STARTING), holding(STARTING), holding(state, restarts=2))
    assert found.lines == [BEGUN, ("launched", 1000), ("end", 3000, "")]
    assert found.attributes == [
        {"shoal.node": "n0", "shoal.instance": "a", "shoal.model": "chat", "shoal.group": "g",
         "shoal.restarts": 2}
    ]  # fmt: skip


@pytest.mark.parametrize(("reason", "error"), [("no memory", "no memory"), ("", "failed")])
def test_a_failed_start_ends_with_its_reason(reason: str, error: str) -> None:
    found = spans_of(holding(STARTING), holding(InstanceState.FAILED, reason=reason))
    assert found.lines[-1] == ("end", 2000, error)


def test_an_instance_that_is_removed_before_it_serves_ends_with_an_error() -> None:
    found = spans_of(holding(STARTING), IDLE)
    assert found.lines == [BEGUN, ("end", 2000, "removed before it was ready")]
    assert found.attributes == [{"shoal.node": "n0", "shoal.instance": "a"}]


def test_a_launch_before_the_span_is_no_event_of_it() -> None:
    """A woken standby was launched long ago."""
    found = spans_of(holding(STARTING), holding(READY, launched_ms=999))
    assert found.lines == [BEGUN, ("end", 2000, "")]


def test_ready_instances_have_no_further_spans() -> None:
    found = spans_of(holding(STARTING), holding(READY), holding(STARTING), holding(READY))
    assert len(found.lines) == 3
    orphan = replace(holding(STARTING), assignment=None)
    assert spans_of(orphan).lines == [("open", "start", 1000, "")]


def test_without_a_tracer_nothing_is_opened() -> None:
    assert spans_of(holding(STARTING), holding(READY), on=False).lines == []
