"""One request after the other as it arrives, and the limits of its sizes.

Owns the head and body of the request that is being read. Parsing is httptools' (llhttp). What
becomes of a whole request, or of one that breaks a limit, is its line's business.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from executors.gateway.wire.body_blocks import Gathering
from executors.gateway.wire.body_memory import Budget
from executors.gateway.wire.client_exchange import Exchange, Line
from executors.gateway.wire.client_limits import Limits


class Owner(Line, Protocol):
    """Whose requests are read. peer: the client's address."""

    peer: str

    def moved(self) -> None:
        """A head has begun, or ended."""
        ...

    def came(self, exchange: Exchange) -> None:
        """A whole request."""
        ...

    @property
    def busy(self) -> bool:
        """Whether an earlier request is being answered."""
        ...


class Reading:
    """exchange: the request that is being read, None between two of them. body: what is here of its
    body. refusal: status and reason, once a limit is broken; nothing is taken from then on."""

    __slots__ = (
        "_budget",
        "_head_size",
        "_limits",
        "_owner",
        "_parser",
        "_raw_size",
        "body",
        "exchange",
        "refusal",
    )

    def __init__(self, owner: Owner, limits: Limits, budget: Budget) -> None:
        self._owner = owner
        self._limits = limits
        self._budget = budget
        self._parser = httptools.HttpRequestParser(self)
        self._head_size = self._raw_size = 0
        self.exchange: Exchange | None = None
        self.body = Gathering()
        self.refusal: tuple[int, str] | None = None

    def feed(self, data: memoryview) -> None:
        """The next bytes from the client; `refusal` is set if they may not be."""
        reading_head = self.exchange is None or not self.exchange.method
        self._raw_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(400, "no upgrade of the protocol is offered")
        except httptools.HttpParserError as error:
            self.refuse(400, f"not HTTP: {error}")
        limits, exchange = self._limits, self.exchange
        if exchange is None or self.refusal is not None:
            return
        if not exchange.method and reading_head:
            self._head_size += len(data)
            if self._head_size > limits.head_bytes:
                self.refuse(431, f"the head exceeds {limits.head_bytes} bytes")
        elif self._raw_size > 2 * limits.body_bytes + limits.slack_bytes:
            self.refuse(413, "the body's encoding is too wasteful")

    def refuse(self, status: int, why: str) -> None:
        """What is read may not be; the first reason counts."""
        self.refusal = self.refusal or (status, why)

    def stop(self) -> Exchange | None:
        """Forget what was read of an unfinished request, which is returned."""
        self._budget.give_back(self.body.size)
        self.body.take()
        exchange, self.exchange, self.refusal = self.exchange, None, None
        return exchange

    # -- the parser ---------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.refusal is not None:
            return
        self.exchange = Exchange(self._owner, self._owner.peer)
        self._head_size = self._raw_size = 0
        self._owner.moved()

    def on_url(self, part: bytes) -> None:
        if self.exchange is not None:
            self.exchange.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self.exchange
        if exchange is not None and not exchange.method:
            self._head_size += len(name) + len(value) + 4
            exchange.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        exchange.method = self._parser.get_method()
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange.old_http = self._parser.get_http_version() == "1.0"
        limits, headers = self._limits, exchange.headers
        length = headers.get(b"content-length", b"0")
        if self._head_size > limits.head_bytes:
            self.refuse(431, f"the head exceeds {limits.head_bytes} bytes")
        elif headers.get(b"content-encoding", b"identity").lower() != b"identity":
            self.refuse(415, "compressed bodies are not accepted")
        elif not length.isdigit() or int(length[:18]) > limits.body_bytes:
            self.refuse(413, f"the body exceeds {limits.body_bytes} bytes")
        elif headers.get(b"expect", b"").lower() == b"100-continue" and not self._owner.busy:
            self._owner.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._owner.moved()

    def on_body(self, part: bytes) -> None:
        if self.refusal is not None or self.exchange is None:
            return
        self.body.add(part)
        self._budget.take(len(part))
        if self.body.size > self._limits.body_bytes:
            self.refuse(413, f"the body exceeds {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None or self.refusal is not None:
            return
        self._budget.give_back(self.body.size)
        exchange.body = self.body.take()
        self._owner.came(exchange)
