"""What an operator may set of a gateway, and the clock it lives by.

Durations `_s` are domain seconds unless the name says real: they scale with the time base.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.serving.routing_policies import DEFAULT, RoutingPolicy
from topics.checks import name, number
from topics.time_base import TimeBase


@dataclass(frozen=True, slots=True)
class Settings:
    """hold_s: how long a request waits for a ready instance before 503, or as long as an instance
    takes to start if the routes know that (`Routes.start_s`).
    queue_s: how long one waits in all while the instances there are have no room, before 429.
    stall_s: an engine that has requests and sends nothing on any of them for so long is looked at:
    without progress in its metrics and without a token for a probe, it hangs (one prompt of 190k
    tokens may take 100 s). request_s: the longest life of a request. max_waiting: requests of one
    model waiting here; what is more is 429 at once. max_unknown: requests that wait while no
    routes are known at all. advised: models that Shoal only recommends for, or that wait for
    approval: without routes nothing will come, so they are refused at once. declared: models by
    their own and other names; what they are asked for counts before they have routes. attempts:
    instances asked per request, of those that surely did not suffer from it.

    Real seconds, because networks and supervisors do not scale: connect_real_s to reach an engine;
    head_real_s and body_real_s for a client to send a request; write_real_s a client may not read;
    verify_real_s between an engine's own error and the look at whether it still lives;
    drain_real_s after SIGTERM for requests under way to finish.
    engine_key: what engines ask for, "" for nothing; what a client calls itself never reaches them.
    host_names: names that it answers to besides addresses, see `HostRule`. media_domains: hosts
    from which clients may have engines fetch images, audio and video; empty = from none.
    Bytes: max_body_bytes of one request, body_budget_bytes of all bodies that are held.
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
    advised: frozenset[str] = frozenset()
    declared: Mapping[str, str] = field(default_factory=dict)
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
    """Domain time for a running process: the one place where a gateway reads a clock."""

    base: TimeBase

    def mono_ns(self) -> int:
        """The monotonic clock, for durations."""
        return time.monotonic_ns()

    def now_ms(self) -> int:
        """Domain ms since the epoch."""
        return self.base.now_ms(time.monotonic_ns())

    def elapsed_ms(self, start_ns: int, end_ns: int) -> float:
        """Domain ms between two monotonic readings."""
        return (end_ns - start_ns) * self.base.speed / 1e6

    def real_s(self, domain_s: float) -> float:
        """Real seconds to wait for `domain_s`; at least 10 ms, so that fast time cannot spin."""
        return max(0.01, self.base.real_s(domain_s))
