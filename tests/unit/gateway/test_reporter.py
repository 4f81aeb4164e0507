"""Telemetry of a gateway on its way to a broker that is away."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.telemetry_reporter import TelemetryReporter


class Away:
    """A broker that is away: what is tried may wait in the client, and arrive later."""

    def __init__(self) -> None:
        self.back = False
        self.tried: Counter[int] = Counter()
        self.taken: list[int] = []

    async def publish(self, topic: str, key: str, record: Any) -> bool:
        self.tried[record.sequence] += 1
        if self.back:
            self.taken.append(record.sequence)
        return self.back


async def test_a_broker_that_is_away_is_tried_with_one_record_at_a_time() -> None:
    """Whatever waits in the client is dated by the age that it had when it was handed over: a
    minute of records would arrive as the burst of one second."""
    broker = Away()
    clock: Any = SimpleNamespace(now_ms=lambda: 100_000)
    routers: Any = {"chat": SimpleNamespace(routes=SimpleNamespace(generation=1))}
    reporter = TelemetryReporter("g", clock, {}, routers, GatewayMetrics(), broker)
    for second in range(1, 31):
        reporter.end_span(second * 1000)
        assert not await reporter.flush()
    assert set(broker.tried) == {1}
    broker.back = True
    assert await reporter.flush()
    assert broker.taken == list(range(1, 31))
