"""One request of a client and the answer to it, on one connection.

Owns how an answer is written: whole, or as a stream of chunks. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from executors.gateway.wire.body_blocks import Blocks

_LINES = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}
_JSON = b"application/json"


class Line(Protocol):
    """The connection below an exchange."""

    def send(self, data: bytes) -> None:
        """Hand bytes to the client's socket; never waits."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """The answer is complete."""
        ...


class Exchange:
    """A request as it was read, and its answer as it is written.

    headers: by lower-case name, the last of each. gone: the client has left. blocked: the client
    reads slower than we write, until `on_unblocked` is called. good: its answer is no refusal.
    """

    __slots__ = (
        "_extra",
        "_line",
        "_open_stream",
        "begun",
        "blocked",
        "body",
        "ended",
        "gone",
        "good",
        "headers",
        "keep_alive",
        "method",
        "old_http",
        "on_unblocked",
        "peer",
        "target",
    )

    def __init__(self, line: Line, peer: str) -> None:
        self._line = line
        self.peer = peer
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body: Blocks = ()
        self.keep_alive = True
        self.old_http = False
        self.begun = self.ended = self.gone = self.blocked = self.good = False
        self.on_unblocked: Callable[[], None] | None = None
        self._extra = b""
        self._open_stream = b""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def header(self, name: bytes) -> str:
        """The header with that lower-case name; "" where it is absent."""
        return self.headers.get(name, b"").decode("latin-1")

    def add_header(self, name: bytes, value: bytes) -> None:
        """One more header of the answer; only before it begins. Control characters are dropped."""
        if value.isascii() and value.isalnum():
            clean = value
        else:
            clean = bytes(byte for byte in value if 32 <= byte < 127)
        self._extra += name + b": " + clean + b"\r\n"

    def answer(self, status: int, body: bytes, kind: bytes = _JSON) -> None:
        """A whole answer; one that has begun already is left alone."""
        if self.begun:
            return
        self.begun = True
        self.good = status < 400
        head = self._head(status, kind) + b"Content-Length: %d\r\n\r\n" % len(body)
        if self.method == b"HEAD":
            body = b""
        if len(body) < 65_536:
            self._line.send(head + body)
        else:
            self._line.send(head)
            self._line.send(body)
        self._end()

    def write(self, data: bytes, last: bool) -> None:
        """A part of an event stream; the first one begins it, the last one ends it."""
        if self.ended:
            return
        if not self.begun:
            self.begun = self.good = True
            head = self._head(200, b"text/event-stream; charset=utf-8")
            head += b"Cache-Control: no-cache\r\n"
            if self.old_http:  # HTTP/1.0 knows no chunks: the end of the connection is the end
                self.keep_alive = False
                self._open_stream = head + b"\r\n"
            else:
                self._open_stream = head + b"Transfer-Encoding: chunked\r\n\r\n"
        head, self._open_stream = self._open_stream, b""
        if self.old_http:
            self._line.send(head + data)
        elif data:
            end = b"\r\n0\r\n\r\n" if last else b"\r\n"
            self._line.send(b"%s%x\r\n%s%s" % (head, len(data), data, end))
        elif last:
            self._line.send(head + b"0\r\n\r\n")
        if last:
            self._end()

    def _head(self, status: int, kind: bytes) -> bytes:
        line = _LINES.get(status) or b"%d Other" % status
        close = b"" if self.keep_alive else b"Connection: close\r\n"
        return b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%s%s" % (line, kind, self._extra, close)

    def _end(self) -> None:
        self.ended = True
        self._line.finished(self)
