"""The controller's HTTP side: /metrics, /healthz, /readyz, /v1/status, /v1/explain/MODEL, /alerts.

Owns the addresses and when the controller calls itself healthy and ready. Binds loopback unless an
address is named. Everything but /alerts only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http import HttpProcessingError

from streams.files.errors import UserError
from streams.health.facts import Facts
from streams.health.listen import parse_listen
from streams.health.metrics import Metrics
from streams.health.webhook import MOST_BYTES, Webhook
from topics.codec import write_value

_log = logging.getLogger("streams.health.http")

MOST_TICK_AGE_S = 10.0
"""Real seconds without a decision after which a leader is not healthy."""


class HealthServer:
    """address: "HOST:PORT"; port 0: any. `url` is where it listens, after `start`."""

    def __init__(
        self,
        address: str,
        facts: Facts,
        metrics: Metrics,
        webhook: Webhook,
        ready: Callable[[], bool],
    ) -> None:
        self._address = address
        self._facts = facts
        self._metrics = metrics
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self._app = web.Application(client_max_size=MOST_BYTES)
        self._app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_health),
                web.get("/readyz", self._get_ready),
                web.get("/v1/status", self._get_status),
                web.get("/v1/explain/{model}", self._get_explain),
                web.post("/alerts", webhook.handle),
            ]
        )
        self.url = ""

    async def start(self) -> None:
        """Listen. UserError: the address cannot be had."""
        host, port = parse_listen(self._address)
        self._runner = web.AppRunner(self._app, access_log=None, logger=_log)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except (OSError, UnicodeError) as error:
            await self._runner.cleanup()
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"--http {self._address}: {why}; another address, port 0 for any, or '' for none"
            ) from None
        bound = self._runner.addresses[0]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def unhealthy(self) -> str:
        """Why this controller is not well; "" if it is."""
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

    async def _get_health(self, _: web.Request) -> web.Response:
        why = self.unhealthy()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _get_ready(self, _: web.Request) -> web.Response:
        why = self.unhealthy() or ("" if self._ready() else "nobody is known to lead yet")
        return web.Response(status=503 if why else 200, text=f"{why or 'ready'}\n")

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
    """Whether what aiohttp logs is no fault of the client's, who is answered with what it is."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (web.RequestPayloadError, HttpProcessingError))


_log.addFilter(_is_ours)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=write_value(value), status=status, content_type="application/json")
