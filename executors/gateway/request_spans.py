"""Spans of requests: from the arrival at the gateway to the end of the answer."""

from __future__ import annotations

from executors.gateway.gateway_settings import Clock
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.model_meter import Ending, Outcome
from executors.gateway.request_headers import trace_headers
from executors.gateway.wire.client_exchange import Exchange
from topics.spans import Span, Spans

_PARENT = b"traceparent: "


class RequestSpans:
    """Opens and ends the spans of requests. A client's trace is continued, and engines continue the
    gateway's span."""

    def __init__(self, spans: Spans, clock: Clock) -> None:
        self._spans = spans
        self._clock = clock

    def open(self, exchange: Exchange, arrived_ns: int) -> tuple[Span, bytes]:
        """The span of a request that arrived at `arrived_ns`, and the trace headers for engines."""
        headers = trace_headers(exchange)
        if not self._spans.on:
            return self._spans.open("request", 0.0), headers
        first, _, rest = headers.partition(b"\r\n")
        given = first.removeprefix(_PARENT).decode()
        waited_ms = self._clock.elapsed_ms(arrived_ns, self._clock.mono_ns())
        span = self._spans.open("request", self._clock.now_ms() - waited_ms, given)
        return span, _PARENT + span.trace.encode() + b"\r\n" + rest

    def end(self, span: Span, request: InflightRequest, outcome: Outcome) -> None:
        """End the span of `request`."""
        if not self._spans.on:
            return
        attributes = {
            "shoal.model": request.call.model,
            "shoal.group": request.sent_to,
            "shoal.request": request.id,
            "shoal.ending": str(outcome.ending),
            "shoal.input_tokens": outcome.input_tokens,
            "shoal.output_tokens": outcome.output_tokens,
        }
        if outcome.first_ms is not None:
            attributes["shoal.ttft_ms"] = outcome.first_ms
        failed = outcome.ending in (Ending.FAILED, Ending.REFUSED)
        span.end(self._clock.now_ms(), attributes, str(outcome.ending) if failed else "")
