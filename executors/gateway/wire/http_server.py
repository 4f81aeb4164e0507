"""HTTP/1.1 server for clients that may be slow, broken or hostile: every wait and size has a limit.

All clients share one event loop. So only one block of a large body, or one first request on a new
connection, is processed per iteration of the loop. A connection whose last request succeeded does
not wait for this. `wire.client_connection` serves one connection; the handler produces the
responses.
"""

from __future__ import annotations

import asyncio

from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_connection import (
    LINGER_S,
    ClientConnection,
    Handler,
    RefusalWriter,
)
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.fair_scheduler import FairScheduler

_EXPIRY_PERIOD_S = 0.25
_READ_BYTES = 64 * 1024  # bytes read per client and iteration of the loop


class HttpServer:
    """Listens on addresses and applies the limits to all connections. Counters: `slow_readers_cut`
    (clients that did not read), `requests_timed_out` (heads and bodies that did not arrive in
    time), `requests_over_limit` (requests refused because of a limit)."""

    def __init__(
        self, handler: Handler, refuse: RefusalWriter, limits: ClientLimits, body_memory: BodyMemory
    ) -> None:
        self.handler = handler
        self.refuse = refuse
        self.limits = limits
        self.body_memory = body_memory
        self.connections: set[ClientConnection] = set()
        self.receiving_bodies: set[ClientConnection] = set()  # connections with incomplete bodies
        self.closing = False
        self.slow_readers_cut = self.requests_timed_out = self.requests_over_limit = 0
        self.read_scheduler, self.first_request_scheduler = FairScheduler(), FairScheduler()
        # shared by all connections: valid only within one callback
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._listeners: list[asyncio.Server] = []
        self._expiry_task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, shared: bool = False) -> int:
        """Listen on an address and return its port. Raises OSError if the address is not available.
        shared: whether other processes listen on it too. May be called for several addresses."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: ClientConnection(self, loop),
            host,
            port,
            backlog=2048,
            reuse_port=shared or None,
        )
        self._listeners.append(listener)
        if self._expiry_task is None:
            self._expiry_task = asyncio.create_task(self._expire_connections())
        return int(listener.sockets[0].getsockname()[1])

    async def drain(self, limit_s: float) -> int:
        """Stop accepting, let current requests finish for at most `limit_s` real seconds, then
        abort the rest. Returns the number of aborted requests."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        for connection in list(self.connections):
            connection.close_if_idle()
        while self.connections and loop.time() < until:
            await asyncio.sleep(min(0.02, max(0.0, until - loop.time())))
            if not any(connection.busy for connection in self.connections):
                # The rest of a response may still be in the write buffer of its connection.
                until = min(until, loop.time() + LINGER_S)
        cut = sum(connection.busy for connection in self.connections)
        for connection in list(self.connections):
            connection.abort_unfinished()
        if self._expiry_task is not None:
            self._expiry_task.cancel()
        return cut

    def free_body_memory(self) -> bool:
        """Refuse the largest incomplete bodies until all bodies fit into memory; returns whether
        they fit. Small bodies take precedence over large bodies that arrive slowly."""
        while self.body_memory.used_bytes > self.body_memory.limit_bytes:
            largest = max(
                self.receiving_bodies, key=lambda client: client.partial_body_bytes, default=None
            )
            if largest is None:
                return False
            self.requests_over_limit += 1
            largest.refuse_and_close(429, "too many large requests at once")
        return True

    async def _expire_connections(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_S)
            now = loop.time()
            for connection in [c for c in self.connections if c.deadline <= now]:
                connection.expire()
                await asyncio.sleep(0)  # only one per iteration, in case many expire together
