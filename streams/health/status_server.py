"""HTTP server of the controller: /metrics, /livez, /healthz, /readyz, /v1/status,
/v1/explain/MODEL, /alerts, and the console.

Defines when the controller is alive, healthy and ready. The server binds loopback unless an address
is given. Only POST changes anything. If there is a read token, all paths require it except /livez,
/healthz, /readyz, the files of the console, and those of POST, which require tokens of their own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from aiohttp import web
from aiohttp.http import HttpProcessingError

from streams.files.user_errors import UserError
from streams.health.alert_webhook import MOST_BYTES, Webhook
from streams.health.controller_facts import Facts
from streams.health.controller_metrics import Metrics
from streams.health.guard import DEFAULT_LIMITS, Guard, Handler, HttpLimits, expect
from streams.health.listen_address import parse_listen
from streams.health.operators import NO_OPERATORS, Operators
from streams.health.tokens import NO_TOKEN, READ_TOKEN, BearerToken
from topics.codec import write_value
from topics.http_origin import HostRule

_log = logging.getLogger("streams.health.http")

MOST_TICK_AGE_S = 10.0
"""Real seconds without a tick after which a leader is unhealthy."""


_SHUTDOWN_S = 2.0


class Console(Protocol):
    """Routes of the console, by path. streams: paths whose answers have no end."""

    @property
    def streams(self) -> frozenset[str]: ...

    def files(self) -> Mapping[str, Handler]:
        """Handlers of GET that need no token."""

    def reads(self) -> Mapping[str, Handler]:
        """Handlers of GET that need the read token."""

    def writes(self) -> Mapping[str, Handler]:
        """Handlers of POST, which check a token of their own."""


class HealthServer:
    """The HTTP server of a controller. address: "HOST:PORT"; port 0: any free port. read_token: if
    empty, reads need no token; operators may read with tokens of their own. names: accepted host
    names, in addition to addresses (`HostRule`). `url` is the URL of the server after `start`."""

    def __init__(
        self,
        address: str,
        facts: Facts,
        metrics: Metrics,
        webhook: Webhook,
        ready: Callable[[], bool],
        read_token: BearerToken = NO_TOKEN,
        names: frozenset[str] = frozenset(),
        limits: HttpLimits = DEFAULT_LIMITS,
        console: Console | None = None,
        operators: Operators = NO_OPERATORS,
    ) -> None:
        self._address = address
        self._facts = facts
        self._metrics = metrics
        self._ready = ready
        self._read_token = read_token
        self._names = names
        self._limits = limits
        self._webhook = webhook
        self._console = console
        self._operators = operators
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Start to listen. UserError: the address is not available."""
        host, port = parse_listen(self._address)
        streams = self._console.streams if self._console is not None else frozenset[str]()
        guard = Guard(HostRule(host, self._names), self._limits, streams)
        runner = self._runner = web.AppRunner(
            self._application(guard),
            access_log=None,
            logger=_log,
            keepalive_timeout=self._limits.idle_s,
            lingering_time=self._limits.linger_s,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        guard.server = runner.server
        try:
            loop = asyncio.get_running_loop()
            listener = self._listener = await loop.create_server(guard.connection, host, port)
        except (OSError, UnicodeError) as error:
            await runner.cleanup()
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"--http {self._address}: {why}; another address, port 0 for any, or '' for none"
            ) from None
        bound = listener.sockets[0].getsockname()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _application(self, guard: Guard) -> web.Application:
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[guard.middleware])
        reads: dict[str, Handler] = {
            "/metrics": self._read(self._get_metrics),
            "/livez": self._get_live,
            "/healthz": self._get_health,
            "/readyz": self._get_ready,
            "/v1/status": self._read(self._get_status),
            "/v1/explain/{model}": self._read(self._get_explain),
        }
        posts: dict[str, Handler] = {"/alerts": self._webhook.handle}
        if self._console is not None:
            reads |= self._console.files()
            reads |= {at: self._read(read) for at, read in self._console.reads().items()}
            posts |= self._console.writes()
        app.add_routes([web.get(at, read, expect_handler=expect) for at, read in reads.items()])
        app.add_routes([web.post(at, post, expect_handler=expect) for at, post in posts.items()])
        return app

    def _read(self, handler: Handler) -> Handler:
        """`handler`, with a check of the read token if there is one."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if self._read_token and not self._may_read(request):
                return _json({"error": f"a bearer token is needed ({READ_TOKEN})"}, 401)
            return await handler(request)

        return answer

    def _may_read(self, request: web.Request) -> bool:
        header = request.headers.get("Authorization", "")
        named = self._operators.sent_name(request.headers)
        return self._read_token.allows(header) or (
            self._operators.identify(header, named, request.remote or "") is not None
        )

    def unhealthy(self) -> str:
        """Reason why this controller is unhealthy; "" if it is healthy."""
        leads, _, _ = self._facts.leader()
        age_s = self._facts.tick_age_s()
        if leads and age_s > MOST_TICK_AGE_S:
            return f"no decision for {age_s:.0f} s"
        return ""

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _get_live(self, _: web.Request) -> web.Response:
        """Answers while the event loop runs. A restart does not mend an outage of Kafka, so that
        concerns /healthz alone."""
        return web.Response(text="ok\n")

    async def _get_health(self, _: web.Request) -> web.Response:
        why = self.unhealthy()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _get_ready(self, _: web.Request) -> web.Response:
        why = self.unhealthy() or ("" if self._ready() else "no leader is known yet")
        identity = self._facts.identity
        open_points = [dataclasses.asdict(point) for point in identity.open]
        return _json({"ready": not why, "why": why, "open": open_points}, 503 if why else 200)

    async def _get_status(self, _: web.Request) -> web.Response:
        why = self.unhealthy()
        return _json({**self._facts.status(), "unhealthy": why})

    async def _get_explain(self, request: web.Request) -> web.Response:
        found = self._facts.explain(request.match_info["model"])
        if found is None:
            known = [model["model"] for model in self._facts.status()["models"]]
            leads, _, leader = self._facts.leader()
            return _json({"error": "no such model", "models": known, "leads": leads,
                          "leader": leader}, 404)  # fmt: skip
        return _json(found)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a log record of aiohttp is about an error of the server itself. Errors of clients are
    not logged, because each client receives an error answer.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (web.RequestPayloadError, HttpProcessingError))


_log.addFilter(_is_ours)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=write_value(value), status=status, content_type="application/json")
