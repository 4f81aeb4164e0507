"""Admission at engines: taken when there is room, waited for when there is none.

Owns the tasks that wait and wakes them. Whose turn it is and who waited too long is the queue's
business (`autoscaler.serving.wait_queue`); what is answered to those refused is the relay's.
"""

from __future__ import annotations

import asyncio

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.routing import Pick, Router
from autoscaler.serving.wait_queue import Refusal, Ticket, WaitQueue, wait_limits_ms
from executors.gateway.gateway_settings import Clock, Settings
from executors.gateway.inflight_request import Request
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint


class Slot:
    """A request's slot at an engine. `give_back` is idempotent."""

    __slots__ = ("_admission", "_router", "pick")

    def __init__(self, admission: Admission, router: Router, pick: Pick) -> None:
        self._admission: Admission | None = admission
        self._router = router
        self.pick = pick

    def give_back(self) -> None:
        """The request has left the engine: the next one may come."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.left(self._router, self.pick.endpoint)


class Admission:
    """The wait queues of all models."""

    def __init__(self, settings: Settings, clock: Clock, table: RouteTable) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._queues: dict[str, WaitQueue] = {}
        self._answers: dict[Ticket, asyncio.Future[Pick | Refusal]] = {}
        table.watch(self._dispatch)
        table.watch_leavers(self._withdrawn)

    def waiting(self, model: str) -> int:
        """Requests of `model` that wait now."""
        queue = self._queues.get(model)
        return len(queue) if queue is not None else 0

    def hold_s(self, model: str) -> float:
        """How long a request of `model` waits while nothing serves it: a cold start, at least."""
        return self._limits_ms(model)[0] / 1000.0

    def _limits_ms(self, model: str) -> tuple[float, float]:
        router = self._table.routers.get(model)
        start_s = router.routes.start_s if router is not None and router.routes else 0.0
        settings = self._settings
        return wait_limits_ms(settings.hold_s * 1000.0, settings.queue_s * 1000.0, start_s)

    async def take(self, request: Request) -> Slot | Refusal:
        """A slot for `request`, or why it gets none. Cancellation removes it from the queue."""
        model = request.call.model
        router = self._table.routers.get(model)
        if router is None:  # withdrawn a moment ago
            return Refusal.NO_INSTANCE
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = WaitQueue(router, 0.0, self._settings.queue_s * 1000)
        queue.hold_ms, queue.queue_ms = self._limits_ms(model)
        ticket = queue.join(request.arrived_ns, request.tried, self._clock.now_ms(), request.want)
        answer = self._answers[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._dispatch(model)
            if not answer.done():
                if len(queue) > self._settings.max_waiting:
                    return Refusal.QUEUE_FULL
                request.pause()
            found = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # the place came just as the client left
                late = answer.result()
                if isinstance(late, Pick):
                    self.left(router, late.endpoint)
            raise
        finally:
            queue.leave(ticket)
            del self._answers[ticket]
            if not request.mark_ns:
                request.resume()
        return Slot(self, router, found) if isinstance(found, Pick) else found

    def decode(self, model: str, group: str, tried: frozenset[Endpoint]) -> Slot | None:
        """A slot at the decode instance of `group` for what was just prefilled there."""
        router = self._table.routers.get(model)
        if router is None:
            return None
        found = router.pick_decode(group, tried) or router.pick_decode(group)
        return Slot(self, router, Pick(group, found, False)) if found is not None else None

    def hop(
        self, model: str, way: ComponentPath, hop: int, tried: frozenset[Endpoint]
    ) -> Slot | None:
        """A slot for a later hop of a request's path."""
        router = self._table.routers.get(model)
        if router is None:
            return None
        found = router.pick_hop(way, hop, tried) or router.pick_hop(way, hop)
        return Slot(self, router, Pick(way.group, found, False, way)) if found else None

    def left(self, router: Router, endpoint: Endpoint) -> None:
        """A request has left `endpoint`."""
        router.release(endpoint)
        self._dispatch(router.model)

    def _withdrawn(self, model: str) -> None:
        """Nobody waits for a model that is served no longer."""
        queue = self._queues.pop(model, None)
        if queue is not None:
            for ticket in queue.tickets():
                answer = self._answers[ticket]
                if not answer.done():
                    answer.set_result(Refusal.NO_INSTANCE)

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
                    queue.router.release(pick.endpoint)
                else:
                    answer.set_result(pick)
            if not turns:
                return
