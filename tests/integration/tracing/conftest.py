"""OpenTelemetry from requirements-tracing.lock, and a collector on loopback."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.locked_packages import ROOT, ensure


@pytest.fixture(scope="session")
def opentelemetry(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Folder of the packages; None if they are installed. SHOAL_TEST_TRACING: folder for them."""
    lock = ROOT / "requirements-tracing.lock"
    return ensure("opentelemetry.sdk.trace", lock, "SHOAL_TEST_TRACING", tmp_path_factory)


@dataclass
class Collector:
    """A collector of OTLP over HTTP. url: its address. bodies: the received requests."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    def spans(self) -> dict[str, list[dict[str, Any]]]:
        """The received spans by name, with ids as hex text and attributes as a dict."""
        messages = importlib.import_module(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
        )
        found: dict[str, list[dict[str, Any]]] = {}
        for body in [*self.bodies]:
            for resource in messages.ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found.setdefault(span.name, []).append({
                            "service": service,
                            "trace": span.trace_id.hex(),
                            "id": span.span_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "ms": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6,
                            "failed": span.status.code == 2,
                            **_values(span.attributes),
                        })  # fmt: skip
        return found


def _values(attributes: Any) -> dict[str, Any]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that listens."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    thread.join(5.0)
    server.server_close()
