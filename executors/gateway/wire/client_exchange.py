"""One HTTP request of a client and the response to it.

A response is either one whole body or an event stream in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from executors.gateway.wire.body_blocks import Blocks

_STATUS_LINES = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}
_JSON_TYPE = b"application/json"


class ResponseWriter(Protocol):
    """The connection to which an exchange writes its response."""

    def send(self, data: bytes) -> None:
        """Write bytes to the client's socket without waiting."""
        ...

    def on_response_end(self, exchange: Exchange) -> None:
        """Called when the response of `exchange` is complete."""
        ...


class Exchange:
    """A complete request and the state of its response.

    headers: the last value of each header, by lower-case name. client_gone: whether the client has
    closed the connection. blocked: whether the client reads more slowly than the response is
    written; `on_unblocked` is called when it has caught up. succeeded: whether the status of the
    response is below 400.
    """

    __slots__ = (
        "_extra_headers",
        "_stream_head",
        "_writer",
        "blocked",
        "body",
        "client_gone",
        "headers",
        "is_http10",
        "keep_alive",
        "method",
        "on_unblocked",
        "peer",
        "response_ended",
        "response_started",
        "succeeded",
        "target",
    )

    def __init__(self, line: ResponseWriter, peer: str) -> None:
        self._writer = line
        self.peer = peer
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body: Blocks = ()
        self.keep_alive = True
        self.is_http10 = False
        self.response_started = self.response_ended = self.client_gone = self.blocked = (
            self.succeeded
        ) = False
        self.on_unblocked: Callable[[], None] | None = None
        self._extra_headers = b""
        self._stream_head = b""

    @property
    def path(self) -> str:
        """The target without its query string."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def header(self, name: bytes) -> str:
        """The value of the header `name` (lower case), "" if the request does not have the
        header."""
        return self.headers.get(name, b"").decode("latin-1")

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header to the response, before the response begins. Characters other than printable
        ASCII are removed."""
        if value.isascii() and value.isalnum():
            clean = value
        else:
            clean = bytes(byte for byte in value if 32 <= byte < 127)
        self._extra_headers += name + b": " + clean + b"\r\n"

    def answer(self, status: int, body: bytes, kind: bytes = _JSON_TYPE) -> None:
        """Send a whole response. Does nothing if a response has already begun."""
        if self.response_started:
            return
        self.response_started = True
        self.succeeded = status < 400
        head = self._head(status, kind) + b"Content-Length: %d\r\n\r\n" % len(body)
        if self.method == b"HEAD":
            body = b""
        if len(body) < 65_536:
            self._writer.send(head + body)
        else:
            self._writer.send(head)
            self._writer.send(body)
        self._end()

    def write(self, data: bytes, last: bool) -> None:
        """Send a part of an event stream: the first part begins the response, `last` ends it."""
        if self.response_ended:
            return
        if not self.response_started:
            self.response_started = self.succeeded = True
            head = self._head(200, b"text/event-stream; charset=utf-8")
            head += b"Cache-Control: no-cache\r\n"
            if self.is_http10:  # HTTP/1.0 has no chunks: closing the connection ends the stream
                self.keep_alive = False
                self._stream_head = head + b"\r\n"
            else:
                self._stream_head = head + b"Transfer-Encoding: chunked\r\n\r\n"
        head, self._stream_head = self._stream_head, b""
        if self.is_http10:
            self._writer.send(head + data)
        elif data:
            end = b"\r\n0\r\n\r\n" if last else b"\r\n"
            self._writer.send(b"%s%x\r\n%s%s" % (head, len(data), data, end))
        elif last:
            self._writer.send(head + b"0\r\n\r\n")
        if last:
            self._end()

    def _head(self, status: int, kind: bytes) -> bytes:
        line = _STATUS_LINES.get(status) or b"%d Other" % status
        close = b"" if self.keep_alive else b"Connection: close\r\n"
        return b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%s%s" % (line, kind, self._extra_headers, close)

    def _end(self) -> None:
        self.response_ended = True
        self._writer.on_response_end(self)
