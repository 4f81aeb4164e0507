"""One request's way: take a slot, hand over, pass the answer through, try again or fail.

Owns what is done about failures. An instance that is gone is ejected at once. A request is tried
elsewhere only as long as the client has not seen a byte and the request surely harmed no engine:
after it was in an engine whose connection broke or that fell silent, it goes nowhere any more. A
request that two attempts answer with 500, at instances that answer others, is its client's fault.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.wait_queue import Refusal
from executors.gateway.admission import Admission, Slot
from executors.gateway.engine_exchange import (
    EngineError,
    EngineFailedRequest,
    EngineFaulty,
    EngineGone,
    EngineRefused,
    Engines,
    EngineStalled,
    failure_of,
)
from executors.gateway.event_stream import is_aborted
from executors.gateway.fault_checks import FaultChecks
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.gateway_settings import Clock, Settings
from executors.gateway.hang_detector import HangDetector
from executors.gateway.inflight_request import Request
from executors.gateway.model_meter import Ending, Outcome
from executors.gateway.openai_format import (
    engine_body,
    error_body,
    error_events,
    handed_over,
    prefill_body,
    usage_of,
)
from executors.gateway.route_table import RouteTable
from executors.gateway.stage_bodies import body_of, last_body, outputs_of
from executors.gateway.stream_copy import Passing
from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.engine_pool import TransportError
from topics.records import Endpoint

_FAULTS_TO_EJECT = 3
_OVERLOAD_RETRY_S = 5.0
_REFUSALS = {
    Refusal.NO_INSTANCE: (503, "no_instance", "no instance of {model} is ready"),
    Refusal.NO_ROOM: (429, "overloaded", "no instance of {model} had room in time"),
    Refusal.QUEUE_FULL: (429, "overloaded", "too many requests wait for {model}"),
}


class Relay:
    """Takes requests of known models to engines. Failures of engines end here."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        table: RouteTable,
        engines: Engines,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._engines = engines
        self._metrics = metrics
        self._stall_real_s = max(1.0, clock.real_s(settings.stall_s))
        self.hang_detector = HangDetector(self._stall_real_s)
        self.admission = Admission(settings, clock, table)
        self._faults: dict[Endpoint, int] = {}
        self._looks: dict[Endpoint, asyncio.Task[None]] = {}
        self._fault_checks = FaultChecks(engines, settings.verify_real_s)
        self._life_real_s = max(1.0, clock.real_s(settings.request_s))
        self.hung: set[Endpoint] = set()

    async def serve(self, request: Request) -> Outcome:
        """Answer the client, whatever happens to engines; how it ended."""
        model = request.call.model
        began = time.monotonic()
        problem = EngineError("no attempt")
        blamed: list[Endpoint] = []  # they answered it with 500
        name = request.id
        for attempt in range(self._settings.attempts):
            if attempt:
                self._metrics.retries.labels(model).inc()
                # An engine may still hold something under the name of the last try.
                request.id = f"{name}-{attempt}"
            slot = await self.admission.take(request)
            if isinstance(slot, Refusal):
                status, kind, message = _REFUSALS[slot]
                self.refuse(request, message.format(model=model), kind, status)
                return Outcome(Ending.REFUSED)
            way = slot.pick.path
            request.sent(way.name if way is not None else slot.pick.group)
            try:
                outcome = await self._attempt(request, slot)
            except EngineRefused as refusal:
                request.client.answer(refusal.status, refusal.body)
                # Any instance would say so at once, so how long it took is no limit missed.
                return Outcome(Ending.REFUSED if refusal.status == 429 else Ending.WITHDRAWN)
            except EngineError as error:
                problem = error
                if request.started:
                    self._metrics.broken.labels(model).inc()
                    end = error_events(f"the engine was lost: {error}", "engine_lost", 502)
                    request.client.write(end, last=True)
                    return Outcome(Ending.FAILED)
                if not error.resend or time.monotonic() - began >= self._life_real_s:
                    break
                if isinstance(error, EngineFailedRequest):
                    blamed.append(request.faulty[-1])
                    slot.give_back()
                    if await self._fault_checks.is_to_blame(model, blamed):
                        self._metrics.bad.inc()
                        why = f"engines that answer others fail at this request: {error}"
                        self.refuse(request, why, "invalid_request_error", 400)
                        return Outcome(Ending.WITHDRAWN)
            else:
                self._count_faults(model, request.faulty)
                return outcome
            finally:
                slot.give_back()
        self.refuse(request, f"no instance answered: {problem}", "engine_lost", problem.status)
        return Outcome(Ending.FAILED)

    def refuse(self, request: Request, message: str, kind: str, status: int) -> None:
        """Say no, and when it is worth asking again."""
        if status in (429, 503):
            cold = status == 503
            wait_s = self.admission.hold_s(request.call.model) if cold else _OVERLOAD_RETRY_S
            real_s = max(1, math.ceil(self._clock.real_s(wait_s)))
            request.client.add_header(b"Retry-After", b"%d" % real_s)
        request.client.answer(status, error_body(message, kind, status))

    async def _attempt(self, request: Request, slot: Slot) -> Outcome:
        """One try; EngineError says whether it may be tried elsewhere if nothing was sent yet."""
        call, pick = request.call, slot.pick
        if pick.path is not None:
            return await self._along(request, slot, pick.path)
        if not pick.prefill:
            return await self._answer(request, pick.endpoint, engine_body(call))
        raw = await self._whole(request, pick.endpoint, prefill_body(call))
        slot.give_back()  # what is left to do there is to hand over its KV
        params = handed_over(raw)
        if params is None:
            request.faulty += (pick.endpoint,)
            raise EngineFaulty("no kv_transfer_params in the answer to a prefill")
        decoder = self.admission.decode(call.model, pick.group, request.tried)
        if decoder is None:
            raise EngineFaulty(f"{pick.group} has no decode instance any more")
        try:
            return await self._decode(request, decoder.pick.endpoint, pick.endpoint, params)
        finally:
            decoder.give_back()

    async def _decode(
        self, request: Request, endpoint: Endpoint, prefilled: Endpoint, params: dict[str, Any]
    ) -> Outcome:
        """Decode at `endpoint` what was prefilled at `prefilled`. Where the KV cannot be had,
        `endpoint` computes the prompt again: that costs time, and no request.

        Roles may have changed since the prefill, so that both are one instance. It keeps the KV in
        its prefix cache; a hand-over to itself is what vLLM answers with 500.
        """
        if endpoint != prefilled:
            try:
                return await self._answer(
                    request, endpoint, engine_body(request.call, kv_transfer_params=params)
                )
            except EngineFaulty as error:
                if request.started or not error.resend:
                    raise
                # The prefill instance may be gone: no fault of the one that asked it.
                request.faulty, request.tried = request.faulty[:-1], request.tried - {endpoint}
            request.id += "-whole"  # the engine may still hold something under the other name
        self._metrics.recomputed.labels(request.call.model).inc()
        return await self._answer(request, endpoint, engine_body(request.call))

    async def _along(self, request: Request, slot: Slot, way: ComponentPath) -> Outcome:
        """From stage to stage: each gets what the earlier ones made, and the last one answers."""
        call, outputs = request.call, dict[str, Any]()
        last = len(way.hops) - 1
        for number, hop in enumerate(way.hops):
            taken = (
                slot if number == 0 else self.admission.hop(call.model, way, number, request.tried)
            )
            if taken is None:
                raise EngineGone(f"stage {hop.stage} has no instance any more")
            endpoint = taken.pick.endpoint
            try:
                if number == last:
                    return await self._answer(request, endpoint, last_body(call, hop, outputs))
                made = outputs_of(await self._whole(request, endpoint, body_of(call, hop, outputs)))
                if made is None:
                    request.faulty += (endpoint,)
                    raise EngineFaulty("no stage_outputs in its answer")
                outputs |= made
            except EngineError as error:
                error.args = (f"stage {hop.stage}: {error}",)
                raise
            finally:
                taken.give_back()
        raise AssertionError("a path has a last hop")

    async def _answer(self, request: Request, endpoint: Endpoint, body: Blocks) -> Outcome:
        """The answer of `endpoint`, given to the client."""
        if request.call.stream:
            return await self._stream(request, endpoint, body)
        raw = await self._whole(request, endpoint, body)
        ended_ns = request.mark_ns
        self._name_instance(request, endpoint)
        request.begin()
        request.client.answer(200, raw)
        prompt, completion = usage_of(raw) or (0, 0)
        last_ms = self._clock.elapsed_ms(request.arrived_ns, ended_ns)
        return Outcome(Ending.COMPLETED, last_ms, None, prompt, completion)

    async def _whole(self, request: Request, endpoint: Endpoint, body: Blocks) -> bytes:
        """The whole answer of `endpoint`."""
        async with self._attempting(request, endpoint):
            call = request.call
            answer = await self._engines.post(
                endpoint, call.model, call.path, body, request.engine_headers()
            )
            try:
                raw = await answer.read()
            except TransportError as error:
                raise failure_of(error) from error
            finally:
                answer.close()
            if is_aborted(raw):
                raise EngineFaulty("it was stopped amid the answer")
        self._praise(endpoint)
        return raw

    async def _stream(self, request: Request, endpoint: Endpoint, body: Blocks) -> Outcome:
        """Pass the events of `endpoint` through."""
        async with self._attempting(request, endpoint) as scope:
            call = request.call
            answer = await self._engines.post(
                endpoint, call.model, call.path, body, request.engine_headers()
            )
            del body  # a long prompt is held until the answer begins, and not for all its life
            self._name_instance(request, endpoint)
            passing = Passing(request, answer, self.hang_detector, endpoint, scope)
            try:
                await passing.run()
            finally:
                answer.close()
        self._praise(endpoint)
        events = passing.events
        if events.failed:
            self._metrics.broken.labels(request.call.model).inc()
            return Outcome(Ending.FAILED)
        prompt, completion = events.usage or (0, events.events)
        return Outcome(
            Ending.COMPLETED,
            self._clock.elapsed_ms(request.arrived_ns, passing.last_ns),
            self._clock.elapsed_ms(request.arrived_ns, passing.first_ns),
            prompt,
            completion,
        )

    @asynccontextmanager
    async def _attempting(
        self, request: Request, endpoint: Endpoint
    ) -> AsyncIterator[asyncio.Timeout]:
        """Around one attempt: what its failure says about the engine is drawn here."""
        request.pause()
        try:
            async with (
                asyncio.timeout(self._life_real_s),
                self.hang_detector.attempt(endpoint) as scope,
            ):
                yield scope
        except TimeoutError:
            request.tried |= {endpoint}
            raise EngineStalled("no answer in time") from None
        except EngineError as error:
            request.tried |= {endpoint}
            if error.ejects:
                self._eject(request.call.model, endpoint)
            elif isinstance(error, EngineFaulty) and not request.started:
                request.faulty += (endpoint,)
                if not await self._fault_checks.still_alive(request.call.model, endpoint):
                    error.resend = False
                    self._eject(request.call.model, endpoint)
            raise
        finally:
            request.resume()

    def _name_instance(self, request: Request, endpoint: Endpoint) -> None:
        request.client.add_header(b"X-Shoal-Model", request.call.model.encode())
        request.client.add_header(b"X-Shoal-Instance", endpoint.instance.encode())

    def _praise(self, endpoint: Endpoint) -> None:
        self.hang_detector.heard(endpoint)
        self._faults.pop(endpoint, None)

    def _count_faults(self, model: str, faulty: Iterable[Endpoint]) -> None:
        """Another instance answered what these could not, so it was not the request. A few such
        errors in a row, of different requests, and one is out."""
        for endpoint in faulty:
            faults = self._faults[endpoint] = self._faults.get(endpoint, 0) + 1
            if faults >= _FAULTS_TO_EJECT:
                del self._faults[endpoint]
                self.hung.add(endpoint)  # it says that it is healthy: only a token proves it
                self._eject(model, endpoint)

    def _eject(self, model: str, endpoint: Endpoint) -> None:
        router = self._table.routers.get(model)
        if router is not None and router.eject(endpoint, self._clock.now_ms()):
            self._metrics.ejections.labels(model).inc()
            self._table.wake(model)  # who waited for it may go where they were tried already

    def look(self) -> None:
        """Look closer at what may hang, forget endpoints that are in no routes, and turn away
        those who have waited too long."""
        model_of = {
            endpoint: model
            for model, router in self._table.routers.items()
            for endpoint in router.endpoints()
        }
        for endpoint in self.hang_detector.suspects():
            if endpoint not in self._looks:
                task = asyncio.create_task(self._look_closer(endpoint, model_of.get(endpoint, "")))
                self._looks[endpoint] = task
                task.add_done_callback(lambda _, at=endpoint: self._looks.pop(at, None))  # type: ignore[misc]
        live = model_of.keys()
        for endpoint in self._faults.keys() - live:
            del self._faults[endpoint]
        self.hung &= live
        self.hang_detector.forget(frozenset(live))
        self.admission.look()

    async def _look_closer(self, endpoint: Endpoint, model: str) -> None:
        """Silent for too long: it hangs unless it makes progress or a token."""
        before = await self._engines.progress(endpoint)
        limit_s = min(10.0, self._stall_real_s)
        if model and await self._engines.alive(endpoint, model, generate=True, limit_s=limit_s):
            self.hang_detector.heard(endpoint)
            return
        after = await self._engines.progress(endpoint)
        if after > before >= 0.0:
            self.hang_detector.heard(endpoint)
            return
        if endpoint not in self.hang_detector.suspects():
            return
        if model:
            self.hung.add(endpoint)
            self._eject(model, endpoint)
        self.hang_detector.give_up(endpoint)  # one that left the routes may hang, too

    def close(self) -> None:
        """Nothing is looked at any more."""
        self._fault_checks.close()
        for task in self._looks.values():
            task.cancel()
