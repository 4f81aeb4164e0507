"""Decides which engines are ejected, and which of them must generate a token before they serve
again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint

_FAULTS_TO_EJECT = 3


class EngineEjections:
    """Ejects engines that fail, and readmits them. need_token_probe: ejected engines that must
    generate a token, because they pass their health check anyway."""

    def __init__(self, clock: Clock, table: RouteTable, metrics: GatewayMetrics) -> None:
        self._clock = clock
        self._table = table
        self._metrics = metrics
        self._consecutive_faults: dict[Endpoint, int] = {}
        self.need_token_probe: set[Endpoint] = set()

    def eject(self, model: str, endpoint: Endpoint) -> None:
        """Send no requests to `endpoint` until a probe succeeds."""
        router = self._table.routers.get(model)
        if router is not None and router.eject(endpoint, self._clock.now_ms()):
            self._metrics.ejections.labels(model).inc()
            self._table.notify(model)  # waiting requests may go to tried instances again

    def count_faults(self, model: str, faulty: Iterable[Endpoint]) -> None:
        """Count a fault of each endpoint in `faulty`, because another instance answered the request
        that failed there. An endpoint with several consecutive faults is ejected."""
        for endpoint in faulty:
            faults = self._consecutive_faults[endpoint] = (
                self._consecutive_faults.get(endpoint, 0) + 1
            )
            if faults >= _FAULTS_TO_EJECT:
                del self._consecutive_faults[endpoint]
                self.need_token_probe.add(endpoint)  # its health check passes
                self.eject(model, endpoint)

    def forget_faults(self, endpoint: Endpoint) -> None:
        """Forget the faults of `endpoint`, because it answered a request."""
        self._consecutive_faults.pop(endpoint, None)

    def keep(self, live: Collection[Endpoint]) -> None:
        """Forget endpoints that are not in `live`."""
        for endpoint in self._consecutive_faults.keys() - live:
            del self._consecutive_faults[endpoint]
        self.need_token_probe.intersection_update(live)
