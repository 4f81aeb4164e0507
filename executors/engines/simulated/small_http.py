"""A small HTTP/1.1 server on asyncio.Protocol and httptools, the parser that vLLM's server also
uses. It supports whole responses, chunked streams, keep-alive and disconnects. A simulated fleet
has dozens of these processes on a small machine, and a web framework would need much more memory
and start-up time in each of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import httptools

MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_HEAD_BYTES = 32 * 1024
_OF_UPGRADES = ("connection", "upgrade", "http2-settings")
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(slots=True)
class Request:
    """One request with its whole body. query: the part after the question mark."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    query: str = ""


class Responder:
    """Responds to one request: call `respond` once, or `start`, then `write` repeatedly, then
    `end`."""

    def __init__(self, connection: Connection, close: bool) -> None:
        self._connection = connection
        self._close = close
        self._done = False
        self.on_disconnect: Callable[[], None] | None = None

    @property
    def closed(self) -> bool:
        """Whether the response is complete or the client disconnected."""
        return self._done

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send the whole response."""
        if not self._done:
            self._send(self._head(status, content_type, f"Content-Length: {len(body)}") + body)
            self._finish()

    def start(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """Start a stream."""
        if not self._done:
            self._send(self._head(200, content_type, "Transfer-Encoding: chunked"))

    def write(self, data: bytes) -> None:
        """Send one chunk of a stream, unless it is empty."""
        if data and not self._done:
            self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End a stream."""
        if not self._done:
            self._send(b"0\r\n\r\n")
            self._finish()

    def disconnected(self) -> None:
        """Called by the connection when the client disconnected."""
        if not self._done:
            self._done = True
            if self.on_disconnect is not None:
                self.on_disconnect()

    def _head(self, status: int, content_type: str, length: str) -> bytes:
        reason = _REASONS.get(status, "Unknown")
        close = "Connection: close\r\n" if self._close else ""
        return (
            f"HTTP/1.1 {status} {reason}\r\nServer: shoal-simulated-engine\r\n"
            f"Content-Type: {content_type}\r\n{length}\r\n{close}\r\n"
        ).encode()

    def _send(self, data: bytes) -> None:
        self._connection.send(data)

    def _finish(self) -> None:
        self._done = True
        self._connection.finished(self._close)


Handler = Callable[[Request, Responder], None]


class Connection(asyncio.Protocol):
    """One connection. It handles one request at a time; pipelined requests wait."""

    def __init__(self, handler: Handler, connections: set[Connection]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}
        self._head_bytes = 0  # received bytes of an incomplete head
        self._parsed_bytes = 0  # parsed bytes of the current head
        self._waiting: deque[Request] = deque()
        self._refusal: tuple[int, str] | None = None  # if set, no more input is read
        self._responder: Responder | None = None

    @property
    def busy(self) -> bool:
        """Whether a response is incomplete."""
        return self._responder is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's TCP contract
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        if self._responder is not None:
            self._responder.disconnected()
            self._responder = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refusal = self._refusal or (400, "not an HTTP/1.1 request")
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._refusal = self._refusal or (431, "request header too large")
        self._next()

    def _feed(self, data: bytes) -> None:
        """Parse input. If a request offers a protocol upgrade, parse its head again without the
        offer."""
        while data and self._refusal is None:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            kept = (f"{n}: {v}\r\n" for n, v in self._headers.items() if n not in _OF_UPGRADES)
            line = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(line + "".join(kept).encode("latin-1") + b"\r\n")

    def send(self, data: bytes) -> None:
        """Send bytes of the current response."""
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, close: bool) -> None:
        """Note that the current response is complete."""
        self._responder = None
        if close:
            self.close()
        elif self._waiting or self._refusal is not None:
            asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        """Close after all written data has been sent."""
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        """Handle the next complete request."""
        if self._responder is not None or self._transport is None:
            return
        if self._waiting:
            request = self._waiting.popleft()
            close = request.headers.get("connection", "").lower() == "close"
            responder = self._responder = Responder(self, close)
            self._handler(request, responder)
        elif self._refusal is not None:
            status, why = self._refusal
            responder = self._responder = Responder(self, close=True)
            responder.respond(status, why.encode(), "text/plain; charset=utf-8")

    # -- the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._target, self._body, self._headers = b"", bytearray(), {}
        self._parsed_bytes = 0

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parsed_bytes += len(name) + len(value)
        if self._parsed_bytes + len(self._target) > _MAX_HEAD_BYTES:
            self._refusal = self._refusal or (431, "request header too large")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        if self._refusal is not None or self._parser.should_upgrade():
            return
        if int(self._headers.get("content-length", "0")[:18]) > MAX_BODY_BYTES:
            self._refusal = 413, f"body larger than {MAX_BODY_BYTES} bytes"
        elif self._headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        self._head_bytes = 0
        if len(self._body) + len(part) > MAX_BODY_BYTES:
            self._refusal = 413, f"body larger than {MAX_BODY_BYTES} bytes"
        elif self._refusal is None:
            self._body += part

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if self._refusal is None and not self._parser.should_upgrade():
            path, _, query = self._target.decode("latin-1").partition("?")
            method = self._parser.get_method().decode()
            request = Request(method, path, self._headers, bytes(self._body), query)
            self._waiting.append(request)
