"""One request's way: take a slot, hand over, pass the answer through, try again or fail.

Owns what is done about failures. An instance that is gone is ejected at once. A request is tried
elsewhere as long as the client has not seen a byte; after that it ends with a visible error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from autoscaler.serving.wait_queue import Refusal
from executors.gateway.admission import Admission, Slot
from executors.gateway.engine import (
    EngineError,
    EngineFaulty,
    EngineGone,
    EngineRefused,
    Engines,
    EngineStalled,
    failure_of,
)
from executors.gateway.events import BrokenStream, EventStream
from executors.gateway.hang_detector import HangDetector
from executors.gateway.meter import Ending, Outcome
from executors.gateway.metrics import Metrics
from executors.gateway.openai import (
    engine_body,
    error_body,
    error_events,
    handed_over,
    prefill_body,
    usage_of,
)
from executors.gateway.request import Request
from executors.gateway.settings import Clock, Settings
from executors.gateway.table import RouteTable
from topics.records import Endpoint

_FAULTS_TO_EJECT = 3
# A decode instance also answers 500 when the prefill instance that held the KV is gone, which is
# not its fault and happens to all that were handed over at that moment.
_FAULTS_TO_EJECT_DECODE = 20
_TAIL_REAL_S = 1.0  # for the end of an answer whose last event was passed on already
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
        self.hang_detector = HangDetector(max(1.0, clock.real_s(settings.stall_s)))
        self.admission = Admission(settings, clock, table)
        self._faults: dict[Endpoint, int] = {}
        self._life_real_s = max(1.0, clock.real_s(settings.request_s))
        self.hung: set[Endpoint] = set()

    async def serve(self, request: Request) -> Outcome:
        """Answer the client, whatever happens to engines; how it ended."""
        model = request.call.model
        began = time.monotonic()
        problem = EngineError("no attempt")
        name = request.id
        for attempt in range(self._settings.attempts):
            if attempt:
                self._metrics.retries.labels(model).inc()
                # An engine may still hold something under the name of the last try.
                request.id = f"{name}-{attempt}"
            slot = await self.admission.take(request)
            if isinstance(slot, Refusal):
                status, kind, message = _REFUSALS[slot]
                await self._refuse(request, message.format(model=model), kind, status)
                return Outcome(Ending.REFUSED)
            try:
                return await self._attempt(request, slot)
            except EngineRefused as refusal:
                await request.client.answer(refusal.status, refusal.body)
                # Any instance would say so at once, so how long it took is no limit missed.
                return Outcome(Ending.REFUSED if refusal.status == 429 else Ending.WITHDRAWN)
            except EngineError as error:
                problem = error
                if request.started:
                    self._metrics.broken.labels(model).inc()
                    end = error_events(f"the engine was lost: {error}", "engine_lost", 502)
                    await request.client.write(end, last=True)
                    return Outcome(Ending.FAILED)
                if time.monotonic() - began >= self._life_real_s:
                    break
            finally:
                slot.give_back()
        await self._refuse(request, f"no instance answered: {problem}", "engine_lost", 502)
        return Outcome(Ending.FAILED)

    async def _refuse(self, request: Request, message: str, kind: str, status: int) -> None:
        await request.client.answer(status, error_body(message, kind, status))

    async def _attempt(self, request: Request, slot: Slot) -> Outcome:
        """One try; EngineError says that it may be tried elsewhere if nothing was sent yet."""
        call, params, pick = request.call, None, slot.pick
        endpoint = pick.endpoint
        if pick.prefill:
            raw = await self._whole(request, endpoint, prefill_body(call), _FAULTS_TO_EJECT)
            slot.give_back()  # what is left to do there is to hand over its KV
            params = handed_over(raw)
            if params is None:
                fault = EngineFaulty("no kv_transfer_params in the answer to a prefill")
                self._blame(call.model, endpoint, fault, _FAULTS_TO_EJECT)
                raise fault
            router = self._table.routers[call.model]
            decoder = router.pick_decode(pick.group, request.tried)
            decoder = decoder or router.pick_decode(pick.group)
            if decoder is None:
                raise EngineFaulty(f"{pick.group} has no decode instance any more")
            endpoint = decoder
        faults = _FAULTS_TO_EJECT_DECODE if pick.prefill else _FAULTS_TO_EJECT
        body = engine_body(call, params)
        if call.stream:
            return await self._stream(request, endpoint, body, faults)
        raw = await self._whole(request, endpoint, body, faults)
        ended_ns = request.mark_ns
        request.started = True
        await request.client.answer(200, raw)
        prompt, completion = usage_of(raw) or (0, 0)
        last_ms = self._clock.elapsed_ms(request.arrived_ns, ended_ns)
        return Outcome(Ending.COMPLETED, last_ms, None, prompt, completion)

    async def _whole(self, request: Request, endpoint: Endpoint, body: bytes, faults: int) -> bytes:
        """The whole answer of `endpoint`."""
        request.pause()
        try:
            async with self._attempting(endpoint):
                answer = await self._engines.post(endpoint, request.call.path, body, request.id)
                try:
                    raw = await answer.read()
                except (aiohttp.ClientError, OSError) as error:
                    raise failure_of(error) from error
                finally:
                    answer.release()
        except EngineError as error:
            self._blame(request.call.model, endpoint, error, faults)
            request.tried |= {endpoint}
            raise
        finally:
            request.resume()
        self._praise(endpoint)
        return raw

    @asynccontextmanager
    async def _attempting(self, endpoint: Endpoint) -> AsyncIterator[asyncio.Timeout]:
        """Around one attempt: time-outs come out of it as EngineStalled."""
        try:
            async with self.hang_detector.attempt(endpoint) as scope:
                yield scope
        except TimeoutError as error:
            raise failure_of(error) from error

    async def _stream(
        self, request: Request, endpoint: Endpoint, body: bytes, faults: int
    ) -> Outcome:
        """Pass the events of `endpoint` through."""
        request.pause()
        try:
            async with self._attempting(endpoint) as scope:
                answer = await self._engines.post(endpoint, request.call.path, body, request.id)
                try:
                    return await self._pass_through(request, endpoint, answer, scope)
                finally:
                    # Only an answer that was read to its end gives its connection back.
                    answer.release() if answer.content.at_eof() else answer.close()
        except EngineError as error:
            self._blame(request.call.model, endpoint, error, faults)
            request.tried |= {endpoint}
            request.resume()
            raise

    async def _pass_through(
        self,
        request: Request,
        endpoint: Endpoint,
        answer: aiohttp.ClientResponse,
        scope: asyncio.Timeout,
    ) -> Outcome:
        events = EventStream(strip_usage=not request.call.usage_wanted)
        first_ns = now_ns = 0
        held = b""
        while not events.done:
            block = await _block(answer)
            now_ns = request.resume()
            if not block:
                raise EngineGone("the stream ended before its end")
            try:
                held += events.feed(block)
            except BrokenStream as error:
                raise EngineFaulty(str(error)) from error
            if not (request.started or events.failed or events.done or events.events):
                request.pause()
                continue  # nothing of worth yet: it may still be tried elsewhere
            if not request.started and events.failed:
                raise EngineFaulty("an error event before the first token")
            if first_ns == 0:
                first_ns = now_ns
                self._faults.pop(endpoint, None)
            self.hang_detector.heard(endpoint)
            request.started = True
            if held or events.done:
                with self.hang_detector.elsewhere(endpoint, scope):
                    await request.client.write(held, last=events.done)
            held = b""
            request.pause()
        if not answer.content.at_eof():
            # Only for the connection's sake: the client has everything, whatever comes of this.
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(_TAIL_REAL_S):
                    await _block(answer)
        request.resume()
        if events.failed:
            self._metrics.broken.labels(request.call.model).inc()
            return Outcome(Ending.FAILED)
        prompt, completion = events.usage or (0, events.events)
        return Outcome(
            Ending.COMPLETED,
            self._clock.elapsed_ms(request.arrived_ns, now_ns),
            self._clock.elapsed_ms(request.arrived_ns, first_ns),
            prompt,
            completion,
        )

    def _praise(self, endpoint: Endpoint) -> None:
        self.hang_detector.heard(endpoint)
        self._faults.pop(endpoint, None)

    def _blame(self, model: str, endpoint: Endpoint, error: EngineError, faults: int) -> None:
        """Eject `endpoint` if `error` says that it serves nobody.

        faults: so many faulty answers in a row say it, too.
        """
        if isinstance(error, EngineStalled):
            return  # slow to this request; `look` finds out who is silent towards all
        if isinstance(error, EngineFaulty):
            self._faults[endpoint] = self._faults.get(endpoint, 0) + 1
            if self._faults[endpoint] < faults:
                return
            self._faults.pop(endpoint)
        if self._table.routers[model].eject(endpoint, self._clock.now_ms()):
            self._metrics.ejections.labels(model).inc()
            self._table.wake(model)  # who waited for it may go where they were tried already

    def look(self) -> None:
        """Eject what hangs, end its requests, forget endpoints that are in no routes, and turn
        away those who have waited too long."""
        live: set[Endpoint] = set()
        hung = self.hang_detector.hung()
        for model, router in self._table.routers.items():
            endpoints = router.endpoints()
            live |= endpoints
            for endpoint in endpoints & set(hung):
                self.hung.add(endpoint)
                if router.eject(endpoint, self._clock.now_ms()):
                    self._metrics.ejections.labels(model).inc()
        for endpoint in hung:  # one that left the routes may hang, too
            self.hang_detector.give_up(endpoint)
        for endpoint in self._faults.keys() - live:
            del self._faults[endpoint]
        self.hung &= live
        self.hang_detector.forget(frozenset(live))
        self.admission.look()


async def _block(answer: aiohttp.ClientResponse) -> bytes:
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise failure_of(error) from error
