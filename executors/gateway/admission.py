"""Admission at engines: taken when there is room, waited for when there is none.

Owns the tasks that wait and wakes them. Whose turn it is and who waited too long is the queue's
business (`autoscaler.serving.wait_queue`); what is answered to those refused is the relay's.
"""

from __future__ import annotations

import asyncio

from autoscaler.serving.routing import Pick
from autoscaler.serving.wait_queue import Refusal, Ticket, WaitQueue
from executors.gateway.request import Request
from executors.gateway.settings import Clock, Settings
from executors.gateway.table import RouteTable
from topics.records import Endpoint


class Slot:
    """A request's slot at an engine. `give_back` is idempotent."""

    __slots__ = ("_admission", "model", "pick")

    def __init__(self, admission: Admission, model: str, pick: Pick) -> None:
        self._admission: Admission | None = admission
        self.model = model
        self.pick = pick

    def give_back(self) -> None:
        """The request has left the engine: the next one may come."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.left(self.model, self.pick.endpoint)


class Admission:
    """The wait queues of all models."""

    def __init__(self, settings: Settings, clock: Clock, table: RouteTable) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._queues: dict[str, WaitQueue] = {}
        self._answers: dict[Ticket, asyncio.Future[Pick | Refusal]] = {}
        self._bytes = 0  # of the bodies of those who wait
        table.watch(self._dispatch)

    def waiting(self, model: str) -> int:
        """Requests of `model` that wait now."""
        queue = self._queues.get(model)
        return len(queue) if queue is not None else 0

    async def take(self, request: Request) -> Slot | Refusal:
        """A slot for `request`, or why it gets none. Cancellation removes it from the queue."""
        model, size = request.call.model, len(request.call.raw)
        queue = self._queues.get(model)
        if queue is None:
            hold_ms, queue_ms = self._settings.hold_s * 1000, self._settings.queue_s * 1000
            queue = self._queues[model] = WaitQueue(self._table.routers[model], hold_ms, queue_ms)
        ticket = queue.join(request.arrived_ns, request.tried, self._clock.now_ms())
        answer = self._answers[ticket] = asyncio.get_running_loop().create_future()
        self._bytes += size
        try:
            self._dispatch(model)
            if not answer.done():
                if len(queue) > self._settings.max_waiting or (
                    self._bytes > self._settings.max_waiting_bytes
                ):
                    return Refusal.QUEUE_FULL
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
            queue.leave(ticket)
            del self._answers[ticket]
            if not request.mark_ns:
                request.resume()
        return Slot(self, model, found) if isinstance(found, Pick) else found

    def left(self, model: str, endpoint: Endpoint) -> None:
        """A request has left `endpoint`."""
        self._table.routers[model].done(endpoint)
        self._dispatch(model)

    def look(self) -> None:
        """Turn away those who have waited too long."""
        now_ms = self._clock.now_ms()
        for queue in self._queues.values():
            for ticket, refusal in queue.expired(now_ms):
                answer = self._answers[ticket]
                if not answer.done():
                    answer.set_result(refusal)

    def _dispatch(self, model: str) -> None:
        """Give away the room that there is."""
        queue = self._queues.get(model)
        while queue is not None and len(queue):
            turns = queue.dispatch(self._clock.now_ms())
            for ticket, pick in turns:
                answer = self._answers[ticket]
                if answer.done():  # cancelled, and its task had no turn yet to leave the queue
                    queue.router.done(pick.endpoint)
                else:
                    answer.set_result(pick)
            if not turns:
                return
