"""Limits of the controller's HTTP endpoint: time, number of connections, host names, origins.

aiohttp closes a connection that has waited for a request head for `idle_s`. This module limits the
duration of one request, including its body and answer, and the number of connections. A client that
opens many idle connections loses its own oldest connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http import HttpVersion11

from topics.http_origin import HostRule, is_cross_site

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CONNECTS_S = 1.0
_READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits in real seconds. idle_s: from the start of the connection or the end of the last
    answer until the next head is complete. request_s: from the head of a request to the last byte
    of its answer. linger_s: to read the rest of a refused body. connections: maximum number of
    concurrent connections.
    """

    idle_s: float = 30.0
    request_s: float = 30.0
    linger_s: float = 2.0
    connections: int = 200


DEFAULT_LIMITS = HttpLimits()


class Guard:
    """Limits for one server. rule: accepted host names.

    streams: paths whose answers have no end. `request_s` does not apply to them; their handlers
    limit each write. Use `middleware` in the application and `connection` at the listening socket,
    after `server` is set.
    """

    def __init__(
        self, rule: HostRule, limits: HttpLimits, streams: frozenset[str] = frozenset()
    ) -> None:
        self._rule = rule
        self._limits = limits
        self._streams = streams
        self._busy: set[web.RequestHandler] = set()
        self._accepted: dict[web.RequestHandler, float] = {}
        self.server: web.Server | None = None

    def connection(self) -> asyncio.Protocol:
        """Protocol of a new connection.

        At the limit, the oldest connection without a request is closed. If every connection has a
        request, the new one is closed.
        """
        server = self.server
        assert server is not None  # noqa: S101  set before the socket listens
        now_s = asyncio.get_running_loop().time()
        known = server.connections
        # The event loop may call `connection` several times before the server lists the first one.
        self._accepted = {
            each: at_s
            for each, at_s in self._accepted.items()
            if each not in known and now_s - at_s < _CONNECTS_S
        }
        open_ = [each for each in known if each.transport is not None]
        if len(open_) + len(self._accepted) >= self._limits.connections:
            idle = next((each for each in open_ if each not in self._busy), None)
            if idle is None:
                return _Closed()
            idle.force_close()
        made = server()
        self._accepted[made] = now_s
        return made

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse invalid requests; end requests over the time limit."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        protocol = request.protocol
        self._busy.add(protocol)
        try:
            limit_s = None if request.path in self._streams else self._limits.request_s
            async with asyncio.timeout(limit_s):
                answer = await handler(request)
                # Send the answer here, so that the time limit includes a client that does not read.
                with contextlib.suppress(ConnectionError):  # the client is gone
                    await answer.prepare(request)
                    await answer.write_eof()
                return answer
        except TimeoutError:
            log.warning("http: a request took more than %g s and was ended", self._limits.request_s)
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=408)
        finally:
            self._busy.discard(protocol)

    def _refusal(self, request: web.Request) -> web.Response | None:
        headers = request.headers
        hosts = headers.getall("Host", [])
        refused = self._rule.refusal(hosts, request.version < HttpVersion11)
        if refused is not None:
            return web.Response(status=refused[0], text=f"{refused[1]}\n")
        if len(headers.getall("Authorization", [])) > 1:
            return web.Response(status=400, text="two Authorization headers; allowed: 1\n")
        host = "".join(hosts)
        if request.method not in _READS and is_cross_site(
            host, headers.get("Origin", ""), headers.get("Sec-Fetch-Site", "")
        ):
            return web.Response(status=403, text="requests of other sites' pages are refused\n")
        return None


async def expect(request: web.Request) -> web.StreamResponse | None:
    """Answer to an `Expect` header if the request must not continue, else None.

    The default answer of aiohttp repeats the header, and fails for bytes that are not text.
    """
    if request.headers.get("Expect", "").lower() != "100-continue":
        return web.Response(status=417, text="Expect: only 100-continue is known\n")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # Bytes before the answer do not count.
    return None


class _Closed(asyncio.Protocol):
    """Protocol that closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  of a TCP socket
        transport.abort()
