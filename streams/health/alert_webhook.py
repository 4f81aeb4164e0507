"""Alert webhook: check a bearer token, size and rate, then publish to the topic `alerts`.

Requests are refused with 401, 408, 413, 429 or 400, and duplicate alerts are dropped. Invalid
alerts, and alerts for undeclared models, are skipped and named in the answer, which is still 200
because Alertmanager does not resend a refused notification. The webhook answers once the broker has
acknowledged the records. Later ticks act on them. If the broker does not answer, the webhook
answers 503, and Alertmanager sends the alert again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from aiohttp import web

from autoscaler.domain.cluster import Cluster
from streams.health.alertmanager import alerts_of, declared_only, known_names
from streams.health.tokens import BearerToken
from topics.checks import InvalidValue
from topics.error_text import error_text
from topics.records import Alert

log = logging.getLogger(__name__)

MOST_BYTES = 1024 * 1024
_MOST_PER_MINUTE = 120
_PUBLISH_S = 3.0
_BODY_S = 10.0
_SHOWN = 10
_REMEMBERED = 10_000

Publish = Callable[[Alert], Awaitable[None]]


class Webhook:
    """Accepts alerts over HTTP and publishes them. token: if empty, every alert is refused.
    declared: the current declared cluster. body_s: real seconds for a body to arrive. Counts by
    result: accepted, duplicate, unknown_model (alerts for undeclared models), refused (invalid
    alerts, and whole requests)."""

    def __init__(
        self,
        publish: Publish,
        token: BearerToken,
        declared: Callable[[], Cluster],
        now_s: Callable[[], float],
        body_s: float = _BODY_S,
    ) -> None:
        self._publish = publish
        self._token = token
        self._declared = declared
        self._now_s = now_s
        self._body_s = body_s
        self._times: list[float] = []
        self._known: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        self.counts: Counter[str] = Counter()

    async def handle(self, request: web.Request) -> web.Response:
        """Answer POST /alerts."""
        refusal = self._refusal(request)
        if refusal is not None:
            self.counts["refused"] += 1
            return refusal
        try:
            async with asyncio.timeout(self._body_s):
                body = await request.read()
            alerts, refused = alerts_of(body)
        except TimeoutError:
            self.counts["refused"] += 1
            return _answer(408, f"the body did not arrive within {self._body_s:g} s")
        except web.HTTPRequestEntityTooLarge:
            self.counts["refused"] += 1
            return _answer(413, f"at most {MOST_BYTES} bytes")
        except web.RequestPayloadError:
            self.counts["refused"] += 1
            return _answer(400, "body: cannot be decompressed as its Content-Encoding says")
        except InvalidValue as error:
            self.counts["refused"] += 1
            return _answer(400, str(error))
        self.counts["refused"] += len(refused)
        for left_out in refused:
            log.warning("alerts: %s", left_out)
        if refused and not alerts:
            return _answer(400, str(refused[0]))
        found, unknown = self._of_declared(alerts)
        fresh = {_identity(alert): alert for alert in found}
        fresh = {key: alert for key, alert in fresh.items() if key not in self._known}
        self.counts["duplicate"] += len(found) - len(fresh)
        try:
            async with asyncio.timeout(_PUBLISH_S):
                for alert in fresh.values():
                    await self._publish(alert)
        except Exception as error:
            log.warning("alerts: cannot publish: %s", error_text(error))
            return _answer(503, "the broker does not answer; send it again")
        for key in fresh:
            self._known[key] = None
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self.counts["accepted"] += len(fresh)
        unread = f", {len(refused)} not read: {refused[0]}" if refused else ""
        stray = f", no declared model: {', '.join(unknown[:_SHOWN])}" if unknown else ""
        return _answer(200, f"{len(fresh)} new of {len(alerts)}{stray}{unread}")

    def _of_declared(self, alerts: list[Alert]) -> tuple[list[Alert], list[str]]:
        """Alerts for declared models, restricted to these models, and the undeclared names."""
        names = known_names(self._declared())
        found: list[Alert] = []
        unknown: dict[str, None] = {}
        for alert in alerts:
            kept, strange = declared_only(alert, names)
            unknown |= dict.fromkeys(strange)
            if kept is None:
                self.counts["unknown_model"] += 1
            else:
                found.append(kept)
        if unknown:
            log.warning("alerts: no declared model: %s", ", ".join(list(unknown)[:_SHOWN]))
        return found, list(unknown)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self._token.allows(request.headers.get("Authorization", "")):
            return _answer(401, "a bearer token is needed")
        if (request.content_length or 0) > MOST_BYTES:
            return _answer(413, f"at most {MOST_BYTES} bytes")
        now_s = self._now_s()
        self._times = [at for at in self._times if now_s - at < 60.0]
        if len(self._times) >= _MOST_PER_MINUTE:
            return _answer(429, f"at most {_MOST_PER_MINUTE} requests a minute")
        self._times.append(now_s)
        return None


def _identity(alert: Alert) -> tuple[str, int, str]:
    return alert.fingerprint, alert.starts_ms, alert.state


def _answer(status: int, words: str) -> web.Response:
    return web.json_response({"said": words}, status=status)
