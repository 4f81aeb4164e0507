"""Telemetry of a gateway while the broker is unreachable."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executors.gateway import telemetry_reporter
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.telemetry_reporter import TelemetryReporter
from executors.gateway.telemetry_spool import TelemetrySpool
from tests.hang_limit import HANG_S


class Away:
    """An unreachable broker. A refused record may still be in the client and arrive later."""

    def __init__(self) -> None:
        self.back = False
        self.until = 1 << 30  # number of records that it takes before it goes away
        self.tried: Counter[int] = Counter()
        self.taken: list[int] = []

    async def publish(self, topic: str, key: str, record: Any) -> bool:
        self.tried[record.sequence] += 1
        self.back = self.back and len(self.taken) < self.until
        if self.back:
            self.taken.append(record.sequence)
        return self.back


async def test_an_absent_broker_gets_one_record_at_a_time() -> None:
    """A waiting record keeps the age from its first send. A minute of such records would look like
    a burst within one second.
    """
    broker = Away()
    clock: Any = SimpleNamespace(now_ms=lambda: 100_000)
    routers: Any = {"chat": SimpleNamespace(routes=SimpleNamespace(generation=1, adapters=()))}
    reporter = TelemetryReporter("g", clock, {}, routers, GatewayMetrics(), broker)
    for second in range(1, 31):
        reporter.end_span(second * 1000)
        assert not await reporter.flush()
    assert set(broker.tried) == {1}
    broker.back = True
    assert await reporter.flush()
    assert broker.taken == list(range(1, 31))


async def test_a_broker_that_refuses_now_and_then_gets_each_record_of_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a segment from its begin after each failure, an overloaded broker never gets its end."""
    monkeypatch.setattr(telemetry_reporter, "_RETRY_REAL_S", 0.0)
    broker = Away()
    clock: Any = SimpleNamespace(now_ms=lambda: 100_000)
    routers: Any = {"chat": SimpleNamespace(routes=SimpleNamespace(generation=1, adapters=()))}
    spool = TelemetrySpool(tmp_path)
    reporter = TelemetryReporter("g", clock, {}, routers, GatewayMetrics(), broker, spool)
    for second in range(1, 301):
        reporter.end_span(second * 1000)
    await reporter.spool()
    task = asyncio.create_task(reporter.send())
    try:
        for after in range(70, 400, 70):  # the broker goes away after so many records
            broker.back, broker.until = True, after
            async with asyncio.timeout(HANG_S):
                while broker.back and spool.segments():
                    await asyncio.sleep(0)
        assert not spool.segments()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert set(broker.taken) == set(range(1, 301))
    assert len(broker.taken) < 300 + 5 * 64
    reporter.end_span(301_000)
    await reporter.spool()
    broker.back, broker.until = True, 1 << 30
    assert await reporter._unspool() and broker.taken[-1] == 301  # the new file has the same name


def test_series_of_adapters_end_with_their_declaration() -> None:
    """A model may have a thousand adapters, one after the other."""
    clock: Any = SimpleNamespace(now_ms=lambda: 100_000)
    routes = SimpleNamespace(generation=1, adapters=())
    metrics = GatewayMetrics()
    routers: Any = {"chat": SimpleNamespace(routes=routes)}
    reporter = TelemetryReporter("g", clock, {}, routers, metrics, Away())
    metrics.count_adapter(metrics.adapter_requests, "chat", "stays")
    before = metrics.exposition().count(b"stays")
    for number in range(20):
        routes.adapters = ("stays", f"lora-{number}")
        for counter in (metrics.adapter_requests, metrics.adapters_not_loaded):
            metrics.count_adapter(counter, "chat", f"lora-{number}")
        reporter.end_span(1000 * number)
        assert f"lora-{number}".encode() in metrics.exposition()
    routes.adapters = ("stays",)
    reporter.end_span(100_000)
    assert b"lora-" not in metrics.exposition()
    assert metrics.exposition().count(b"stays") == before > 0
