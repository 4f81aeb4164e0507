"""HTTP/1.1 for clients who may be slow, broken or hostile: every wait and every size is bounded.

Owns the listeners and what holds for all connections together. Reading requests from one, and its
limits, is `wire.connection`'s business; what is answered is the handler's.

One event loop serves everybody, so what a single client can make much of goes in turns, one step an
iteration: the blocks of large bodies, and first requests on new connections. Kept connections whose
last request was good wait for neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from executors.gateway.wire.body_memory import Budget
from executors.gateway.wire.client_connection import LINGER_S, Connection
from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.client_limits import Limits
from executors.gateway.wire.fair_scheduler import Turns

Handler = Callable[[Exchange], Awaitable[None]]
Refuse = Callable[[Exchange, int, str], None]
"""Answers (status, why) in the form that clients of this server read."""

_LOOK_S = 0.25
_READ = 64 * 1024  # at most at once, of one client


class Server:
    """Listens, and keeps every connection within the limits. Counters: `cut` (clients that did not
    read), `late` (heads and bodies that did not come in time), `refused` (refused by a limit)."""

    def __init__(self, handler: Handler, refuse: Refuse, limits: Limits, budget: Budget) -> None:
        self.handler = handler
        self.refuse = refuse
        self.limits = limits
        self.budget = budget
        self.connections: set[Connection] = set()
        self.sending: set[Connection] = set()  # a body, of which something is here
        self.closing = False
        self.cut = self.late = self.refused = 0
        self.reading, self.first = Turns(), Turns()
        self.inbox = memoryview(bytearray(_READ))  # of all connections: nobody keeps it
        self._listeners: list[asyncio.Server] = []
        self._looking: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, shared: bool = False) -> int:
        """Listen; the port. OSError if the address cannot be had. shared: with other processes.
        May be called again for further addresses."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(self, loop), host, port, backlog=2048, reuse_port=shared or None
        )
        self._listeners.append(listener)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return int(listener.sockets[0].getsockname()[1])

    async def drain(self, limit_s: float) -> int:
        """Accept nothing new, let what is under way finish for at most `limit_s`; how many
        requests were cut off."""
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
                # What is written but not yet read by the client still has to leave.
                until = min(until, loop.time() + LINGER_S)
        cut = sum(connection.busy for connection in self.connections)
        for connection in list(self.connections):
            connection.cut_off()
        if self._looking is not None:
            self._looking.cancel()
        return cut

    def make_room(self) -> bool:
        """Whether bodies are within their budget, after the largest unfinished ones were refused:
        who sends a lot slowly makes room for those who send little."""
        while self.budget.used_bytes > self.budget.limit_bytes:
            largest = max(self.sending, key=lambda line: line.unfinished_bytes, default=None)
            if largest is None:
                return False
            self.refused += 1
            largest.turn_away(429, "too many large requests at once")
        return True

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = loop.time()
            for connection in [c for c in self.connections if c.deadline <= now]:
                connection.expire()
                await asyncio.sleep(0)  # a flood of them ends one an iteration
