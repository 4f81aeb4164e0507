"""One controller of the product's own parts, connected as in its composition root.

Only the parts behind the ports are simulated: the broker's clients and the solver process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.state.controller_state import Term
from loadtests.invariants.clients import Followed, SimLeaderProducer, SimProducer
from loadtests.invariants.log import T0, Entry, Link, Log, Reader
from loadtests.invariants.virtual import Process
from streams.clock import Clock
from streams.controller.composition import published
from streams.controller.control_state import ControlState, RecordRefused, control_record_handler
from streams.controller.control_topics import FOLLOWED
from streams.controller.declared_names import DeclaredNames
from streams.controller.demand_sources import gateways_sink
from streams.controller.election import Election
from streams.controller.leadership import LeadershipClient
from streams.controller.leadership_term import Terms
from streams.controller.outbox import Outbox
from streams.controller.tick_loop import Loop, Ports, TickResult
from streams.ports.record_signing import Seal
from streams.ports.telemetry_wire import read_reported
from streams.solver.solver_client import plan_here
from topics.broker_clock import BrokerClock
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.keys import Keys
from topics.reason_codes import ReasonCode
from topics.signing import body_refusal
from topics.telemetry_columns import AGE_MS
from topics.time_base import TimeBase
from topics.topic_table import LEADERSHIP

KEYS = Keys(cluster="simulation" * 4)


@dataclass(slots=True)
class SimSolver:
    """Answers with the real planner after a delay.

    away: each request gets the answer that the solver is unavailable, after two seconds.
    """

    process: Process
    rng: random.Random
    away: bool = False
    slow_s: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: list[PlanAnswer] = field(default_factory=list)
    _asked: set[asyncio.Task[None]] = field(default_factory=set)

    def ask(self, request: PlanRequest, cluster: Cluster) -> None:
        """Accept a request."""
        task = asyncio.get_running_loop().create_task(self._answer(request, cluster))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, request: PlanRequest, cluster: Cluster) -> None:
        urgent = request.urgency is Urgency.URGENT
        await asyncio.sleep((0.05 if urgent else 0.3) + 0.3 * self.rng.random() + self.slow_s)
        if self.away:
            await asyncio.sleep(2.0)
            self._ready.append(no_plan_answer(request, Reason(ReasonCode.SOLVER_AWAY)))
            return
        self._ready.append(plan_here(request, cluster))
        self.news.set()

    def take(self) -> tuple[PlanAnswer, ...]:
        """Return the answers that are due."""
        found, self._ready = tuple(self._ready), []
        self.news.clear()
        return found


class Controller:
    """One process of the controller on host `name`. wall_skew_ms: error of that host's clock."""

    def __init__(
        self,
        name: str,
        life: int,
        log: Log,
        link: Link,
        now_s: float,
        wall_skew_ms: int,
        cluster: Callable[[], Cluster],
        watch: Callable[[Controller, TickResult], None],
        rng: random.Random,
    ) -> None:
        self.name = name
        self.link = link
        self.stopped = False
        self.process = process = Process(now_s)

        def mono_ns() -> int:
            return int(process.now_s * 1e9)

        broker = BrokerClock(mono_ns, lambda: T0 + wall_skew_ms + mono_ns() // 1_000_000)
        base = TimeBase(1.0, T0 + wall_skew_ms, 0)
        self.clock = Clock(base, mono_ns, broker.now_ms)
        self.latest = ControlState()
        self.election = Election(f"{name}-{life}")
        self.solver = SimSolver(process, rng)
        self.windows = TelemetryWindows(cluster().policy.global_window_s)
        known = DeclaredNames(
            cluster, self.latest.desired.assignments, self.latest.dropped.undeclared
        )
        self._count = gateways_sink(self.windows, {}, lambda: self.loop.pace.fresh.set(), known)
        self.poison = 0
        producer = SimLeaderProducer(log, link)
        self.seat = LeadershipClient(
            SimProducer(log, link), LEADERSHIP.wire_name(), name, self.election, self.clock,
            broker.add_sample,
        )  # fmt: skip
        self.outbox = Outbox(producer, leads=self.seat.leads)
        desired = published(cluster, self.outbox, Seal(KEYS, self.clock))
        self.loop = Loop(
            ControllerState(Term(self.clock.now_ms())),
            cluster,
            self.windows,
            self.latest,
            Ports(desired, self.outbox, self.solver),
            self.clock,
            leads=self.seat.leads,
            watchers=(lambda done: watch(self, done),),
        )
        names = [t.name for t in FOLLOWED]
        read_s = lambda: process.now_s  # noqa: E731
        self._telemetry_reader = Reader(log, link, ("telemetry",))
        self._fold = control_record_handler(
            self.latest, self.election, self.clock, self.loop.overwrite,
            lambda alert: self.latest.take(alert, 0), known,
        )  # fmt: skip
        self.control = Followed(log, Reader(log, link, names), read_s, self._take)
        self.telemetry = Followed(log, self._telemetry_reader, read_s, self._hear)
        self.terms = Terms(
            self.seat, self.loop, producer, self.outbox, self.control,  # type: ignore[arg-type]
            lambda: None, [(self.telemetry, lambda *_: None)],  # type: ignore[list-item]
            lambda *_: None,
        )  # fmt: skip
        process.start(self._run())

    @property
    def leads(self) -> bool:
        """Whether the controller may act now."""
        return not self.stopped and self.seat.leads()

    async def _run(self) -> None:
        await self.seat.introduce()
        await self.control.caught_up()
        self.windows.advance(self.clock.now_ms())
        self._telemetry_reader.skip_to(
            self.process.now_s - self.loop.declared().policy.global_window_s
        )
        await self.telemetry.caught_up()
        await asyncio.gather(
            self.control.follow(), self.telemetry.follow(), self.seat.run(), self.terms.run(),
            self.loop.refresh(),
        )  # fmt: skip

    def _take(self, name: str, entry: Entry) -> None:
        if entry.value is None:
            self.latest.drop(name, entry.key)
            return
        try:
            record: Any = decode(name, entry.value)
        except InvalidRecord:
            self.poison += 1
            return
        if body_refusal(name, entry.value, KEYS):
            self.poison += 1
            self.loop.overwrite_forged(record)
            return
        try:
            self._fold(name, record, entry.offset, entry.append_ms)
        except RecordRefused:
            self.poison += 1

    def _hear(self, _name: str, entry: Entry) -> None:
        records, bad = read_reported([entry.value or b""])
        self.poison += len(bad)
        appended_ms = np.full(len(records), entry.append_ms)
        self._count(records, self.clock.events()(appended_ms, records.numbers[:, AGE_MS]))

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.link.cut = True
        self.process.kill()
