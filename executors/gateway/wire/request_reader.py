"""Read the requests of one connection and check their sizes. httptools (llhttp) parses them."""

from __future__ import annotations

from typing import Protocol

import httptools

from executors.gateway.wire.body_blocks import BodyBuffer
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_exchange import Exchange, ResponseWriter
from executors.gateway.wire.client_limits import ClientLimits

_SINGLE = frozenset({b"host", b"authorization", b"content-type", b"content-encoding", b"x-api-key"})
"""Headers that a request may have once. Another program on the way might read another one of two
values."""


class RequestSink(ResponseWriter, Protocol):
    """Receives the requests of one connection. peer: the client's address."""

    peer: str

    def head_boundary(self) -> None:
        """Called when a request head begins and when it ends."""
        ...

    def on_request(self, exchange: Exchange) -> None:
        """Called with each complete request."""
        ...

    @property
    def busy(self) -> bool:
        """Whether an earlier request is being answered."""
        ...


class RequestReader:
    """The state of reading one connection. exchange: the request that is being read, None between
    two requests. body: the received part of its body. refusal: status and reason once a limit is
    exceeded; later input is ignored."""

    __slots__ = (
        "_body_memory",
        "_body_wire_bytes",
        "_head_bytes",
        "_limits",
        "_parser",
        "_sink",
        "body",
        "exchange",
        "refusal",
    )

    def __init__(self, owner: RequestSink, limits: ClientLimits, body_memory: BodyMemory) -> None:
        self._sink = owner
        self._limits = limits
        self._body_memory = body_memory
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = self._body_wire_bytes = 0
        self.exchange: Exchange | None = None
        self.body = BodyBuffer()
        self.refusal: tuple[int, str] | None = None

    def feed(self, data: memoryview) -> None:
        """Parse the next bytes from the client; sets `refusal` if they exceed a limit."""
        reading_head = self.exchange is None or not self.exchange.method
        self._body_wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(400, "protocol upgrades are not supported")
        except httptools.HttpParserError as error:
            self.refuse(400, f"not HTTP: {error}")
        limits, exchange = self._limits, self.exchange
        if exchange is None or self.refusal is not None:
            return
        if not exchange.method and reading_head:
            self._head_bytes += len(data)
            if self._head_bytes > limits.head_bytes:
                self.refuse(431, f"the head exceeds {limits.head_bytes} bytes")
        elif self._body_wire_bytes > 2 * limits.body_bytes + limits.slack_bytes:
            self.refuse(413, "the chunked encoding adds too many bytes to the body")

    def refuse(self, status: int, why: str) -> None:
        """Refuse the current request, unless it is refused already."""
        self.refusal = self.refusal or (status, why)

    def discard(self) -> Exchange | None:
        """Drop the incomplete request, release its memory and return it."""
        self._body_memory.release(self.body.size)
        self.body.take()
        exchange, self.exchange, self.refusal = self.exchange, None, None
        return exchange

    # -- the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.refusal is not None:
            return
        self.exchange = Exchange(self._sink, self._sink.peer)
        self._head_bytes = self._body_wire_bytes = 0
        self._sink.head_boundary()

    def on_url(self, part: bytes) -> None:
        if self.exchange is not None:
            self.exchange.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and not exchange.method:
            self._head_bytes += len(name) + len(value) + 4
            name = name.lower()
            if name in _SINGLE and name in exchange.headers:
                self.refuse(400, f"two {name.decode()} headers; allowed: 1")
            exchange.headers[name] = value

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        exchange.method = self._parser.get_method()
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange.is_http10 = self._parser.get_http_version() == "1.0"
        limits, headers = self._limits, exchange.headers
        length = headers.get(b"content-length", b"0")
        if self._head_bytes > limits.head_bytes:
            self.refuse(431, f"the head exceeds {limits.head_bytes} bytes")
        elif b"host" not in headers and not exchange.is_http10:
            self.refuse(400, "no Host header; allowed: 1")
        elif headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self.refuse(415, "compressed bodies are not accepted")
        elif not length.isdigit() or int(length[:18]) > limits.body_bytes:
            self.refuse(413, f"the body exceeds {limits.body_bytes} bytes")
        elif headers.get(b"expect", b"").lower() == b"100-continue" and not self._sink.busy:
            self._sink.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._sink.head_boundary()

    def on_body(self, part: bytes) -> None:
        if self.refusal is not None or self.exchange is None:
            return
        self.body.add(part)
        self._body_memory.reserve(len(part))
        if self.body.size > self._limits.body_bytes:
            self.refuse(413, f"the body exceeds {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None or self.refusal is not None:
            return
        self._body_memory.release(self.body.size)
        exchange.body = self.body.take()
        self._sink.on_request(exchange)
