"""One request in flight and the client that waits for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from autoscaler.serving.routing_policies import RequestTraits
from executors.gateway.openai_format import ApiCall
from topics.records import Endpoint

_NOT_COMPARED: Mapping[str, str] = {}


class Client(Protocol):
    """Interface to the client of a request, which receives the response."""

    blocked: bool
    """Whether the client reads too slowly, so that the gateway must wait until `on_unblocked` is
    called."""
    on_unblocked: Callable[[], None] | None

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header to the response before it begins."""
        ...

    def answer(self, status: int, body: bytes) -> None:
        """Send a whole response."""
        ...

    def write(self, data: bytes, last: bool) -> None:
        """Send a part of an event stream: the first part begins the response, `last` ends it."""
        ...


class InflightRequest:
    """The progress of one request. gateway_ns: real time that this process spent on it, without
    waiting for an engine, the client or a slot. headers: extra header lines for engines. traits:
    the properties that routing uses. on_sent: called with the request's kind and destination each
    time the request is sent. on_failed: called with the version of an engine that failed an
    attempt. versions: of the groups that are compared. sent_to: the last destination. version: its
    version if it is compared; "" also after a failed attempt. tried_endpoints: instances to which
    the request was sent. faulty_endpoints: instances that answered with an error of their own.
    """

    __slots__ = (
        "arrived_ns",
        "call",
        "client",
        "faulty_endpoints",
        "gateway_ns",
        "headers",
        "id",
        "on_failed",
        "on_sent",
        "response_started",
        "sent_to",
        "timer_start_ns",
        "traits",
        "tried_endpoints",
        "version",
        "versions",
    )

    def __init__(
        self,
        call: ApiCall,
        client: Client,
        arrived_ns: int,
        request_id: str,
        gateway_ns: int = 0,
        headers: bytes = b"",
        output_tokens: float = 0.0,
        kind: str = "",
        blocks: Sequence[int] = (),
    ) -> None:
        self.call = call
        self.client = client
        self.arrived_ns = arrived_ns
        self.id = request_id
        self.headers = headers
        self.timer_start_ns = time.monotonic_ns()
        self.gateway_ns = gateway_ns
        self.response_started = False
        self.tried_endpoints: frozenset[Endpoint] = frozenset()
        tokens = call.prompt_tokens_estimate + int(output_tokens)
        self.traits = RequestTraits(tokens, call.is_single_sequence, blocks, kind, call.adapter)
        self.sent_to = self.version = ""
        self.on_sent: Callable[[str, str], None] | None = None
        self.versions: Mapping[str, str] = _NOT_COMPARED
        self.on_failed: Callable[[str], None] | None = None
        self.faulty_endpoints: tuple[Endpoint, ...] = ()

    def report_destination(self, to: str, group: str) -> None:
        """Report to `on_sent` that the request is sent to `group`, or to its path, named `to`."""
        self.sent_to, self.version = to, self.versions.get(group, "")
        if self.on_sent is not None:
            self.on_sent(self.traits.kind, to)

    def report_failed_attempt(self) -> None:
        """Report to `on_failed` that the engine failed the present attempt."""
        if self.version and self.on_failed is not None:
            self.on_failed(self.version)
        self.version = ""

    def start_response(self) -> None:
        """Note that the client gets its first byte now. From now on the request cannot be sent
        again, so its body is freed."""
        if not self.response_started:
            self.response_started = True
            self.call.body_core = ()

    def engine_headers(self) -> bytes:
        """Header lines for the engine, with the request's id."""
        return b"X-Request-Id: %s\r\n%s" % (self.id.encode(), self.headers)

    def stop_timer(self) -> None:
        """Stop counting `gateway_ns` while the request waits."""
        if self.timer_start_ns:
            self.gateway_ns += time.monotonic_ns() - self.timer_start_ns
            self.timer_start_ns = 0

    def start_timer(self) -> int:
        """Count `gateway_ns` again and return the monotonic time now."""
        self.timer_start_ns = time.monotonic_ns()
        return self.timer_start_ns
