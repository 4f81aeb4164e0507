"""HTTP interface of the page: files, snapshot, history, decisions, events and commands.

The caller adds its check of the read token to reads. Files need no token, because they contain no
data.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from streams.console.console_feed import ConsoleFeed
from streams.console.history import series_of
from streams.console.operator_endpoint import OperatorEndpoint
from streams.console.page_files import PageFiles
from streams.console.reasons_on_demand import ReasonsOnDemand
from topics.codec import write_value

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

EVENTS = "/v1/events"
"""Path of the event stream, whose answer has no end."""
_NUMBER = re.compile(r"[0-9]{1,15}")
_WRITE_S = 10.0
_PACK_BYTES = 4096


class ConsoleRoutes:
    """Routes over `feed`. operator: accepts commands. reasons: computes alternatives on demand."""

    def __init__(
        self, feed: ConsoleFeed, operator: OperatorEndpoint, reasons: ReasonsOnDemand
    ) -> None:
        self._feed = feed
        self._operator = operator
        self._reasons = reasons
        self._files = PageFiles()
        self._decisions: tuple[int, bytes] = -1, b""

    @property
    def streams(self) -> frozenset[str]:
        """Paths whose answers have no end."""
        return frozenset({EVENTS})

    def files(self) -> dict[str, Handler]:
        """Handlers of GET that need no token, by path."""
        return {"/": self._files.index, "/console/{name:.+}": self._files.file}

    def reads(self) -> dict[str, Handler]:
        """Handlers of GET that need the read token, by path."""
        return {
            "/v1/console": self._snapshot,
            "/v1/console/history": self._history,
            "/v1/console/decisions": self._all_decisions,
            "/v1/console/reasons": self._plan_reasons,
            EVENTS: self._events,
        }

    def writes(self) -> dict[str, Handler]:
        """Handlers of POST, which check the operator's token, by path."""
        return {"/v1/controls": self._operator.handle, "/v1/console/notes": self._note}

    async def _note(self, request: web.Request) -> web.Response:
        return await self._operator.note(request, self._feed.note)

    async def _snapshot(self, request: web.Request) -> web.Response:
        return packed(write_value(self._feed.snapshot()))

    async def _history(self, request: web.Request) -> web.Response:
        name = request.query.get("model", "*")
        columns = self._feed.history.columns(name)
        if columns is None:
            columns = {"t": [], **{one: [] for one in series_of(name)}}
        return packed(write_value(columns))

    async def _all_decisions(self, request: web.Request) -> web.Response:
        book = self._feed.book
        if self._decisions[0] != book.version:
            self._decisions = book.version, write_value({"decisions": book.rows()})
        return packed(self._decisions[1])

    async def _plan_reasons(self, request: web.Request) -> web.Response:
        model, decision = request.query.get("model", ""), request.query.get("decision", "")
        if not decision:
            return packed(write_value(await self._reasons.of_model(model)))
        token, _, number = decision.partition("/")
        if not (_NUMBER.fullmatch(token) and _NUMBER.fullmatch(number)):
            return web.Response(status=400, text="decision: only TOKEN/NUMBER is allowed\n")
        found = await self._reasons.of_decision(model, (int(token), int(number)))
        return packed(write_value(found))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        last_id = request.headers.get("Last-Event-ID", "")
        events = self._feed.hub.follow(last_id, request.remote or "")
        first = await anext(events)
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        async with contextlib.aclosing(events):
            with contextlib.suppress(ConnectionError, TimeoutError):
                await answer.prepare(request)
                async with asyncio.timeout(_WRITE_S):
                    await answer.write(first)
                async for event in events:
                    async with asyncio.timeout(_WRITE_S):
                        await answer.write(event)
                async with asyncio.timeout(_WRITE_S):
                    await answer.write_eof()
                return answer
        if request.transport is not None:
            request.transport.abort()  # The viewer does not read.
        return answer


def packed(body: bytes) -> web.Response:
    """A JSON answer. It is compressed if the client allows that and the size is large enough."""
    answer = web.Response(
        body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
    if len(body) > _PACK_BYTES:
        answer.enable_compression()
    return answer
