"""One client's connection: the order of its requests, how long it may keep us waiting, and closing.

Owns what is done with requests that break a limit. Reading one is `wire.reading`'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.request_reader import Reading

if TYPE_CHECKING:
    from executors.gateway.wire.http_server import Server

log = logging.getLogger(__name__)

LINGER_S = 2.0  # for a refused client to stop sending, so that it sees the answer and no reset
_NEVER = float("inf")
_HIGH_WATER = 64 * 1024
_MOST_AHEAD = 32  # requests sent before the answers to earlier ones


class Connection(asyncio.BufferedProtocol):
    """One client. deadline: loop time at which it has kept us waiting for too long."""

    __slots__ = (
        "_cut_off",
        "_exchange",
        "_ignoring",
        "_loop",
        "_reading",
        "_ready",
        "_server",
        "_task",
        "_transport",
        "_trusted",
        "_write_deadline",
        "deadline",
        "peer",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._reading = Reading(self, server.limits, server.budget)
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        self._exchange: Exchange | None = None  # being answered
        self._ready: deque[Exchange] = deque()  # read, to be answered (pipelining)
        self._trusted = False  # its last request was a good one
        self._ignoring = self._cut_off = False
        self._task: asyncio.Task[None] | None = None
        self._write_deadline = _NEVER
        self.deadline = _NEVER

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.connections.add(self)
        self.deadline = self._loop.time() + self._server.limits.head_s

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.inbox

    def buffer_updated(self, nbytes: int) -> None:
        if nbytes == len(self._server.inbox) and self._transport is not None:
            self._transport.pause_reading()  # its sender waits for a turn to be read again
            self._server.reading.wait(self._read_on)
        if self._ignoring:
            return
        reading = self._reading
        reading.feed(self._server.inbox[:nbytes])
        if reading.refusal is not None:
            self._server.refused += 1
            self._ignoring = True
            if self.busy:
                self._refuse()
            else:
                self._server.first.take(self._refuse)
        elif reading.body.size:
            self._server.sending.add(self)
            self._server.make_room()

    def _read_on(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._ready:
            transport.resume_reading()

    def _refuse(self) -> None:
        if self._reading.refusal is not None:
            self.turn_away(*self._reading.refusal)

    def eof_received(self) -> bool:
        return False  # who says no more does not wait for an answer either

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._reading.stop()
        self._server.sending.discard(self)
        for exchange in (*self._ready, self._exchange):
            if exchange is not None:
                exchange.gone = not self._cut_off
        self._ready.clear()
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

    def moved(self) -> None:
        """A head has begun, or ended: another time limit holds."""
        self.deadline = self._next_deadline()

    def came(self, exchange: Exchange) -> None:
        """A whole request."""
        self._server.sending.discard(self)
        if self._exchange is None:
            self._exchange = exchange
            if self._trusted:
                self._begin()
            else:
                size = sum(map(len, exchange.body))
                self._server.budget.take(size)
                self._server.first.take(lambda: self._begin_held(size))
        elif len(self._ready) >= _MOST_AHEAD:
            self._reading.refuse(429, f"more than {_MOST_AHEAD} requests ahead of their answers")
        else:
            self._ready.append(exchange)
            if self._transport is not None:
                self._transport.pause_reading()

    # -- answering ----------------------------------------------------------------------------

    def _begin_held(self, size: int) -> None:
        """Its turn has come: the handler counts its body from here on."""
        self._server.budget.give_back(size)
        self._begin()

    def _begin(self) -> None:
        exchange, transport = self._exchange, self._transport
        if exchange is None or transport is None or transport.is_closing():
            return  # it left before its turn came
        self.deadline = self._next_deadline()
        if self._server.closing:
            exchange.keep_alive = False
        self._task = self._loop.create_task(self._answer(exchange))

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._server.handler(exchange)
        except asyncio.CancelledError:
            if not exchange.gone:  # cancelled by our own end
                self.abort()
            raise
        except Exception:
            log.exception("unhandled error in a request")
            if exchange.begun:
                self.abort()
                return
            self._server.refuse(exchange, 500, "internal error")
        if not exchange.ended:
            self.abort()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, exchange: Exchange) -> None:
        self._exchange = self._task = None
        self._trusted = exchange.good
        if not exchange.keep_alive or self._server.closing or self._ignoring:
            self._close()
        elif self._ready:
            self._exchange = self._ready.popleft()
            self._begin()
        else:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
            self.deadline = self._next_deadline()

    @property
    def unfinished_bytes(self) -> int:
        """What is here of a body that is still being sent."""
        return self._reading.body.size

    @property
    def busy(self) -> bool:
        """Whether a request is being answered or waits for its turn."""
        return self._exchange is not None or bool(self._ready)

    def close_if_idle(self) -> None:
        """Close unless a request is under way."""
        if not self.busy and self._reading.exchange is None:
            self._close()

    def abort(self) -> None:
        """Away with it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def cut_off(self) -> None:
        """As `abort`, but by our own end: the client did not leave."""
        self._cut_off = True
        self.abort()

    def turn_away(self, status: int, why: str) -> None:
        """Refuse what is being read, and close once the client had time to see why."""
        self._ignoring = True
        incoming = self._reading.stop()
        self._server.sending.discard(self)
        if self.busy:  # it is answered first; what came behind it is dropped
            self._ready.clear()
            return
        exchange = incoming or Exchange(self, self.peer)
        exchange.keep_alive = False
        self._exchange = exchange
        self._server.refuse(exchange, status, why)

    def expire(self) -> None:
        """The deadline has passed, unless it was moved meanwhile."""
        transport, now = self._transport, self._loop.time()
        if transport is None or now < self.deadline:
            return
        if now >= self._write_deadline:
            self._server.cut += 1
            transport.abort()
        elif self._ignoring or transport.is_closing():
            transport.abort()
        elif self._reading.exchange is not None:
            self._server.late += 1
            self.turn_away(408, "the request did not arrive in time")
        else:
            transport.close()

    def _close(self) -> None:
        """Everything was answered. Let a client that still sends see the answer before a reset."""
        transport = self._transport
        if transport is None:
            return
        self.deadline = self._loop.time() + LINGER_S
        if self._ignoring and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _next_deadline(self) -> float:
        limits, now = self._server.limits, self._loop.time()
        if self.busy:
            due = _NEVER
        elif self._reading.exchange is None:
            due = now + limits.idle_s
        elif self._reading.exchange.method:
            due = now + limits.body_s
        else:
            due = now + limits.head_s
        return min(due, self._write_deadline)
