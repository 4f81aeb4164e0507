"""One request in flight, and the client that waits for its answer.

Owns the request's marks in time and what this process spent on it. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from autoscaler.serving.routing_policies import RequestTraits
from executors.gateway.openai_format import Call
from topics.records import Endpoint


class Client(Protocol):
    """Where the answer goes."""

    blocked: bool
    """It reads slower than we write, until `on_unblocked` is called."""
    on_unblocked: Callable[[], None] | None

    def add_header(self, name: bytes, value: bytes) -> None:
        """One more header of the answer, before it begins."""
        ...

    def answer(self, status: int, body: bytes) -> None:
        """A whole answer at once."""
        ...

    def write(self, data: bytes, last: bool) -> None:
        """A part of an event stream; the first one begins it, the last one ends it."""
        ...


class Request:
    """One request in flight: its marks in time and what this process spent on it.

    own_ns: real time spent here, not waiting for an engine, the client or an instance. headers:
    rendered lines that go to engines beside its id. want: what it asks for. on_sent: told of
    its kind and of where it goes, each time it is sent. tried: instances it was sent to. faulty:
    those that answered it with an error of their own.
    """

    __slots__ = (
        "arrived_ns",
        "call",
        "client",
        "faulty",
        "headers",
        "id",
        "mark_ns",
        "on_sent",
        "own_ns",
        "started",
        "tried",
        "want",
    )

    def __init__(
        self,
        call: Call,
        client: Client,
        arrived_ns: int,
        request_id: str,
        own_ns: int = 0,
        headers: bytes = b"",
        output_tokens: float = 0.0,
        kind: str = "",
    ) -> None:
        self.call = call
        self.client = client
        self.arrived_ns = arrived_ns
        self.id = request_id
        self.headers = headers
        self.mark_ns = time.monotonic_ns()
        self.own_ns = own_ns
        self.started = False
        self.tried: frozenset[Endpoint] = frozenset()
        tokens = call.tokens_guess + int(output_tokens)
        self.want = RequestTraits(tokens, call.single, call.prefix, kind)
        self.on_sent: Callable[[str, str], None] | None = None
        self.faulty: tuple[Endpoint, ...] = ()

    def sent(self, to: str) -> None:
        """It goes to the group, or by the way, called `to`."""
        if self.on_sent is not None:
            self.on_sent(self.want.kind, to)

    def begin(self) -> None:
        """The client gets a byte of the answer now; from here on nothing is sent again."""
        if not self.started:
            self.started = True
            self.call.core = ()

    def engine_headers(self) -> bytes:
        """What goes to an engine beside the body's own headers."""
        return b"X-Request-Id: %s\r\n%s" % (self.id.encode(), self.headers)

    def pause(self) -> None:
        """From here on we wait for somebody else."""
        if self.mark_ns:
            self.own_ns += time.monotonic_ns() - self.mark_ns
            self.mark_ns = 0

    def resume(self) -> int:
        """The waiting is over; the monotonic time now."""
        self.mark_ns = time.monotonic_ns()
        return self.mark_ns
