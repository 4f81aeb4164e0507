"""HTTP/1.1 for clients who may be slow, broken or hostile: every wait and every size is bounded.

Owns client connections: reading requests, their limits, and closing. What is answered is the
handler's business (`wire.exchange`). Parsing is httptools' (llhttp).

Limits, all declared in `Limits`: a request's head has a size and a time, its body a size and a
time, all bodies together a budget; a client that does not read what it asked for is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

import httptools

from executors.gateway.wire.budget import Budget
from executors.gateway.wire.exchange import Exchange

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]
Refuse = Callable[[Exchange, int, str], None]
"""Answers (status, why) in the form that clients of this server read."""

_NEVER = float("inf")
_LOOK_S = 0.25
_LINGER_S = 2.0  # for a refused client to stop sending, so that it sees the answer and no reset
_HIGH_WATER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Real seconds and bytes. idle_s: of a connection between requests. write_s: how long a client
    may not read. slack_bytes: what chunked encoding may add to a body beyond twice its size."""

    head_bytes: int = 32 * 1024
    head_s: float = 10.0
    body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 30.0
    slack_bytes: int = 64 * 1024


class Server:
    """Listens, and keeps every connection within the limits. Counters: `cut` (clients that did not
    read), `late` (heads and bodies that did not come in time), `refused` (refused by a limit)."""

    def __init__(self, handler: Handler, refuse: Refuse, limits: Limits, budget: Budget) -> None:
        self.handler = handler
        self.refuse = refuse
        self.limits = limits
        self.budget = budget
        self.connections: set[Connection] = set()
        self.closing = False
        self.cut = self.late = self.refused = 0
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
                until = min(until, loop.time() + _LINGER_S)
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
            largest = max(self.connections, key=lambda line: line.unfinished_bytes, default=None)
            if largest is None or not largest.unfinished_bytes:
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
                connection.expire(now)


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
        "_write_deadline",
        "deadline",
        "unfinished_bytes",
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
        self._body: bytes | bytearray = b""
        self._head_size = self._raw_size = self.unfinished_bytes = 0
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
            self.turn_away(*self._refusal)
        elif self.unfinished_bytes:
            self._server.make_room()

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
        size = self.unfinished_bytes = self.unfinished_bytes + len(part)
        self._server.budget.take(len(part))
        if size > self._server.limits.body_bytes:
            self._refusal = (413, f"the body exceeds {self._server.limits.body_bytes} bytes")
        elif not self._body:
            self._body = part
        elif isinstance(self._body, bytes):  # many small parts must not cost more than one
            self._body = bytearray(self._body) + part
        else:
            self._body += part

    def on_message_complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None or self._refusal is not None:
            return
        incoming.body = bytes(self._body)
        self._body = b""
        self._server.budget.give_back(self.unfinished_bytes)
        self.unfinished_bytes = 0
        if self._exchange is None:
            self._begin(incoming)
        else:
            self._ready.append(incoming)
            if self._transport is not None:
                self._transport.pause_reading()

    # -- answering ----------------------------------------------------------------------------

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
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
        if not exchange.keep_alive or self._server.closing or self._ignoring:
            self._close()
        elif self._ready:
            self._begin(self._ready.popleft())
        else:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
            self.deadline = self._next_deadline()

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
        self._ignoring = True
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
        self.deadline = self._loop.time() + _LINGER_S
        if self._ignoring and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _give_back_unfinished(self) -> None:
        self._server.budget.give_back(self.unfinished_bytes)
        self.unfinished_bytes = 0
        self._body = b""

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
