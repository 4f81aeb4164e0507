"""HTTP/1.1 to engines: connections that are kept, requests that go out, answers that come in.

Owns connections and what is known when one breaks: whether the request had been sent.
`executors.gateway.engine_exchange` decides what a failure means for the engine. httptools parses.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import httptools

from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.fair_scheduler import Turns

Sink = Callable[[bytes], None]


class Broken(Exception):
    """The exchange failed. sent: the engine may have the request. stale: on a kept connection
    that ended before a byte of the answer, as happens when a server closes an idle one."""

    def __init__(self, why: str, sent: bool, stale: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.stale = stale


class NoSockets(Exception):
    """This process has no file descriptors left."""


class Answer:
    """An answer as it comes in. status: 0 until its head is here.

    Either `read` collects the whole body, or `pipe` hands every part to a sink as it arrives.
    """

    __slots__ = (
        "_head",
        "_limit",
        "_line",
        "_parts",
        "_sink",
        "_size",
        "complete",
        "done",
        "headers",
        "status",
    )

    def __init__(self, line: _Line, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._line = line
        self._head: asyncio.Future[None] = loop.create_future()
        self._parts: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._sink: Sink | None = None
        self.done: asyncio.Future[None] = loop.create_future()
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.complete = False

    async def begun(self) -> None:
        """Wait for the head; Broken."""
        await self._head

    async def read(self) -> bytes:
        """The whole body; Broken."""
        await self.done
        return b"".join(self._parts)

    def pipe(self, sink: Sink) -> asyncio.Future[None]:
        """Give every part to `sink`, now and as it comes; done at the end, or Broken.

        What `sink` raises ends the exchange and comes out of here or of the future.
        """
        self._sink = sink
        parts, self._parts = self._parts, []
        if parts:
            sink(b"".join(parts))
        return self.done

    def pause(self) -> None:
        """Read nothing more for now."""
        if not self.complete:  # by then the connection may be another exchange's
            self._line.pause()

    def resume(self) -> None:
        """Read on."""
        if not self.complete:
            self._line.resume()

    def close(self) -> None:
        """No interest any more: unless it is complete, the connection ends."""
        if not self.complete:
            self._line.abort()

    def head_came(self, status: int) -> None:
        self.status = status
        if not self._head.done():
            self._head.set_result(None)

    def came(self, parts: Sequence[bytes]) -> None:
        if self._sink is not None:
            if not self.done.done():
                try:
                    self._sink(parts[0] if len(parts) == 1 else b"".join(parts))
                except Exception as error:
                    self.failed(error)
                    self._line.abort()
            return
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size > self._limit:
            self.failed(Broken(f"an answer of more than {self._limit} bytes", True))
            self._line.abort()

    def ended(self) -> None:
        self.complete = True
        if not self.done.done():
            self.done.set_result(None)

    def failed(self, error: Exception) -> None:
        for future in (self._head, self.done):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more


class _Line(asyncio.Protocol):
    """One connection to an engine: one exchange at a time."""

    __slots__ = (
        "_address",
        "_answer",
        "_full",
        "_in_turn",
        "_interim",
        "_keep",
        "_loop",
        "_parser",
        "_parts",
        "_pool",
        "_transport",
        "_unsent",
        "_until_close",
        "reused",
        "since",
    )

    def __init__(self, pool: Pool, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._address = address
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._parts: list[bytes] = []
        self._unsent: deque[bytes] = deque()
        self._full = self._keep = self._interim = self._until_close = self._in_turn = False
        self.reused = False
        self.since = 0.0

    def send(self, head: bytes, body: Blocks, limit: int) -> Answer:
        answer = self._answer = Answer(self, self._loop, limit)
        assert self._transport is not None  # noqa: S101 - connected
        if len(body) == 1 and len(body[0]) < 65_536:
            self._transport.write(head + body[0])
        else:
            self._transport.write(head)
            self._unsent.extend(body)
            self._ask_for_turn()
        return answer

    def _ask_for_turn(self) -> None:
        """Blocks go out one an iteration: an engine that takes them as fast as we write would hold
        us up for 16 MB otherwise, 10 ms and more."""
        if self._unsent and not self._in_turn:
            self._in_turn = True
            self._pool.turns.wait(self._send_on)

    def _send_on(self) -> None:
        self._in_turn = False
        if self._unsent and not self._full and self.open and self._transport is not None:
            self._transport.write(self._unsent.popleft())
            self._ask_for_turn()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._ask_for_turn()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle(self) -> bool:
        """Open, and nothing to read: on a connection that nothing was asked on, that would be its
        end, which the loop has not seen to yet. What is sent after it is lost, and nobody could
        say any more that the engine did not die of it."""
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
            answer = self._answer
            if answer is not None:
                answer.failed(Broken(f"not HTTP: {error}", True))
            self.abort()
            return
        answer = self._answer
        if answer is None:  # bytes that nobody asked for
            self.abort()
            return
        if self._parts:
            parts, self._parts = self._parts, []
            answer.came(parts)
        if answer.complete:
            self._free(answer)

    def on_message_begin(self) -> None:
        self._until_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        if answer is not None:
            name = name.lower()
            answer.headers[name] = value
            if name in (b"content-length", b"transfer-encoding"):
                self._until_close = False

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        self._interim = status < 200
        if answer is None or self._interim:
            return
        self._keep = self._parser.should_keep_alive()
        answer.head_came(status)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._interim:
            self._answer.complete = True

    def _free(self, answer: Answer) -> None:
        self._answer = None
        self.reused = True
        if self._keep and self.open and not self._unsent:
            self._pool.give_back(self._address, self)
        else:
            self.abort()
        answer.ended()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self._address, self)
        answer, self._answer = self._answer, None
        if answer is None or answer.complete:
            return
        if self._until_close and answer.status and exc is None:
            answer.ended()
            return
        why = str(exc) if exc else "the connection was closed"
        answer.failed(Broken(why, True, stale=self.reused and not answer.status))


class Pool:
    """Kept connections by address. idle_s: how long one is kept, real seconds."""

    def __init__(self, connect_s: float, idle_s: float, answer_bytes: int) -> None:
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._answer_bytes = answer_bytes
        self._idle: dict[str, list[_Line]] = {}
        self._all: set[_Line] = set()
        self.turns = Turns()

    async def send(self, address: str, head: bytes, *body: bytes, fresh: bool = False) -> Answer:
        """Send a request and wait for the head of its answer; Broken. body: in blocks.

        fresh: not on a kept connection. Cancellation closes the connection.
        """
        line = None if fresh else self._kept(address)
        if line is None:
            line = await self._connected(address)
        answer = line.send(head, body, self._answer_bytes)
        try:
            await answer.begun()
        except BaseException:
            line.abort()
            raise
        return answer

    def close(self) -> None:
        """End every connection."""
        for line in list(self._all):
            line.abort()

    def tidy(self) -> None:
        """Close what has been idle for too long. Call about once a second."""
        now = asyncio.get_running_loop().time()
        for lines in self._idle.values():
            for line in [line for line in lines if now - line.since > self._idle_s]:
                line.abort()

    def give_back(self, address: str, line: _Line) -> None:
        line.since = asyncio.get_running_loop().time()
        self._idle.setdefault(address, []).append(line)

    def lost(self, address: str, line: _Line) -> None:
        self._all.discard(line)
        idle = self._idle.get(address)
        if idle and line in idle:
            idle.remove(line)
            if not idle:
                del self._idle[address]

    def _kept(self, address: str) -> _Line | None:
        idle = self._idle.get(address)
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while idle:
            line = idle.pop()
            if line.since >= oldest and line.idle:
                return line
            line.abort()
        return None

    async def _connected(self, address: str) -> _Line:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, line = await loop.create_connection(
                    lambda: _Line(self, address, loop), host.strip("[]"), int(port)
                )
        except OSError as error:
            if error.errno in (23, 24):  # ENFILE, EMFILE
                raise NoSockets(str(error)) from error
            raise Broken(str(error) or "no connection in time", False) from error
        except ValueError as error:
            raise Broken(f"{address}: {error}", False) from error
        self._all.add(line)
        return line
