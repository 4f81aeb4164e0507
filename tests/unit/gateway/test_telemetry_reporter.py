"""Telemetry of a gateway while the broker is unreachable."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.telemetry_reporter import TelemetryReporter


class Away:
    """An unreachable broker. A refused record may still be in the client and arrive later."""

    def __init__(self) -> None:
        self.back = False
        self.tried: Counter[int] = Counter()
        self.taken: list[int] = []

    async def publish(self, topic: str, key: str, record: Any) -> bool:
        self.tried[record.sequence] += 1
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
