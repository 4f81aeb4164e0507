"""Places at engines: taken when there is room, waited for in line when there is none.

Owns the tasks that wait and wakes them. Whose turn it is and who waited too long is the line's
business (`autoscaler.serving.line`); what is answered to those refused is the relay's.
"""

from __future__ import annotations

import asyncio

from autoscaler.serving.line import Line, Refusal, Ticket
from autoscaler.serving.routing import Pick
from executors.gateway.request import Request
from executors.gateway.settings import Clock, Settings
from executors.gateway.table import RouteTable
from topics.records import Endpoint


class Place:
    """A request's place at an engine. It is given back once, however often that is said."""

    __slots__ = ("_places", "model", "pick")

    def __init__(self, places: Places, model: str, pick: Pick) -> None:
        self._places: Places | None = places
        self.model = model
        self.pick = pick

    def give_back(self) -> None:
        """The request has left the engine: the next one may come."""
        places, self._places = self._places, None
        if places is not None:
            places.left(self.model, self.pick.endpoint)


class Places:
    """The lines of all models."""

    def __init__(self, settings: Settings, clock: Clock, table: RouteTable) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._lines: dict[str, Line] = {}
        self._answers: dict[Ticket, asyncio.Future[Pick | Refusal]] = {}
        self._bytes = 0  # of the bodies of those who wait
        table.watch(self._dispatch)

    def waiting(self, model: str) -> int:
        """Requests of `model` that wait now."""
        line = self._lines.get(model)
        return len(line) if line is not None else 0

    async def take(self, request: Request) -> Place | Refusal:
        """A place for `request`, or why it gets none. Who is cancelled leaves the line."""
        model, size = request.call.model, len(request.call.raw)
        line = self._lines.get(model)
        if line is None:
            hold_ms, queue_ms = self._settings.hold_s * 1000, self._settings.queue_s * 1000
            line = self._lines[model] = Line(self._table.routers[model], hold_ms, queue_ms)
        ticket = line.join(request.arrived_ns, request.tried, self._clock.now_ms())
        answer = self._answers[ticket] = asyncio.get_running_loop().create_future()
        self._bytes += size
        try:
            self._dispatch(model)
            if not answer.done():
                if len(line) > self._settings.max_waiting or (
                    self._bytes > self._settings.max_waiting_bytes
                ):
                    return Refusal.LINE_FULL
                request.pause()
            found = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # the place came just as the client left
                late = answer.result()
                if isinstance(late, Pick):
                    self.left(model, late.endpoint)
            raise
        finally:
            self._bytes -= size
            line.leave(ticket)
            del self._answers[ticket]
            if not request.mark_ns:
                request.resume()
        return Place(self, model, found) if isinstance(found, Pick) else found

    def left(self, model: str, endpoint: Endpoint) -> None:
        """A request has left `endpoint`."""
        self._table.routers[model].done(endpoint)
        self._dispatch(model)

    def look(self) -> None:
        """Turn away those who have waited too long."""
        now_ms = self._clock.now_ms()
        for line in self._lines.values():
            for ticket, refusal in line.expired(now_ms):
                answer = self._answers[ticket]
                if not answer.done():
                    answer.set_result(refusal)

    def _dispatch(self, model: str) -> None:
        """Give away the room that there is."""
        line = self._lines.get(model)
        while line is not None and len(line):
            turns = line.dispatch()
            for ticket, pick in turns:
                answer = self._answers[ticket]
                if answer.done():  # cancelled, and its task had no turn yet to leave the line
                    line.router.done(pick.endpoint)
                else:
                    answer.set_result(pick)
            if not turns:
                return
