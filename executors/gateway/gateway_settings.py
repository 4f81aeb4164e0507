"""Settings and clock of a gateway.

Durations in `_s` are domain seconds and scale with the time base; `_real_s` are real seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.serving.routing_policies import DEFAULT, RoutingPolicy
from topics.checks import name, number
from topics.time_base import TimeBase


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Durations in domain seconds, and limits. hold_s: longest wait for a ready instance before
    503, extended to the start time of an instance (`Routes.start_s`) if that is longer. queue_s:
    longest total wait for capacity before 429. stall_s: time without output for any of its requests
    after which an engine is checked; it hangs if its metrics make no progress and a probe gets no
    token (one prompt of 190k tokens may take 100 s). request_s: longest duration of a request.
    max_waiting: maximum of waiting requests per model; further requests are refused with 429.
    max_unknown: maximum of requests that wait while their model has no routes. recommend_only:
    models for which Shoal starts no instance without approval; without routes their requests are
    refused at once. declared_models: model by name and alias; requests for them count before they
    have routes. attempts: maximum of attempts per request. The following are real seconds, because
    networks and supervisors do not scale with the time base. connect_real_s: to connect to an
    engine. head_real_s, body_real_s: for a client to send a request. write_real_s: while a client
    does not read. verify_real_s: between an engine's error and the check of its health.
    drain_real_s: for requests to finish after SIGTERM.

    engine_key: the API key of engines, "" without one; a client's key is never sent to engines.
    host_names: accepted names in addition to addresses, see `HostRule`. media_domains: hosts from
    which engines may fetch media for clients. max_body_bytes: limit for one request.
    body_budget_bytes: limit for all request bodies in memory.
    """

    gateway_id: str
    hold_s: float = 30.0
    queue_s: float = 600.0
    stall_s: float = 240.0
    request_s: float = 1800.0
    max_body_bytes: int = 16 * 1024 * 1024
    max_waiting: int = 10_000
    max_unknown: int = 1_000
    body_budget_bytes: int = 160 * 1024 * 1024
    recommend_only: frozenset[str] = frozenset()
    declared_models: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 3
    policy: RoutingPolicy = DEFAULT
    connect_real_s: float = 2.0
    head_real_s: float = 10.0
    body_real_s: float = 60.0
    write_real_s: float = 30.0
    verify_real_s: float = 0.5
    drain_real_s: float = 120.0
    engine_key: str = field(default="", repr=False)
    host_names: frozenset[str] = frozenset()
    media_domains: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        name("gateway-id", self.gateway_id)
        number("hold-s", self.hold_s, 0.0, 3600.0)
        number("queue-s", self.queue_s, 0.0, 86_400.0)
        number("stall-s", self.stall_s, 1.0, 86_400.0)
        number("request-s", self.request_s, 1.0, 86_400.0)
        number("drain-s", self.drain_real_s, 0.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class Clock:
    """Domain time of a running process. A gateway reads domain time only from this clock."""

    base: TimeBase

    def mono_ns(self) -> int:
        """Monotonic time in nanoseconds, for durations."""
        return time.monotonic_ns()

    def now_ms(self) -> int:
        """Domain ms since the epoch."""
        return self.base.now_ms(time.monotonic_ns())

    def elapsed_ms(self, start_ns: int, end_ns: int) -> float:
        """Domain ms between two monotonic readings."""
        return (end_ns - start_ns) * self.base.speed / 1e6

    def real_s(self, domain_s: float) -> float:
        """Real seconds for `domain_s`; at least 10 ms, so that a fast time base cannot spin."""
        return max(0.01, self.base.real_s(domain_s))
