"""One gateway in one event loop: creates its parts and connects them.

Publisher, clock and settings are parameters. Routes arrive through `Gateway.table`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from executors.gateway.api_app import ApiApp
from executors.gateway.api_keys import AccessControl
from executors.gateway.ejection_prober import EjectionProber
from executors.gateway.engine_exchange import EngineClient
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock, GatewaySettings
from executors.gateway.load_subscriber import LoadSubscriber
from executors.gateway.model_meter import ModelMeter
from executors.gateway.proxy import Proxy
from executors.gateway.route_table import RouteTable
from executors.gateway.telemetry_reporter import Publisher, TelemetryReporter
from executors.gateway.telemetry_spool import TelemetrySpool
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.http_server import HttpServer
from topics.http_origin import HostRule
from topics.spans import NO_SPANS, Spans

log = logging.getLogger(__name__)

_SETTLE_S = 5.0


class Gateway:
    """One gateway; `async with` starts and stops it. port: 0 = any free port, see `url`. own_port:
    a second port on loopback, needed if other processes share `port`, see `own_url`."""

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        publisher: Publisher,
        host: str = "127.0.0.1",
        port: int = 0,
        state_dir: Path | None = None,
        keys_file: Path | None = None,
        own_port: int | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self.metrics = GatewayMetrics()
        self.meters: dict[str, ModelMeter] = {}
        self.table = RouteTable(
            self.metrics,
            state_dir,
            clock.real_s(_SETTLE_S),
            settings.policy,
            frozenset(settings.declared_models.values()),
        )
        self.engines = EngineClient(settings)
        proxy = self.proxy = Proxy(settings, clock, self.table, self.engines, self.metrics)
        self.reporter = TelemetryReporter(
            settings.gateway_id,
            clock,
            self.meters,
            self.table.routers,
            self.metrics,
            publisher,
            spool=TelemetrySpool(state_dir) if state_dir is not None else None,
            declared=frozenset(settings.declared_models.values()),
        )
        self._loads = LoadSubscriber(self.table, self.metrics)
        self._prober = EjectionProber(clock, self.table, proxy, self.engines, self.metrics)
        self._access = AccessControl(keys_file, self.metrics)
        body_memory = BodyMemory(settings.body_budget_bytes)
        boot = self.reporter.boot
        self._app = ApiApp(
            settings,
            clock,
            self.table,
            proxy,
            self.metrics,
            self.meters,
            boot,
            self._access,
            body_memory,
            HostRule(host, settings.host_names),
            spans,
        )
        limits = ClientLimits(
            head_s=settings.head_real_s,
            body_bytes=settings.max_body_bytes,
            body_s=settings.body_real_s,
            write_s=settings.write_real_s,
        )
        self._server = HttpServer(self._app.handle, self._app.refuse, limits, body_memory)
        self._app.free_body_memory = self._server.free_body_memory
        self.metrics.watch_server(self._server)
        self._settings = settings
        self._host, self._port, self._own_port = host, port, own_port
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.url = self.own_url = ""

    async def __aenter__(self) -> Gateway:
        """Start serving. Raises OSError if the address is not available, and InvalidKeysFile."""
        async with AsyncExitStack() as stack:
            self.table.load()
            self._access.load()
            await stack.enter_async_context(self.engines)
            stack.callback(self.proxy.close)
            stack.push_async_callback(self._app.parser.close)
            stack.callback(self._app.model_selector.scorer.close)
            shared = self._own_port is not None
            port = await self._server.start(self._host, self._port, shared)
            if self._own_port is not None:
                own = await self._server.start("127.0.0.1", self._own_port)
                self.own_url = f"http://127.0.0.1:{own}"
            host = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{host}:{port}"
            for coroutine in (
                self.reporter.tick(),
                self.reporter.send(),
                self._prober.run(),
                self._loads.run(),
                self.table.save_changes(),
                self._access.watch_file(),
            ):
                self._tasks.append(asyncio.create_task(coroutine))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Abort unfinished requests, then send the last telemetry.

        The last record is marked as leaving, except after an error, because the gateway will then
        restart.
        """
        await self._server.drain(0.0)
        await asyncio.sleep(0)  # let the aborted requests be counted for the last record
        await self._stack.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reporter.end_span(self._clock.now_ms(), leaving=kind is None)
        try:
            async with asyncio.timeout(0.5):
                await self.reporter.flush()
        except TimeoutError:
            pass
        await self.reporter.spool()

    async def run(self, end: asyncio.Event, now: asyncio.Event) -> None:
        """Serve until `end` is set, then let requests finish for `drain_real_s` or until `now` is
        set. Raises the error of any part that fails, so that the process ends and is restarted."""
        await self._run_until(end)
        if now.is_set():
            return
        self._app.draining = True
        log.info("draining: at most %g s", self._settings.drain_real_s)
        draining = asyncio.create_task(self._server.drain(self._settings.drain_real_s))
        stopping = asyncio.create_task(now.wait())
        await asyncio.wait([draining, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if draining.done() and draining.result():
            log.warning("aborted %d unfinished requests", draining.result())
        draining.cancel()

    async def _run_until(self, end: asyncio.Event) -> None:
        waiting = asyncio.create_task(end.wait())
        done, _ = await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            task.result()
