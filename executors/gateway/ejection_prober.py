"""Takes ejected instances back once they answer again.

Owns when and how they are asked. Which are out, and how long to wait, is the router's business.
"""

from __future__ import annotations

import asyncio
import logging

from executors.gateway.engine_exchange import Engines
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.gateway_settings import Clock
from executors.gateway.proxy import Relay
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint

log = logging.getLogger(__name__)
_PERIOD_S = 0.5


class Prober:
    """Looks for due probes twice a domain second; probes do not wait for each other."""

    def __init__(
        self, clock: Clock, table: RouteTable, relay: Relay, engines: Engines, metrics: Metrics
    ) -> None:
        self._clock = clock
        self._table = table
        self._relay = relay
        self._engines = engines
        self._metrics = metrics
        self._under_way: dict[tuple[str, Endpoint], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                await asyncio.sleep(max(0.02, self._clock.real_s(_PERIOD_S)))
                self.look()
        finally:
            for task in self._under_way.values():
                task.cancel()

    def look(self) -> None:
        """Start the probes that are due now; let the relay look after what hangs or waits."""
        self._under_way = {key: task for key, task in self._under_way.items() if not task.done()}
        now_ms = self._clock.now_ms()
        for model, router in self._table.routers.items():
            for endpoint in router.due_probes(now_ms):
                if (model, endpoint) not in self._under_way:
                    task = asyncio.create_task(self._probe(model, endpoint))
                    self._under_way[model, endpoint] = task
        self._relay.look()

    async def _probe(self, model: str, endpoint: Endpoint) -> None:
        generate = endpoint in self._relay.hung
        if not await self._engines.alive(endpoint, model, generate):
            return
        self._relay.hung.discard(endpoint)
        if self._table.routers[model].readmit(endpoint):
            log.info("%s: %s at %s is back", model, endpoint.instance, endpoint.address)
            self._metrics.readmissions.labels(model).inc()
            self._table.wake(model)
