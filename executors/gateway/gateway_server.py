"""A whole gateway in one event loop: everything is made and joined here.

Owns the composition and the life of the process' parts. What varies comes in: the publisher, the
clock, the settings. Routes come in through `Gateway.table`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from executors.gateway.api_app import Face
from executors.gateway.api_keys import Access
from executors.gateway.ejection_prober import Prober
from executors.gateway.engine_exchange import Engines
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.gateway_settings import Clock, Settings
from executors.gateway.load_subscriber import LoadSubscriber
from executors.gateway.model_meter import Meter
from executors.gateway.proxy import Relay
from executors.gateway.route_table import RouteTable
from executors.gateway.telemetry_reporter import Publisher, Reporter
from executors.gateway.telemetry_spool import Spool
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.http_server import HttpServer
from topics.http_origin import HostRule

log = logging.getLogger(__name__)

_SETTLE_S = 5.0


class Gateway:
    """One gateway; `async with` starts and stops it. port 0 takes a free one, see `url`. own_port:
    given where `port` is shared with other processes; it answers there, too (`own_url`)."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        publisher: Publisher,
        host: str = "127.0.0.1",
        port: int = 0,
        state_dir: Path | None = None,
        keys_file: Path | None = None,
        own_port: int | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.meters: dict[str, Meter] = {}
        self.table = RouteTable(self.metrics, state_dir, clock.real_s(_SETTLE_S), settings.policy)
        self.engines = Engines(settings)
        relay = self.relay = Relay(settings, clock, self.table, self.engines, self.metrics)
        self.reporter = Reporter(
            settings.gateway_id,
            clock,
            self.meters,
            self.table.routers,
            self.metrics,
            publisher,
            spool=Spool(state_dir) if state_dir is not None else None,
        )
        self._loads = LoadSubscriber(self.table, self.metrics)
        self._prober = Prober(clock, self.table, relay, self.engines, self.metrics)
        self._access = Access(keys_file, self.metrics)
        budget = BodyMemory(settings.body_budget_bytes)
        boot = self.reporter.boot
        self._face = Face(
            settings,
            clock,
            self.table,
            relay,
            self.metrics,
            self.meters,
            boot,
            self._access,
            budget,
            HostRule(host, settings.host_names),
        )
        limits = ClientLimits(
            head_s=settings.head_real_s,
            body_bytes=settings.max_body_bytes,
            body_s=settings.body_real_s,
            write_s=settings.write_real_s,
        )
        self._server = HttpServer(self._face.handle, self._face.refuse, limits, budget)
        self._face.make_room = self._server.free_body_memory
        self.metrics.watch(self._server)
        self._settings = settings
        self._host, self._port, self._own_port = host, port, own_port
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.url = self.own_url = ""

    async def __aenter__(self) -> Gateway:
        """Serve; OSError if the address cannot be had; BadKeys."""
        async with AsyncExitStack() as stack:
            self.table.load()
            self._access.load()
            await stack.enter_async_context(self.engines)
            stack.callback(self.relay.close)
            stack.push_async_callback(self._face.parser.close)
            stack.callback(self._face.choosing.scorer.close)
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
                self.table.keep_saved(),
                self._access.keep_fresh(),
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
        """What `run` left under way is cut off; then the last counts.

        After an error it does not sign off: it will be started again."""
        await self._server.drain(0.0)
        await asyncio.sleep(0)  # cut-off requests are counted before the last report
        await self._stack.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reporter.span_ended(self._clock.now_ms(), leaving=kind is None)
        try:
            async with asyncio.timeout(0.5):
                await self.reporter.flush()
        except TimeoutError:
            pass
        await self.reporter.spool()

    async def run(self, end: asyncio.Event, now: asyncio.Event) -> None:
        """Until `end` is set, and then until what is under way has finished: at most the declared
        time, or until `now` is set. A part that dies takes the process down, to be started again.
        """
        await self._watch(end)
        if now.is_set():
            return
        self._face.draining = True
        log.info("draining: at most %g s", self._settings.drain_real_s)
        draining = asyncio.create_task(self._server.drain(self._settings.drain_real_s))
        stopping = asyncio.create_task(now.wait())
        await asyncio.wait([draining, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if draining.done() and draining.result():
            log.warning("%d requests were cut off", draining.result())
        draining.cancel()

    async def _watch(self, end: asyncio.Event) -> None:
        waiting = asyncio.create_task(end.wait())
        done, _ = await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            task.result()
