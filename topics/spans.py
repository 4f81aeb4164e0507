"""Spans of traces: a small interface over OpenTelemetry. Without a tracer it does nothing.

A span that another process continues has a `trace`: its position as a traceparent (W3C Trace
Context, version 00). All times are domain ms. Processes open the tracer themselves, because this
package has no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NS_PER_MS = 1_000_000


class Span:
    """One open span. trace: its traceparent, "" if spans are off."""

    def __init__(self, span: Any = None, api: Any = None) -> None:
        self._span = span
        self._api = api
        self.trace = ""
        if span is not None:
            at = span.get_span_context()
            self.trace = f"00-{at.trace_id:032x}-{at.span_id:016x}-{int(at.trace_flags):02x}"

    def add_event(self, name: str, at_ms: float) -> None:
        """Note an event within the span."""
        if self._span is not None:
            self._span.add_event(name, timestamp=int(at_ms * _NS_PER_MS))

    def end(self, at_ms: float, attributes: Mapping[str, Any], error: str = "") -> None:
        """End the span. error: the reason of a failure, "" for success."""
        if self._span is None:
            return
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))
        self._span.end(end_time=int(at_ms * _NS_PER_MS))


class Spans:
    """Opens spans. tracer: a tracer of OpenTelemetry, None for none. api: its module `trace`."""

    def __init__(self, tracer: Any = None, api: Any = None) -> None:
        self._tracer = tracer
        self._api = api

    @property
    def on(self) -> bool:
        """Whether spans are exported."""
        return self._tracer is not None

    def open(self, name: str, at_ms: float, parent: str = "") -> Span:
        """Open a span. parent: the traceparent to continue; an empty or invalid one begins a
        trace."""
        if self._tracer is None:
            return _NO_SPAN
        found = _PARENT.fullmatch(parent)
        around = self._api.INVALID_SPAN
        if found:
            trace, span, flags = (int(part, 16) for part in found.groups())
            at = self._api.SpanContext(trace, span, True, self._api.TraceFlags(flags))
            around = self._api.NonRecordingSpan(at)
        context = self._api.set_span_in_context(around)
        made = self._tracer.start_span(name, context, start_time=int(at_ms * _NS_PER_MS))
        return Span(made, self._api)


_NO_SPAN = Span()
NO_SPANS = Spans()
"""Spans that are off."""
