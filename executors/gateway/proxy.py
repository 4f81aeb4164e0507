"""Sends a request to an engine and the response to the client, and handles engine failures.

A failed request is sent to another instance only if the client has received nothing yet and the
request cannot have harmed the engine. So it is not sent again if the connection broke or became
silent after the engine received the request. If two instances answer a request with status 500 but
answer other requests, the request is rejected with 400. An instance that cannot be reached is
ejected at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.wait_queue import Refusal
from executors.gateway.admission import Admission, Slot
from executors.gateway.engine_ejections import EngineEjections
from executors.gateway.engine_exchange import (
    AdapterNotLoaded,
    EngineClient,
    EngineError,
    EngineFailedRequest,
    EngineFault,
    EngineNotServing,
    EngineTimeout,
    RequestRejected,
    engine_error_of,
)
from executors.gateway.fault_checks import FaultChecks
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock, GatewaySettings
from executors.gateway.hang_detector import HangDetector
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.model_meter import Ending, Outcome
from executors.gateway.named_event_stream import is_aborted_answer
from executors.gateway.openai_format import (
    ApiCall,
    Usage,
    engine_body,
    error_body,
    error_events,
    kv_transfer_params_of,
    prefill_body,
    usage_of,
)
from executors.gateway.route_table import RouteTable
from executors.gateway.stage_bodies import final_stage_body, stage_body, stage_outputs_of
from executors.gateway.stream_copy import StreamCopy
from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.engine_pool import TransportError
from topics.records import Endpoint

_OVERLOAD_RETRY_S = 5.0
_REFUSALS = {
    Refusal.NO_INSTANCE: (503, "no_instance", "no instance of {model} is ready"),
    Refusal.NO_ROOM: (429, "overloaded", "no instance of {model} had capacity in time"),
    Refusal.QUEUE_FULL: (429, "overloaded", "too many requests are waiting for {model}"),
    Refusal.WITHDRAWN: (404, "not_found_error", "the model {model!r} does not exist"),
}


class Proxy:
    """Serves requests for models that have routes. Engine failures never reach the caller as
    exceptions."""

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        table: RouteTable,
        engines: EngineClient,
        metrics: GatewayMetrics,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._engines = engines
        self._metrics = metrics
        self._stall_real_s = max(1.0, clock.real_s(settings.stall_s))
        self.hang_detector = HangDetector(self._stall_real_s)
        self.admission = Admission(settings, clock, table)
        self.ejections = EngineEjections(clock, table, metrics)
        self._suspect_checks: dict[Endpoint, asyncio.Task[None]] = {}
        self._fault_checks = FaultChecks(engines, settings.verify_real_s)
        self._request_limit_real_s = max(1.0, clock.real_s(settings.request_s))

    async def serve(self, request: InflightRequest) -> Outcome:
        """Answer the client, even if engines fail, and return the outcome of the request."""
        model = request.call.model
        began = time.monotonic()
        problem = EngineError("no attempt")
        blamed: list[Endpoint] = []  # endpoints that answered this request with 500
        name = request.id
        attempt = 0
        while attempt < self._settings.attempts:
            if self._all_lack_adapter(request.call):
                why = f"no instance of {model} has loaded the adapter {request.call.adapter} yet"
                self.refuse(request, why, "no_instance", 503)
                return Outcome(Ending.REFUSED)
            if attempt:
                self._metrics.retries.labels(model).inc()
                # New id for each attempt, because an engine may still hold state under the last
                # one.
                request.id = f"{name}-{attempt}"
            slot = await self.admission.acquire(request)
            if isinstance(slot, Refusal):
                status, kind, message = _REFUSALS[slot]
                self.refuse(request, message.format(model=model), kind, status)
                return Outcome(Ending.REFUSED)
            path, group = slot.pick.path, slot.pick.group
            request.report_destination(path.name if path is not None else group, group)
            try:
                outcome = await self._attempt(request, slot)
            except RequestRejected as refusal:
                request.client.answer(refusal.status, refusal.body)
                # Any instance would reject the request, so it does not count against the SLO.
                return Outcome(Ending.REFUSED if refusal.status == 429 else Ending.WITHDRAWN)
            except EngineError as error:
                problem = error
                if not isinstance(error, AdapterNotLoaded):
                    attempt += 1
                    request.report_failed_attempt()
                if request.response_started:
                    self._metrics.broken_streams.labels(model).inc()
                    why = f"the engine failed: {error}"
                    end = error_events(why, "engine_lost", 502, request.call.path)
                    request.client.write(end, last=True)
                    return Outcome(Ending.FAILED)
                if not error.may_resend or time.monotonic() - began >= self._request_limit_real_s:
                    break
                if isinstance(error, EngineFailedRequest):
                    blamed.append(request.faulty_endpoints[-1])
                    slot.release()
                    if await self._fault_checks.request_is_at_fault(model, blamed):
                        self._metrics.bad_requests.inc()
                        why = f"engines that answer other requests fail at this one: {error}"
                        self.refuse(request, why, "invalid_request_error", 400)
                        return Outcome(Ending.WITHDRAWN)
            else:
                self.ejections.count_faults(model, request.faulty_endpoints)
                return outcome
            finally:
                slot.release()
        self.refuse(request, f"no instance answered: {problem}", "engine_lost", problem.status)
        return Outcome(Ending.FAILED)

    def refuse(self, request: InflightRequest, message: str, kind: str, status: int) -> None:
        """Refuse the request; with status 429 or 503, tell the client when to retry."""
        if status in (429, 503):
            cold = status == 503
            wait_s = self.admission.hold_s(request.call.model) if cold else _OVERLOAD_RETRY_S
            real_s = max(1, math.ceil(self._clock.real_s(wait_s)))
            request.client.add_header(b"Retry-After", b"%d" % real_s)
        body = error_body(message, kind, status, path=request.call.path)
        request.client.answer(status, body)

    async def _attempt(self, request: InflightRequest, slot: Slot) -> Outcome:
        """Make one attempt. Raises EngineError; its `may_resend` tells whether another instance may
        be tried."""
        call, pick = request.call, slot.pick
        if pick.path is not None:
            return await self._answer_by_stages(request, slot, pick.path)
        if not pick.prefill:
            return await self._answer(request, pick.endpoint, engine_body(call))
        raw = await self._fetch(request, pick.endpoint, prefill_body(call))
        slot.release()  # only the hand-over of KV remains, which needs no slot
        params = kv_transfer_params_of(raw)
        if params is None:
            request.faulty_endpoints += (pick.endpoint,)
            raise EngineFault("no kv_transfer_params in the answer to a prefill")
        decode_slot = self.admission.decode_slot(call.model, pick.group, request.tried_endpoints)
        if decode_slot is None:
            raise EngineFault(f"{pick.group} has no decode instance any more")
        try:
            outcome = await self._decode(request, decode_slot.pick.endpoint, pick.endpoint, params)
            # A decode instance also counts the KV that was handed over as cached.
            usage = usage_of(raw) or Usage(0, 0)
            return replace(outcome, cached_tokens=usage.cached_tokens)
        finally:
            decode_slot.release()

    async def _decode(
        self,
        request: InflightRequest,
        endpoint: Endpoint,
        prefilled: Endpoint,
        params: dict[str, Any],
    ) -> Outcome:
        """At `endpoint`, decode a prompt that was prefilled at `prefilled`. If the KV cannot be
        handed over, `endpoint` computes the prompt again.

        If roles have changed since the prefill, both may be the same instance. Then no hand-over
        takes place, because vLLM answers a hand-over to itself with 500; the prefix cache has the
        KV.
        """
        if endpoint != prefilled:
            try:
                return await self._answer(
                    request, endpoint, engine_body(request.call, kv_transfer_params=params)
                )
            except EngineFault as error:
                if request.response_started or not error.may_resend:
                    raise
                # The cause may be a lost prefill instance, so this does not count as a failure of
                # the decode instance.
                request.faulty_endpoints, request.tried_endpoints = (
                    request.faulty_endpoints[:-1],
                    request.tried_endpoints - {endpoint},
                )
            request.id += "-whole"  # the engine may still hold state under the first id
        self._metrics.recomputed.labels(request.call.model).inc()
        return await self._answer(request, endpoint, engine_body(request.call))

    async def _answer_by_stages(
        self, request: InflightRequest, slot: Slot, path: ComponentPath
    ) -> Outcome:
        """Send the request through the stages of `path`. Each stage gets the outputs of the earlier
        stages, and the last stage answers the client."""
        call, outputs = request.call, dict[str, Any]()
        last = len(path.hops) - 1
        for number, hop in enumerate(path.hops):
            hop_slot = (
                slot
                if number == 0
                else self.admission.hop_slot(call.model, path, number, request.tried_endpoints)
            )
            if hop_slot is None:
                raise EngineNotServing(f"stage {hop.stage} has no instance any more")
            endpoint = hop_slot.pick.endpoint
            try:
                if number == last:
                    return await self._answer(
                        request, endpoint, final_stage_body(call, hop, outputs)
                    )
                new_outputs = stage_outputs_of(
                    await self._fetch(request, endpoint, stage_body(call, hop, outputs))
                )
                if new_outputs is None:
                    request.faulty_endpoints += (endpoint,)
                    raise EngineFault("no stage_outputs in its answer")
                outputs |= new_outputs
            except EngineError as error:
                error.args = (f"stage {hop.stage}: {error}",)
                raise
            finally:
                hop_slot.release()
        raise AssertionError("a path has a last hop")

    async def _answer(self, request: InflightRequest, endpoint: Endpoint, body: Blocks) -> Outcome:
        """Answer the client with the response of `endpoint`."""
        if request.call.stream:
            return await self._stream(request, endpoint, body)
        raw = await self._fetch(request, endpoint, body)
        ended_ns = request.timer_start_ns
        self._add_instance_headers(request, endpoint)
        request.start_response()
        request.client.answer(200, raw)
        usage = usage_of(raw) or Usage(0, 0)
        last_ms = self._clock.elapsed_ms(request.arrived_ns, ended_ns)
        return Outcome(Ending.COMPLETED, last_ms, None, *usage)

    async def _fetch(self, request: InflightRequest, endpoint: Endpoint, body: Blocks) -> bytes:
        """Get the whole response body of `endpoint`."""
        async with self._attempt_scope(request, endpoint):
            call = request.call
            answer = await self._engines.post(
                endpoint, call.model, call.path, body, request.engine_headers(), call.adapter
            )
            try:
                raw = await answer.read()
            except TransportError as error:
                raise engine_error_of(error) from error
            finally:
                answer.close()
            if is_aborted_answer(call.path, raw):
                raise EngineFault("it stopped in the middle of the answer")
        self._record_success(endpoint)
        return raw

    async def _stream(self, request: InflightRequest, endpoint: Endpoint, body: Blocks) -> Outcome:
        """Copy the event stream of `endpoint` to the client."""
        async with self._attempt_scope(request, endpoint) as scope:
            call = request.call
            answer = await self._engines.post(
                endpoint, call.model, call.path, body, request.engine_headers(), call.adapter
            )
            del body  # free a long prompt as soon as the response has begun
            self._add_instance_headers(request, endpoint)
            passing = StreamCopy(request, answer, self.hang_detector, endpoint, scope)
            try:
                await passing.run()
            finally:
                answer.close()
        self._record_success(endpoint)
        events = passing.events
        if events.failed:
            self._metrics.broken_streams.labels(request.call.model).inc()
            return Outcome(Ending.FAILED)
        usage = events.usage or Usage(0, events.events)
        return Outcome(
            Ending.COMPLETED,
            self._clock.elapsed_ms(request.arrived_ns, passing.last_ns),
            self._clock.elapsed_ms(request.arrived_ns, passing.first_ns),
            *usage,
        )

    @asynccontextmanager
    async def _attempt_scope(
        self, request: InflightRequest, endpoint: Endpoint
    ) -> AsyncIterator[asyncio.Timeout]:
        """Context manager of one attempt at `endpoint`: applies the time limits and records a
        failure of the engine."""
        request.stop_timer()
        try:
            async with (
                asyncio.timeout(self._request_limit_real_s),
                self.hang_detector.attempt(endpoint) as scope,
            ):
                yield scope
        except TimeoutError:
            request.tried_endpoints |= {endpoint}
            raise EngineTimeout("no answer in time") from None
        except EngineError as error:
            request.tried_endpoints |= {endpoint}
            if error.ejects:
                self.ejections.eject(request.call.model, endpoint)
            elif isinstance(error, AdapterNotLoaded):
                self._note_lacking_adapter(request.call, endpoint)
            elif isinstance(error, EngineFault) and not request.response_started:
                request.faulty_endpoints += (endpoint,)
                if not await self._fault_checks.survived_error(request.call.model, endpoint):
                    error.may_resend = False
                    self.ejections.eject(request.call.model, endpoint)
            raise
        finally:
            request.start_timer()

    def _all_lack_adapter(self, call: ApiCall) -> bool:
        router = self._table.routers.get(call.model)
        return bool(call.adapter) and router is not None and router.all_lack(call.adapter)

    def _note_lacking_adapter(self, call: ApiCall, endpoint: Endpoint) -> None:
        metrics = self._metrics
        metrics.count_adapter(metrics.adapters_not_loaded, call.model, call.adapter)
        router = self._table.routers.get(call.model)
        if router is not None:
            router.note_lacking(call.adapter, endpoint)

    def _add_instance_headers(self, request: InflightRequest, endpoint: Endpoint) -> None:
        request.client.add_header(b"X-Shoal-Model", request.call.model.encode())
        request.client.add_header(b"X-Shoal-Instance", endpoint.instance.encode())

    def _record_success(self, endpoint: Endpoint) -> None:
        self.hang_detector.record_activity(endpoint)
        self.ejections.forget_faults(endpoint)

    def check_engines(self) -> None:
        """Check engines that may hang, forget endpoints without routes, and refuse requests that
        have waited too long. Call about twice a second."""
        model_of = {
            endpoint: model
            for model, router in self._table.routers.items()
            for endpoint in router.endpoints()
        }
        for endpoint in self.hang_detector.suspects():
            if endpoint not in self._suspect_checks:
                task = asyncio.create_task(
                    self._check_suspect(endpoint, model_of.get(endpoint, ""))
                )
                self._suspect_checks[endpoint] = task
                task.add_done_callback(lambda _, at=endpoint: self._suspect_checks.pop(at, None))  # type: ignore[misc]
        live = model_of.keys()
        self.ejections.keep(live)
        self.hang_detector.forget(frozenset(live))
        self.admission.refuse_expired()

    async def _check_suspect(self, endpoint: Endpoint, model: str) -> None:
        """Eject a silent engine unless its metrics make progress or it can generate a token."""
        before = await self._engines.progress_count(endpoint)
        limit_s = min(10.0, self._stall_real_s)
        if model and await self._engines.is_alive(endpoint, model, generate=True, limit_s=limit_s):
            self.hang_detector.record_activity(endpoint)
            return
        after = await self._engines.progress_count(endpoint)
        if after > before >= 0.0:
            self.hang_detector.record_activity(endpoint)
            return
        if endpoint not in self.hang_detector.suspects():
            return
        if model:
            self.ejections.need_token_probe.add(endpoint)
            self.ejections.eject(model, endpoint)
        self.hang_detector.cancel_attempts(endpoint)  # even if the routes no longer contain it

    def close(self) -> None:
        """Cancel all checks."""
        self._fault_checks.close()
        for task in self._suspect_checks.values():
            task.cancel()
