"""A whole gateway in one event loop: everything is made and joined here.

Owns the composition and the life of the process' parts. What varies comes in: the publisher, the
clock, the settings. Routes come in through `Gateway.table.apply`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from aiohttp import web

from executors.gateway.app import Face
from executors.gateway.engine import Engines
from executors.gateway.meter import Meter
from executors.gateway.metrics import Metrics
from executors.gateway.prober import Prober
from executors.gateway.relay import Relay
from executors.gateway.reporter import Publisher, Reporter
from executors.gateway.settings import Clock, Settings
from executors.gateway.table import RouteTable

_SETTLE_S = 5.0
_GRACE_REAL_S = 0.5


class Gateway:
    """One gateway; `async with` starts and stops it. port 0 takes a free one, see `url`."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        publisher: Publisher,
        host: str = "127.0.0.1",
        port: int = 0,
        state_dir: Path | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.meters: dict[str, Meter] = {}
        self.table = RouteTable(self.metrics, state_dir, clock.real_s(_SETTLE_S))
        self.engines = Engines(settings, clock)
        relay = self.relay = Relay(settings, clock, self.table, self.engines, self.metrics)
        self.reporter = Reporter(
            settings.gateway_id,
            clock,
            self.meters,
            self.table.routers,
            self.metrics,
            publisher,
        )
        self._prober = Prober(clock, self.table, relay, self.engines, self.metrics)
        boot = self.reporter.boot
        face = Face(settings, clock, self.table, relay, self.metrics, self.meters, boot)
        self._runner = web.AppRunner(
            face.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_GRACE_REAL_S,
        )
        self._host, self._port = host, port
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.url = ""

    async def __aenter__(self) -> Gateway:
        """Serve; OSError if the address cannot be had."""
        async with AsyncExitStack() as stack:
            self.table.load()
            await stack.enter_async_context(self.engines)
            await self._runner.setup()
            stack.push_async_callback(self._runner.cleanup)
            site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
            await site.start()
            port = self._runner.addresses[0][1]
            host = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{host}:{port}"
            for coroutine in (
                self.reporter.tick(),
                self.reporter.send(),
                self._prober.run(),
                self.table.keep_saved(),
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
        """No new connections, half a second for what is in flight, then the last counts.

        After an error it does not sign off: it will be started again."""
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

    async def run(self, end: asyncio.Event) -> None:
        """Until `end` is set; a part that dies takes the process down, to be started again."""
        waiting = asyncio.create_task(end.wait())
        done, _ = await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            task.result()
