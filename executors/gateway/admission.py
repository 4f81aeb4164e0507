"""Admits requests to engines with spare capacity and holds the tasks of requests that must wait.
`autoscaler.serving.wait_queue` decides their order and how long they may wait; `proxy` answers
refused requests.
"""

from __future__ import annotations

import asyncio

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.request_router import Pick, Router
from autoscaler.serving.wait_queue import Refusal, Ticket, WaitQueue, wait_limits_ms
from executors.gateway.gateway_settings import Clock, GatewaySettings
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint


class Slot:
    """A request's slot at an engine. `release` may be called more than once."""

    __slots__ = ("_admission", "_router", "pick")

    def __init__(self, admission: Admission, router: Router, pick: Pick) -> None:
        self._admission: Admission | None = admission
        self._router = router
        self.pick = pick

    def release(self) -> None:
        """Free the slot for another request, because the request has left the engine."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.release(self._router, self.pick.endpoint)


class Admission:
    """The wait queues of all models."""

    def __init__(self, settings: GatewaySettings, clock: Clock, table: RouteTable) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._queues: dict[str, WaitQueue] = {}
        self._results: dict[Ticket, asyncio.Future[Pick | Refusal]] = {}
        table.on_change(self._dispatch)
        table.on_withdrawal(self._refuse_all)

    def waiting_count(self, model: str) -> int:
        """Number of requests of `model` that wait for a slot."""
        queue = self._queues.get(model)
        return len(queue) if queue is not None else 0

    def hold_s(self, model: str) -> float:
        """Domain seconds that a request of `model` waits while no instance serves it: at least the
        time of a cold start."""
        return self._limits_ms(model)[0] / 1000.0

    def _limits_ms(self, model: str) -> tuple[float, float]:
        router = self._table.routers.get(model)
        start_s = router.routes.start_s if router is not None and router.routes else 0.0
        settings = self._settings
        return wait_limits_ms(settings.hold_s * 1000.0, settings.queue_s * 1000.0, start_s)

    async def acquire(self, request: InflightRequest) -> Slot | Refusal:
        """Wait until `request` gets a slot or is refused. Cancellation removes the request from the
        queue."""
        model = request.call.model
        router = self._table.routers.get(model)
        if router is None and request.tried_endpoints:
            router = self._table.leaving.get(model)
        if router is None:  # its routes have just been withdrawn
            return Refusal.WITHDRAWN
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = WaitQueue(router, 0.0, self._settings.queue_s * 1000)
        queue.hold_ms, queue.queue_ms = self._limits_ms(model)
        ticket = queue.join(
            request.arrived_ns, request.tried_endpoints, self._clock.now_ms(), request.traits
        )
        answer = self._results[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._dispatch(model)
            if not answer.done():
                if len(queue) > self._settings.max_waiting:
                    return Refusal.QUEUE_FULL
                request.stop_timer()
            result = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # cancelled just after it got a slot
                late = answer.result()
                if isinstance(late, Pick):
                    self.release(router, late.endpoint)
            raise
        finally:
            queue.leave(ticket)
            del self._results[ticket]
            if not request.timer_start_ns:
                request.start_timer()
        return Slot(self, router, result) if isinstance(result, Pick) else result

    def decode_slot(self, model: str, group: str, tried: frozenset[Endpoint]) -> Slot | None:
        """A slot at a decode instance of `group` for a request that another instance of `group` has
        prefilled; None if there is no such instance."""
        router = self._table.routers.get(model) or self._table.leaving.get(model)
        if router is None:
            return None
        result = router.pick_decode(group, tried) or router.pick_decode(group)
        return Slot(self, router, Pick(group, result, False)) if result is not None else None

    def hop_slot(
        self, model: str, path: ComponentPath, hop: int, tried: frozenset[Endpoint]
    ) -> Slot | None:
        """A slot for hop number `hop` of `path`; None if no instance serves that stage."""
        router = self._table.routers.get(model) or self._table.leaving.get(model)
        if router is None:
            return None
        result = router.pick_hop(path, hop, tried) or router.pick_hop(path, hop)
        return Slot(self, router, Pick(path.group, result, False, path)) if result else None

    def release(self, router: Router, endpoint: Endpoint) -> None:
        """Note that a request has left `endpoint`."""
        router.release(endpoint)
        self._dispatch(router.model)

    def _refuse_all(self, model: str) -> None:
        """Refuse all waiting requests of a model whose routes were withdrawn."""
        queue = self._queues.pop(model, None)
        if queue is not None:
            for ticket in queue.tickets():
                answer = self._results[ticket]
                if not answer.done():
                    answer.set_result(Refusal.WITHDRAWN)

    def refuse_expired(self) -> None:
        """Refuse requests that have waited too long."""
        now_ms = self._clock.now_ms()
        for queue in self._queues.values():
            for ticket, refusal in queue.expired(now_ms):
                answer = self._results[ticket]
                if not answer.done():
                    answer.set_result(refusal)

    def _dispatch(self, model: str) -> None:
        """Give free slots to waiting requests."""
        queue = self._queues.get(model)
        while queue is not None and len(queue):
            admitted = queue.dispatch(self._clock.now_ms())
            for ticket, pick in admitted:
                answer = self._results[ticket]
                if answer.done():  # its task was cancelled, but is still in the queue
                    queue.router.release(pick.endpoint)
                else:
                    answer.set_result(pick)
            if not admitted:
                return
