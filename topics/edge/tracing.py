"""OpenTelemetry traces over OTLP/HTTP, if the environment names a collector.

The SDK reads its own variables: the sampler, headers, time limits and the name of the service.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from topics.checks import InvalidValue
from topics.spans import NO_SPANS, Spans

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def open_spans(service: str, instance: str) -> Spans:
    """Spans of this process, exported in the background; `NO_SPANS` without a collector.

    service: name of the service if OTEL_SERVICE_NAME names none. instance: name of the process.
    """
    named = [name for name in ENDPOINTS if os.environ.get(name)]
    if not named:
        return NO_SPANS
    try:
        api = importlib.import_module("opentelemetry.trace")
        sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
        batches = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        needed = "OpenTelemetry (`make tracing`), or no such variable"
        raise InvalidValue(named[0], os.environ[named[0]], needed) from None
    names = {
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or service,
        "service.instance.id": instance,
    }
    provider = sdk.TracerProvider(resource=resources.Resource.create(names))
    provider.add_span_processor(batches.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return Spans(provider.get_tracer("shoal"), api)
