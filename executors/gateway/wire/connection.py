"""One client's connection: reading its requests within their limits, and closing.

Owns the order of requests on a connection, and what is done with those that break a limit. Parsing
is httptools' (llhttp).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from executors.gateway.wire.blocks import Gathering
from executors.gateway.wire.exchange import Exchange

if TYPE_CHECKING:
    from executors.gateway.wire.server import Server

log = logging.getLogger(__name__)

LINGER_S = 2.0  # for a refused client to stop sending, so that it sees the answer and no reset
_NEVER = float("inf")
_HIGH_WATER = 64 * 1024
_MOST_AHEAD = 32  # requests sent before the answers to earlier ones
_LARGE = 64 * 1024  # of what is read at once: its sender waits for a turn to be read again


class Connection(asyncio.Protocol):
    """One client. deadline: loop time at which it has kept us waiting for too long."""

    __slots__ = (
        "_body",
        "_cut_off",
        "_exchange",
        "_head_size",
        "_ignoring",
        "_incoming",
        "_loop",
        "_parser",
        "_peer",
        "_raw_size",
        "_ready",
        "_refusal",
        "_server",
        "_task",
        "_transport",
        "_trusted",
        "_write_deadline",
        "deadline",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._incoming: Exchange | None = None  # being read
        self._exchange: Exchange | None = None  # being answered
        self._ready: deque[Exchange] = deque()  # read, to be answered (pipelining)
        self._body = Gathering()
        self._head_size = self._raw_size = 0
        self._trusted = False  # its last request was a good one
        self._refusal: tuple[int, str] | None = None
        self._ignoring = self._cut_off = False
        self._task: asyncio.Task[None] | None = None
        self._write_deadline = _NEVER
        self.deadline = _NEVER

    # -- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.connections.add(self)
        self.deadline = self._loop.time() + self._server.limits.head_s

    def data_received(self, data: bytes) -> None:
        if len(data) >= _LARGE and self._transport is not None:
            self._transport.pause_reading()
            self._server.reading.wait(self._read_on)
        if self._ignoring:
            return
        reading_head = self._incoming is None or not self._incoming.method
        self._raw_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refusal = self._refusal or (400, "no upgrade of the protocol is offered")
        except httptools.HttpParserError as error:
            self._refusal = self._refusal or (400, f"not HTTP: {error}")
        limits = self._server.limits
        incoming = self._incoming
        if incoming is not None and self._refusal is None:
            if not incoming.method and reading_head:
                self._head_size += len(data)
                if self._head_size > limits.head_bytes:
                    self._refusal = (431, f"the head exceeds {limits.head_bytes} bytes")
            elif self._raw_size > 2 * limits.body_bytes + limits.slack_bytes:
                self._refusal = (413, "the body's encoding is too wasteful")
        if self._refusal is not None:
            self._server.refused += 1
            self._ignoring = True
            if self.busy:
                self._refuse()
            else:
                self._server.first.take(self._refuse)
        elif self._body.size:
            self._server.make_room()

    def _read_on(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._ready:
            transport.resume_reading()

    def _refuse(self) -> None:
        if self._refusal is not None:
            self.turn_away(*self._refusal)

    def eof_received(self) -> bool:
        return False  # who says no more does not wait for an answer either

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._give_back_unfinished()
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

    # -- the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._refusal is not None:
            return
        self._incoming = Exchange(self, self._peer)
        self._head_size = self._raw_size = 0
        self.deadline = self._next_deadline()

    def on_url(self, part: bytes) -> None:
        if self._incoming is not None:
            self._incoming.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self._incoming
        if incoming is not None and not incoming.method:
            self._head_size += len(name) + len(value) + 4
            incoming.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        incoming = self._incoming
        if incoming is None:
            return
        incoming.method = self._parser.get_method()
        incoming.keep_alive = self._parser.should_keep_alive()
        incoming.old_http = self._parser.get_http_version() == "1.0"
        limits, headers = self._server.limits, incoming.headers
        length = headers.get(b"content-length", b"0")
        if self._head_size > limits.head_bytes:
            self._refusal = (431, f"the head exceeds {limits.head_bytes} bytes")
        elif headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self._refusal = (415, "compressed bodies are not accepted")
        elif not length.isdigit() or int(length[:18]) > limits.body_bytes:
            self._refusal = (413, f"the body exceeds {limits.body_bytes} bytes")
        elif headers.get(b"expect", b"").lower() == b"100-continue" and self._exchange is None:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.deadline = self._next_deadline()

    def on_body(self, part: bytes) -> None:
        if self._refusal is not None or self._ignoring:
            return
        self._body.add(part)
        self._server.budget.take(len(part))
        self._server.sending.add(self)
        if self._body.size > self._server.limits.body_bytes:
            self._refusal = (413, f"the body exceeds {self._server.limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or self._refusal is not None:
            return
        self._server.budget.give_back(self._body.size)
        self._server.sending.discard(self)
        incoming.body = self._body.take()
        if self._exchange is None:
            self._exchange = incoming
            if self._trusted:
                self._begin()
            else:
                self._server.first.take(self._begin)
        elif len(self._ready) >= _MOST_AHEAD:
            self._refusal = (429, f"more than {_MOST_AHEAD} requests ahead of their answers")
        else:
            self._ready.append(incoming)
            if self._transport is not None:
                self._transport.pause_reading()

    # -- answering ----------------------------------------------------------------------------

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
        return self._body.size

    @property
    def busy(self) -> bool:
        """Whether a request is being answered or waits for its turn."""
        return self._exchange is not None or bool(self._ready)

    def close_if_idle(self) -> None:
        """Close unless a request is under way."""
        if not self.busy and self._incoming is None:
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
        self._ignoring, self._refusal = True, None
        incoming, self._incoming = self._incoming, None
        self._give_back_unfinished()
        if self.busy:  # it is answered first; what came behind it is dropped
            self._ready.clear()
            return
        exchange = incoming or Exchange(self, self._peer)
        exchange.keep_alive = False
        self._exchange = exchange
        self._server.refuse(exchange, status, why)

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        transport = self._transport
        if transport is None:
            return
        if now >= self._write_deadline:
            self._server.cut += 1
            transport.abort()
        elif self._ignoring or transport.is_closing():
            transport.abort()
        elif self._incoming is not None:
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

    def _give_back_unfinished(self) -> None:
        self._server.budget.give_back(self._body.size)
        self._server.sending.discard(self)
        self._body.take()

    def _next_deadline(self) -> float:
        limits, now = self._server.limits, self._loop.time()
        if self.busy:
            due = _NEVER
        elif self._incoming is None:
            due = now + limits.idle_s
        elif self._incoming.method:
            due = now + limits.body_s
        else:
            due = now + limits.head_s
        return min(due, self._write_deadline)
