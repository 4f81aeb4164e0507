"""HTTP/1.1 client for engines: idle connections, requests and responses.

`TransportError` tells whether the engine may have received the request. `engine_exchange` decides
what a failure means for the engine. httptools parses responses.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import httptools

from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.fair_scheduler import FairScheduler
from topics.error_text import error_text

Sink = Callable[[bytes], None]


class TransportError(Exception):
    """The exchange failed. sent: whether the engine may have received the request. stale: whether a
    reused connection ended before the first byte of a response, which happens if a server closes an
    idle connection."""

    def __init__(self, why: str, sent: bool, stale: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.stale = stale


class NoFileDescriptors(Exception):
    """This process has no file descriptors left."""


class EngineResponse:
    """The response of an engine while it arrives. status: 0 until the head has arrived.

    Use either `read` for the whole body or `pipe` to get each part as it arrives.
    """

    __slots__ = (
        "_connection",
        "_head",
        "_limit",
        "_parts",
        "_sink",
        "_size",
        "complete",
        "done",
        "headers",
        "status",
    )

    def __init__(
        self, connection: _EngineConnection, loop: asyncio.AbstractEventLoop, limit: int
    ) -> None:
        self._connection = connection
        self._head: asyncio.Future[None] = loop.create_future()
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._sink: Sink | None = None
        self.done: asyncio.Future[None] = loop.create_future()
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.complete = False

    async def wait_for_head(self) -> None:
        """Wait until status and headers have arrived. Raises TransportError."""
        await self._head

    async def read(self) -> bytes:
        """Wait for the whole body and return it. Raises TransportError."""
        await self.done
        return b"".join(self._parts)

    def pipe(self, sink: Sink) -> asyncio.Future[None]:
        """Give each part of the body to `sink` as it arrives. The future completes at the end of
        the body, or with TransportError.

        An exception in `sink` aborts the exchange and is raised here or set on the future.
        """
        self._sink = sink
        parts, self._parts = self._parts, []
        if parts:
            sink(b"".join(parts))
        return self.done

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if not self.complete:  # once complete, the connection may serve another exchange
            self._connection.pause()

    def resume(self) -> None:
        """Continue reading."""
        if not self.complete:
            self._connection.resume()

    def close(self) -> None:
        """Abort the connection unless the response is complete."""
        if not self.complete:
            self._connection.abort()

    def on_head(self, status: int) -> None:
        self.status = status
        if not self._head.done():
            self._head.set_result(None)

    def on_body(self, parts: Sequence[bytes]) -> None:
        if self._sink is not None:
            if not self.done.done():
                try:
                    self._sink(parts[0] if len(parts) == 1 else b"".join(parts))
                except Exception as error:
                    self.fail(error)
                    self._connection.abort()
            return
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size > self._limit:
            self.fail(TransportError(f"an answer of more than {self._limit} bytes", True))
            self._connection.abort()

    def on_end(self) -> None:
        self.complete = True
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        for future in (self._head, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as read: no task may wait for it


class _EngineConnection(asyncio.Protocol):
    """One connection to an engine, for one exchange at a time."""

    __slots__ = (
        "_address",
        "_interim",
        "_keep_alive",
        "_loop",
        "_parser",
        "_parts",
        "_pool",
        "_response",
        "_transport",
        "_unsent",
        "_until_close",
        "_write_paused",
        "_write_scheduled",
        "idle_since_s",
        "reused",
    )

    def __init__(self, pool: EnginePool, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._address = address
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._response: EngineResponse | None = None
        self._parts: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._write_paused = self._keep_alive = self._interim = self._until_close = (
            self._write_scheduled
        ) = False
        self.reused = False
        self.idle_since_s = 0.0

    def send(self, head: bytes, body: Blocks, limit: int) -> EngineResponse:
        answer = self._response = EngineResponse(self, self._loop, limit)
        assert self._transport is not None  # noqa: S101 - connected
        if len(body) == 1 and len(body[0]) < 65_536:
            self._transport.write(head + body[0])
        else:
            self._transport.write(head)
            self._unsent.extend(body)
            self._schedule_write()
        return answer

    def _schedule_write(self) -> None:
        """Write one block in each iteration of the event loop. Without pauses, a large body to an
        engine that reads fast enough would delay all other requests."""
        if self._unsent and not self._write_scheduled:
            self._write_scheduled = True
            self._pool.write_scheduler.queue(self._write_next_block)

    def _write_next_block(self) -> None:
        self._write_scheduled = False
        if self._unsent and not self._write_paused and self.open and self._transport is not None:
            self._transport.write(self._unsent.popleft())
            self._schedule_write()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._schedule_write()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        """Whether the connection is open and has nothing to read. If an idle connection is
        readable, the engine has closed it; a request sent on it would be lost, as if it had crashed
        the engine."""
        if not self.open or self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def pause(self) -> None:
        if self.open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.open and self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer = self._response
            if answer is not None:
                answer.fail(TransportError(f"not HTTP: {error}", True))
            self.abort()
            return
        answer = self._response
        if answer is None:  # the engine sent data although no request is open
            self.abort()
            return
        if self._parts:
            parts, self._parts = self._parts, []
            answer.on_body(parts)
        if answer.complete:
            self._finish(answer)

    def on_message_begin(self) -> None:
        self._until_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._response
        if answer is not None:
            name = name.lower()
            answer.headers[name] = value
            if name in (b"content-length", b"transfer-encoding"):
                self._until_close = False

    def on_headers_complete(self) -> None:
        answer, status = self._response, self._parser.get_status_code()
        self._interim = status < 200
        if answer is None or self._interim:
            return
        self._keep_alive = self._parser.should_keep_alive()
        answer.on_head(status)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._response is not None and not self._interim:
            self._response.complete = True

    def _finish(self, answer: EngineResponse) -> None:
        self._response = None
        self.reused = True
        if self._keep_alive and self.open and not self._unsent:
            self._pool.keep(self._address, self)
        else:
            self.abort()
        answer.on_end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.remove(self._address, self)
        answer, self._response = self._response, None
        if answer is None or answer.complete:
            return
        if self._until_close and answer.status and exc is None:
            answer.on_end()
            return
        why = str(exc) if exc else "the connection was closed"
        answer.fail(TransportError(why, True, stale=self.reused and not answer.status))


class EnginePool:
    """Idle connections by address. idle_s: how long an idle connection is kept, in real seconds."""

    def __init__(self, connect_s: float, idle_s: float, answer_bytes: int) -> None:
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._answer_bytes = answer_bytes
        self._idle: dict[str, list[_EngineConnection]] = {}
        self._connections: set[_EngineConnection] = set()
        self.write_scheduler = FairScheduler()

    async def send(
        self, address: str, head: bytes, *body: bytes, new_connection: bool = False
    ) -> EngineResponse:
        """Send a request and wait for the head of its response. Raises TransportError or
        NoFileDescriptors. body: in blocks. new_connection: whether to open a new connection instead
        of using an idle one. Cancellation closes the connection.
        """
        connection = None if new_connection else self._take_idle(address)
        if connection is None:
            connection = await self._connect(address)
        answer = connection.send(head, body, self._answer_bytes)
        try:
            await answer.wait_for_head()
        except BaseException:
            connection.abort()
            raise
        return answer

    def close(self) -> None:
        """Abort all connections."""
        for connection in list(self._connections):
            connection.abort()

    def close_idle(self) -> None:
        """Close connections that were idle for longer than `idle_s`. Call this about once a
        second."""
        now = asyncio.get_running_loop().time()
        for connections in self._idle.values():
            for connection in [
                connection
                for connection in connections
                if now - connection.idle_since_s > self._idle_s
            ]:
                connection.abort()

    def keep(self, address: str, connection: _EngineConnection) -> None:
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.setdefault(address, []).append(connection)

    def remove(self, address: str, connection: _EngineConnection) -> None:
        self._connections.discard(connection)
        idle = self._idle.get(address)
        if idle and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[address]

    def _take_idle(self, address: str) -> _EngineConnection | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while idle:
            connection = idle.pop()
            if connection.idle_since_s >= oldest and connection.reusable:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: str) -> _EngineConnection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: _EngineConnection(self, address, loop), host.strip("[]"), int(port)
                )
        except OSError as error:
            if error.errno in (23, 24):  # ENFILE, EMFILE
                raise NoFileDescriptors(str(error)) from error
            raise TransportError(error_text(error, "no connection in time"), False) from error
        except ValueError as error:
            raise TransportError(f"{address}: {error}", False) from error
        self._connections.add(connection)
        return connection
