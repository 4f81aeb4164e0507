"""Traces from a request and a decision to a ready instance, exported to a collector."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoscaler.domain.cluster import Mode
from executors.gateway.gateway_settings import Clock
from executors.gateway.model_meter import Ending, Outcome
from executors.gateway.request_spans import RequestSpans
from executors.node.node_state import InstanceRecord, NodeState
from executors.node.start_spans import StartSpans
from streams.controller.decision_spans import DecisionSpans
from tests.integration.tracing.conftest import Collector
from tests.unit.console.console_world import world
from topics.checks import InvalidValue
from topics.edge import tracing
from topics.fleet import InstanceState
from topics.spans import Spans
from topics.time_base import TimeBase

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
CLIENT = "0123456789abcdef0123456789abcdef"


def flush(*all_spans: Spans) -> None:
    for spans in all_spans:
        assert spans._tracer.span_processor.force_flush(10_000)


async def test_a_trace_leads_from_the_decision_to_the_ready_instance(
    opentelemetry: Path | None, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    deciding = tracing.open_spans("shoal-controller", "ctl-1")
    starting = tracing.open_spans("shoal-executor", "exec-1")
    async with world(mode=Mode.ACT) as at:
        at.loop.traced = DecisionSpans(deciding).traced
        at.run(3)
        decision = next(one for one in at.loop.latest.decisions if one.change)
        node, assignment = next(iter(at.loop.latest.desired.assignments.items()))
    assert decision.trace and assignment.trace.split("-")[1] == decision.trace.split("-")[1]
    one = InstanceRecord(assignment.instances[0], InstanceState.STARTING, 0, launched_ms=2000)
    before = NodeState(node, assignment.pool, assignment)
    begun = replace(before, instances=(one,))
    ready = replace(before, instances=(replace(one, state=InstanceState.READY),))
    spans = StartSpans(starting, node)
    spans.step(before, begun, 1000)
    spans.step(begun, ready, 61_000)
    flush(deciding, starting)
    found = collector.spans()
    start, (placed, *_) = found["start"][0], found["assignment"]
    decided = next(d for d in found["decision"] if d["id"] == decision.trace.split("-")[2])
    assert start["parent"] == placed["id"] and placed["parent"] == decided["id"]
    assert start["trace"] == placed["trace"] == decided["trace"] == decision.trace.split("-")[1]
    assert start["ms"] == 60_000.0 and start["shoal.group"] == assignment.instances[0].group
    assert start["shoal.instance"] == one.instance
    assert decided["shoal.model"] == "tiny" and decided["shoal.decision.number"] == decision.number
    assert (decided["service"], start["service"]) == ("shoal-controller", "shoal-executor")


def test_a_start_that_fails_is_a_failed_span(
    opentelemetry: Path | None, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    spans = tracing.open_spans("shoal-executor", "exec-1")
    desired: Any = SimpleNamespace(instance="tiny:0", model="tiny", group="tiny:a1@us/l4/spot:1")
    one = InstanceRecord(desired, InstanceState.STARTING, 0, launched_ms=2000)
    empty = NodeState("n1", "p")
    begun = replace(empty, instances=(one,))
    failed = replace(one, state=InstanceState.FAILED, reason="no GPU")
    of_node = StartSpans(spans, "n1")
    of_node.step(empty, begun, 1000)
    of_node.step(begun, replace(empty, instances=(failed,)), 2000)
    flush(spans)
    (start,) = collector.spans()["start"]
    assert start["failed"] and start["parent"] == ""


def test_a_request_continues_the_clients_trace_and_the_engine_continues_the_request(
    opentelemetry: Path | None, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    spans = tracing.open_spans("shoal-gateway", "gw-1")
    requests = RequestSpans(spans, Clock(TimeBase(1.0, 1_790_000_000_000, 0)))
    parent = f"00-{CLIENT}-0123456789abcdef-01"
    exchange: Any = SimpleNamespace(
        headers={b"traceparent": parent.encode(), b"tracestate": b"a=1"}
    )
    span, headers = requests.open(exchange, time.monotonic_ns())
    request: Any = SimpleNamespace(
        call=SimpleNamespace(model="tiny"), sent_to="tiny:a1@us/l4/spot:1", id="r-1"
    )
    requests.end(span, request, Outcome(Ending.COMPLETED, 900.0, 120.0, 512, 128))
    flush(spans)
    (seen,) = collector.spans()["request"]
    assert seen["trace"] == CLIENT and seen["parent"] == "0123456789abcdef"
    assert headers == f"traceparent: 00-{CLIENT}-{seen['id']}-01\r\ntracestate: a=1\r\n".encode()
    assert seen["shoal.group"] == "tiny:a1@us/l4/spot:1" and seen["shoal.ttft_ms"] == 120.0


def test_without_a_collector_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    spans = tracing.open_spans("shoal-gateway", "gw-1")
    span = spans.open("request", 1.0)
    span.end(2.0, {})
    assert not spans.on and span.trace == ""
    exchange: Any = SimpleNamespace(
        headers={b"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"}
    )
    _, headers = RequestSpans(spans, Clock(TimeBase(1.0, 1, 0))).open(exchange, 0)
    assert headers.startswith(b"traceparent: 00-aaaa")


def test_a_collector_without_the_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(InvalidValue, match="make tracing") as error:
        tracing.open_spans("shoal-gateway", "gw-1")
    assert ENDPOINT in str(error.value)
