"""Serve the requests of one client connection in order, within the time limits of its server.

If a request exceeds a limit, it is refused, and the connection closes. `wire.request_reader` reads
the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.fair_scheduler import FairScheduler
from executors.gateway.wire.request_reader import RequestReader

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]
RefusalWriter = Callable[[Exchange, int, str], None]
"""Writes a refusal (status, reason) in the error format of this server."""

# real seconds after a refusal in which the client can read the response before its connection is
# reset
LINGER_S = 2.0
_NEVER = float("inf")
_WRITE_BUFFER_BYTES = 64 * 1024
_MAX_PIPELINED = 32  # maximum of requests that wait while an earlier one is answered


class ConnectionServer(Protocol):
    """The state that all connections of one server share."""

    handler: Handler
    refuse: RefusalWriter
    limits: ClientLimits
    body_memory: BodyMemory
    read_buffer: memoryview
    read_scheduler: FairScheduler
    first_request_scheduler: FairScheduler
    connections: set[ClientConnection]
    receiving_bodies: set[ClientConnection]
    closing: bool
    slow_readers_cut: int
    requests_timed_out: int
    requests_over_limit: int

    def free_body_memory(self) -> bool:
        """Refuse the largest incomplete bodies until all bodies fit into memory; returns whether
        they fit."""
        ...


class ClientConnection(asyncio.BufferedProtocol):
    """The connection of one client. deadline: time of the loop at which `expire` ends the current
    wait."""

    __slots__ = (
        "_aborted_by_server",
        "_discarding_input",
        "_exchange",
        "_last_succeeded",
        "_loop",
        "_pipelined",
        "_reader",
        "_server",
        "_task",
        "_transport",
        "_write_deadline",
        "deadline",
        "peer",
    )

    def __init__(self, server: ConnectionServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._reader = RequestReader(self, server.limits, server.body_memory)
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self._exchange: Exchange | None = None  # the request that is being answered
        self._pipelined: deque[Exchange] = deque()  # complete requests that wait for their turn
        self._last_succeeded = False  # whether the last request was not refused
        self._discarding_input = self._aborted_by_server = False
        self._task: asyncio.Task[None] | None = None
        self._write_deadline = _NEVER
        self.deadline = _NEVER

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.connections.add(self)
        self.deadline = self._loop.time() + self._server.limits.head_s

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes == len(self._server.read_buffer) and self._transport is not None:
            # stop reading until the scheduler has processed the data
            self._transport.pause_reading()
            self._server.read_scheduler.queue(self._resume_reading)
        if self._discarding_input:
            return
        reading = self._reader
        reading.feed(self._server.read_buffer[:nbytes])
        if reading.refusal is not None:
            self._server.requests_over_limit += 1
            self._discarding_input = True
            if self.busy:
                self._send_refusal()
            else:
                self._server.first_request_scheduler.run_or_queue(self._send_refusal)
        elif reading.body.size:
            self._server.receiving_bodies.add(self)
            self._server.free_body_memory()

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._pipelined:
            transport.resume_reading()

    def _send_refusal(self) -> None:
        if self._reader.refusal is not None:
            self.refuse_and_close(*self._reader.refusal)

    def eof_received(self) -> bool:
        # False closes the connection: the client has ended its side and awaits no response
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._reader.discard()
        self._server.receiving_bodies.discard(self)
        for exchange in (*self._pipelined, self._exchange):
            if exchange is not None:
                exchange.client_gone = not self._aborted_by_server
        self._pipelined.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._write_deadline = self._loop.time() + self._server.limits.write_s
        self.deadline = min(self.deadline, self._write_deadline)
        if self._exchange is not None:
            self._exchange.blocked = True

    def resume_writing(self) -> None:
        self._write_deadline = _NEVER
        self.deadline = self._next_deadline()
        exchange = self._exchange
        if exchange is not None:
            exchange.blocked = False
            if exchange.on_unblocked is not None:
                exchange.on_unblocked()

    # -- reading ------------------------------------------------------------------------------

    def head_boundary(self) -> None:
        """Set the time limit of the next phase: a request head has begun or ended."""
        self.deadline = self._next_deadline()

    def on_request(self, exchange: Exchange) -> None:
        """Answer a complete request, or queue it if an earlier one is being answered."""
        self._server.receiving_bodies.discard(self)
        if self._exchange is None:
            self._exchange = exchange
            if self._last_succeeded:
                self._begin()
            else:
                size = sum(map(len, exchange.body))
                self._server.body_memory.reserve(size)
                self._server.first_request_scheduler.run_or_queue(lambda: self._begin_queued(size))
        elif len(self._pipelined) >= _MAX_PIPELINED:
            self._reader.refuse(429, f"more than {_MAX_PIPELINED} pipelined requests")
        else:
            self._pipelined.append(exchange)
            if self._transport is not None:
                self._transport.pause_reading()

    # -- answering ----------------------------------------------------------------------------

    def _begin_queued(self, size: int) -> None:
        """Answer a request that the scheduler delayed. From now on the handler is responsible for
        releasing the memory of its body."""
        self._server.body_memory.release(size)
        self._begin()

    def _begin(self) -> None:
        exchange, transport = self._exchange, self._transport
        if exchange is None or transport is None or transport.is_closing():
            return  # the client left while the scheduler delayed the request
        self.deadline = self._next_deadline()
        if self._server.closing:
            exchange.keep_alive = False
        self._task = self._loop.create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._server.handler(exchange)
        except asyncio.CancelledError:
            if not exchange.client_gone:  # cancelled because the server stops
                self.abort()
            raise
        except Exception:
            log.exception("unhandled error in a request")
            if exchange.response_started:
                self.abort()
                return
            self._server.refuse(exchange, 500, "internal error")
        if not exchange.response_ended:
            self.abort()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def on_response_end(self, exchange: Exchange) -> None:
        self._exchange = self._task = None
        self._last_succeeded = exchange.succeeded
        if not exchange.keep_alive or self._server.closing or self._discarding_input:
            self._close()
        elif self._pipelined:
            self._exchange = self._pipelined.popleft()
            self._begin()
        else:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
            self.deadline = self._next_deadline()

    @property
    def partial_body_bytes(self) -> int:
        """Bytes received of a body that is not complete yet."""
        return self._reader.body.size

    @property
    def busy(self) -> bool:
        """Whether a request is being answered or waits to be answered."""
        return self._exchange is not None or bool(self._pipelined)

    def close_if_idle(self) -> None:
        """Close unless a request is being read or answered."""
        if not self.busy and self._reader.exchange is None:
            self._close()

    def abort(self) -> None:
        """Close at once and drop unsent data."""
        if self._transport is not None:
            self._transport.abort()

    def abort_unfinished(self) -> None:
        """Abort because the server stops. Its exchanges are not marked as if the client had
        left."""
        self._aborted_by_server = True
        self.abort()

    def refuse_and_close(self, status: int, why: str) -> None:
        """Refuse the request that is being read, then close once the client could read the
        response."""
        self._discarding_input = True
        incoming = self._reader.discard()
        self._server.receiving_bodies.discard(self)
        if self.busy:  # finish the current request, and drop the requests that wait behind it
            self._pipelined.clear()
            return
        exchange = incoming or Exchange(self, self.peer)
        exchange.keep_alive = False
        self._exchange = exchange
        self._server.refuse(exchange, status, why)

    def expire(self) -> None:
        """End the current wait if its deadline has passed: refuse with 408, abort or close."""
        transport, now = self._transport, self._loop.time()
        if transport is None or now < self.deadline:
            return
        if now >= self._write_deadline:
            self._server.slow_readers_cut += 1
            transport.abort()
        elif self._discarding_input or transport.is_closing():
            transport.abort()
        elif self._reader.exchange is not None:
            self._server.requests_timed_out += 1
            self.refuse_and_close(408, "the request did not arrive in time")
        else:
            transport.close()

    def _close(self) -> None:
        """Close after the last response. If the client is still sending, wait `LINGER_S` first,
        because a reset would discard the response."""
        transport = self._transport
        if transport is None:
            return
        self.deadline = self._loop.time() + LINGER_S
        if self._discarding_input and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _next_deadline(self) -> float:
        limits, now = self._server.limits, self._loop.time()
        if self.busy:
            due = _NEVER
        elif self._reader.exchange is None:
            due = now + limits.idle_s
        elif self._reader.exchange.method:
            due = now + limits.body_s
        else:
            due = now + limits.head_s
        return min(due, self._write_deadline)
