"""Probe ejected instances and readmit the instances that answer.

The router decides when a probe is due.
"""

from __future__ import annotations

import asyncio
import logging
import time

from executors.gateway.engine_exchange import EngineClient
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock
from executors.gateway.proxy import Proxy
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint

log = logging.getLogger(__name__)
_PERIOD_S = 0.5


class EjectionProber:
    """Starts the due probes twice per domain second. Probes run concurrently."""

    def __init__(
        self,
        clock: Clock,
        table: RouteTable,
        proxy: Proxy,
        engines: EngineClient,
        metrics: GatewayMetrics,
    ) -> None:
        self._clock = clock
        self._table = table
        self._proxy = proxy
        self._engines = engines
        self._metrics = metrics
        self._probes: dict[tuple[str, Endpoint], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run the checks periodically. Never returns."""
        try:
            while True:
                await asyncio.sleep(max(0.02, self._clock.real_s(_PERIOD_S)))
                self.run_checks()
        finally:
            for task in self._probes.values():
                task.cancel()

    def run_checks(self) -> None:
        """Start the probes that are due, and let the proxy check its engines."""
        self._probes = {key: task for key, task in self._probes.items() if not task.done()}
        now_ms = self._clock.now_ms()
        for model, router in self._table.routers.items():
            for endpoint in router.due_probes(now_ms):
                if (model, endpoint) not in self._probes:
                    task = asyncio.create_task(self._probe(model, endpoint))
                    self._probes[model, endpoint] = task
        self._proxy.check_engines()
        self._table.finalize_unrenewed(time.monotonic())

    async def _probe(self, model: str, endpoint: Endpoint) -> None:
        generate = endpoint in self._proxy.ejections.need_token_probe
        if not await self._engines.is_alive(endpoint, model, generate):
            return
        self._proxy.ejections.need_token_probe.discard(endpoint)
        router = self._table.routers.get(model)  # None if it was withdrawn during the probe
        if router is not None and router.readmit(endpoint):
            log.info("%s: readmitted %s at %s", model, endpoint.instance, endpoint.address)
            self._metrics.readmissions.labels(model).inc()
            self._table.notify(model)
