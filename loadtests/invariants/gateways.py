"""Gateways of the simulation: the real route table, with rates instead of single requests.

The requests of a second are spread over the capacity that the present routes reach. Requests above
that capacity wait. Their wait determines latency and attainment.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from loadtests.invariants.controller import KEYS
from loadtests.invariants.log import T0, Link, Log, Reader
from loadtests.invariants.nodes import EngineProcess, Vouched
from topics.broker_clock import BrokerClock
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.macs import Signer, Verifier
from topics.routing import RouteGroup
from topics.sketch import bucket_of
from topics.telemetry import Telemetry

_MOST_BUFFERED = 600
_TTFT_MS = 300.0


@dataclass(slots=True)
class Front:
    """One model at one gateway. queue: waiting requests."""

    queue: float = 0.0
    unserved: float = 0.0


class Gateway:
    """One gateway.

    dropped: models whose telemetry is lost ("*": all). zero: models that are always reported as
    idle. strained: models that miss their SLO with a rising latency, with the second at which that
    began. off_ms: error of the gateway's estimate of record ages. told: reported requests by model
    and second, for the checks. in_flight, completed: by model, requests in flight and requests
    completed in the last second.
    """

    def __init__(self, name: str, log: Log, link: Link, rng: random.Random) -> None:
        self.name, self.link = name, link
        self.up = True
        self.dropped: set[str] = set()
        self.zero: set[str] = set()
        self.strained: dict[str, float] = {}
        self.off_ms = 0
        self.forged = 0
        self.told: dict[tuple[str, int], int] = {}
        self.in_flight: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        self._log, self._rng = log, rng
        self._now_s = 0.0
        self._broker_clock = BrokerClock(
            lambda: int(self._now_s * 1e9), lambda: T0 + int(self._now_s * 1000)
        )
        self._signer = Signer(KEYS, self._broker_clock.now_ms, name)
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        self.table = RouteTable(GatewayMetrics(), None, 0.0)
        self.fronts: dict[str, Front] = {}
        self._vouched = Vouched()
        self._verifier = Verifier(KEYS, rereads=True)
        self._leaders = Reader(self._log, self.link, ("leadership",))
        self._routes = Reader(self._log, self.link, ("routes",))
        self._pending: deque[Telemetry] = deque()
        self._sequence = 0
        self._life += 1

    def restart(self) -> None:
        """Restart without any state except the contents of the topics."""
        self.up = True
        self._begin()

    def step(self, now_s: float) -> None:
        """Read routes and send the buffered records."""
        if not self.up:
            return
        self._now_s = now_s
        before = self._vouched.highest
        for _, entry in self._leaders.poll(now_s):
            try:
                self._vouched.heard(decode("leadership", entry.value or b""), entry.offset)
            except InvalidValue:
                continue
        if self._vouched.highest != before:
            self.table.set_highest_token(self._vouched.highest)
        for _, entry in self._routes.poll(now_s):
            value, key = entry.value, entry.key
            if self._verifier.refusal("routes", key, value, entry.headers, entry.timestamp):
                self.forged += 1
                continue
            if value is None:
                self.table.finalize((key or b"").decode(errors="replace"))
                continue
            try:
                self.table.offer(decode("routes", value))
            except InvalidValue:
                self.forged += 1
        self._send(now_s)

    def second(
        self, now_s: float, arrivals: Mapping[str, int],
        processes: Mapping[str, EngineProcess], rate_of: Callable[[RouteGroup], float],
        sharing: int,
    ) -> None:  # fmt: skip
        """Serve one second with these arrivals.

        rate_of: requests/s that a group serves. sharing: number of gateways that share the engines.
        """
        self.completed.clear()
        for model, arrived in arrivals.items():
            router = self.table.routers.get(model)
            if router is None or router.routes is None:
                continue
            front = self.fronts.setdefault(model, Front())
            capacity = 0.0
            for group in router.routes.groups:
                ends = (*group.aggregated, *group.prefill, *group.decode)
                live = [processes.get(end.address) for end in ends]
                if all(one is not None and one.serves(now_s) for one in live):
                    capacity += rate_of(group) / sharing
            front.queue += arrived
            done = min(front.queue, capacity)
            front.queue -= done
            wait_s = front.queue / capacity if capacity else 60.0
            self._report(model, arrived, front, done, wait_s, now_s, router.routes.generation)

    def _report(
        self, model: str, arrived: int, front: Front, done: float, wait_s: float, now_s: float,
        generation: int,
    ) -> None:  # fmt: skip
        front.unserved += done
        completions = int(front.unserved)
        front.unserved -= completions
        refused = 0
        if front.queue > 20_000:
            refused, front.queue = int(front.queue - 20_000), 20_000.0
        ttft = _TTFT_MS + 1000.0 * wait_s
        attained = completions if wait_s < 1.0 else 0
        since_s = self.strained.get(model)
        if since_s is not None:
            attained = int(completions * 0.6)
            ttft = max(ttft, min(5000.0, _TTFT_MS * 1.05 ** (now_s - since_s)))
        in_flight = int(front.queue) + round(done * 2.0)
        self.in_flight[model], self.completed[model] = in_flight, completions
        end_ms = T0 + int(now_s * 1000)
        if model in self.zero:
            arrived = completions = attained = refused = in_flight = 0
        self._sequence += 1
        record = Telemetry(
            model, self.name, f"{self.name}-{self._life}", self._sequence, end_ms, 1000, 0,
            arrived, completions, 0, refused, attained, arrived * 512, completions * 512,
            completions * 128, in_flight, generation,
            {bucket_of(ttft): completions} if completions else {},
            {bucket_of(20.0): completions} if completions else {},
        )  # fmt: skip
        if model in self.dropped or "*" in self.dropped:
            return
        self.told[model, end_ms // 1000] = arrived
        self._pending.append(record)
        while len(self._pending) > _MOST_BUFFERED:
            lost = self._pending.popleft()
            self.told.pop((lost.model, lost.end_ms // 1000), None)

    def _send(self, now_s: float) -> None:
        now_ms = T0 + int(now_s * 1000)
        while self._pending and not (self.link.cut or self._log.away):
            if self._rng.random() < self.link.lost:
                return  # The record is sent again later.
            record = self._pending.popleft()
            age_ms = max(0, now_ms - record.end_ms + self.off_ms)
            value = encode(replace(record, age_ms=age_ms))
            key = record.model.encode()
            headers = self._signer.headers("telemetry", key, value)
            for _ in range(1 + (self._rng.random() < self.link.copies)):
                entry = self._log.append("telemetry", key, value, headers)
                self._broker_clock.add_sample(entry.timestamp, int(now_s * 1e9))
