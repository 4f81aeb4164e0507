"""One controller of the product's own parts, connected as in its composition root.

Only the parts behind the ports are simulated: the broker's clients and the solver process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.errors import KafkaError

from autoscaler.decide import ControllerState
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.state.controller_state import Term
from loadtests.invariants.clients import SimConsumer, SimLeaderProducer, SimProducer, ensured
from loadtests.invariants.log import T0, Link, Log
from loadtests.invariants.virtual import Process
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.consumer_lag import ConsumerLag
from streams.broker.topic_admin import EnsuredTopics
from streams.clock import Clock
from streams.controller.composition import published
from streams.controller.control_topics import ControlTopics
from streams.controller.dead_letters import DeadLetters
from streams.controller.demand_sources import gateways_sink
from streams.controller.key_sweep import KeyOwners, KeySweep
from streams.controller.leadership import LeadershipClient
from streams.controller.leadership_term import Terms
from streams.controller.outbox import Outbox
from streams.controller.topic_restore import TopicRestore
from streams.controller.topic_watch import TopicWatch
from streams.decision_log.log_writer import DecisionLog
from streams.loop.control_state import ControlState, control_record_handler
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from streams.loop.tick_loop import Loop, Ports, TickResult
from streams.ports.record_signing import Seal
from streams.ports.telemetry_topic import TelemetryTopic
from streams.solver.plan_verification import Comparison, RecordingSolver, verify_allocation
from topics.broker_clock import BrokerClock
from topics.keys import Keys
from topics.macs import Signer, Verifier
from topics.reason_codes import ReasonCode
from topics.time_base import TimeBase
from topics.topic_table import LEADERSHIP, PREFIX

KEYS = Keys(cluster="simulation" * 4)
_SAMPLED, _SECOND_S = 2, 2.0
"""A second solver gets every second plan, for at most so many seconds of CPU time a search."""


@dataclass(slots=True)
class SimSolver:
    """Answers with the real planner after a delay.

    away: each request gets the answer that the solver is unavailable, after two seconds.
    opinions: of a second solver on every `_SAMPLED`-th plan; `checks` takes them.
    """

    process: Process
    rng: random.Random
    away: bool = False
    slow_s: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    opinions: list[Comparison] = field(default_factory=list)
    _answered: int = 0
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
        # Without a clock, the work limits the search, so that a seed gives the same run.
        recorded = RecordingSolver()
        profile, strategy = cluster_profile(cluster), ShoalStrategy(recorded)
        self._ready.append(answer_request(request, cluster, profile, strategy))
        self._answered += 1
        if self._answered % _SAMPLED == 0:
            for problem, result in recorded.solved:
                self.opinions += verify_allocation(problem, result, _SECOND_S)
        self.news.set()

    def take(self) -> tuple[PlanAnswer, ...]:
        """Return the answers that are due."""
        found, self._ready = tuple(self._ready), []
        self.news.clear()
        return found


class Unreachable(Exception):
    """The process ended, because the broker did not answer at its start."""


class Controller:
    """One process of the controller on host `name`. wall_skew_ms: error of that host's clock.
    folder: of its decision log, None for none.
    """

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
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.link = link
        self.stopped = False
        self.process = process = Process(now_s)

        def mono_ns() -> int:
            return int(process.now_s * 1e9)

        def now() -> float:
            return process.now_s

        def opened(*_: object, **__: object) -> SimConsumer:
            return SimConsumer(log, link, now)

        async def ensure(*_: object) -> EnsuredTopics:
            return await ensured(log, link)

        broker = BrokerClock(mono_ns, lambda: T0 + wall_skew_ms + mono_ns() // 1_000_000)
        base = TimeBase(1.0, T0 + wall_skew_ms, 0)
        self.clock = Clock(base, mono_ns, broker.now_ms)
        self.latest = latest = ControlState()
        self.election = Election(f"{name}-{life}")
        self.solver = SimSolver(process, rng)
        self.windows = TelemetryWindows(cluster().policy.global_window_s)
        self.disk = None if folder is None else DecisionLog(folder, name, 1 << 30, 600, now, KEYS)
        desired = latest.desired
        known = DeclaredNames(cluster, desired.assignments, latest.dropped.undeclared, desired.size)
        producer = SimLeaderProducer(log, link)
        self.seat = seat = LeadershipClient(
            SimProducer(log, link), LEADERSHIP.wire_name(), name, self.election, self.clock,
            broker.add_sample,
        )  # fmt: skip
        signer, verifier = Signer(KEYS, broker.now_ms), Verifier(KEYS)
        self.outbox = Outbox(
            producer, leads=seat.leads, signer=signer, last_signed_ms=verifier.last_signed_ms
        )
        bury = DeadLetters(self.outbox, latest, name, seat.leads, now)
        acts = published(cluster, self.outbox, Seal(KEYS, self.clock))
        self.loop = loop = Loop(
            ControllerState(Term(self.clock.now_ms())),
            cluster,
            self.windows,
            latest,
            Ports(acts, self.outbox, self.solver),
            self.clock,
            leads=seat.leads,
        )
        record = () if self.disk is None else (self.disk.record,)
        again = TopicRestore(loop)
        loop.watchers = (*record, again, lambda done: watch(self, done))
        self._sweep = sweep = KeySweep(KeyOwners(known, latest, lambda: loop.state), self.outbox)

        def on_gone(topic: str, key: str) -> None:
            sweep.forget(topic, key.encode())
            again.restore_key(topic, key)
            latest.drop(topic, key)

        self.control = ControlTopics(
            "", PREFIX, {},
            control_record_handler(
                latest, self.election, self.clock, loop.overwrite,
                lambda alert: latest.take(alert, 0), known,
            ),
            on_gone, bury,
            lambda: [node for node, record in desired.assignments.items() if record.instances],
            verifier=verifier,
            on_forged=loop.overwrite_forged,
            on_key=lambda topic, key: sweep.note(topic, key, process.now_s),
            on_created=again.note_created,
            open_consumer=opened,
            monotonic_s=now,
        )  # fmt: skip
        self.control.behind = ConsumerLag(PREFIX, now, now)
        sweep.reread = self.control.reread
        self.telemetry = TelemetryTopic(
            "", PREFIX, self.clock, bury, {}, cluster().policy.global_window_s,
            verifier=verifier, open_consumer=opened, monotonic_s=now,
        )  # fmt: skip
        self.telemetry.behind = ConsumerLag(PREFIX, now, now)
        self._sink = gateways_sink(self.windows, {}, loop.pace.fresh.set, known)
        loop.late_s = lambda: {**self.control.behind.late_s(), **self.telemetry.behind.late_s()}
        self.terms = Terms(
            seat, loop, producer, self.outbox, self.control,  # type: ignore[arg-type]
            bury.flush, [(self.telemetry, self._sink)], lambda *_: None,
        )  # fmt: skip
        self._ensure = ensure
        self._watch = TopicWatch(
            "", PREFIX, self.control, self.telemetry, again.note_created, ensure
        )
        process.start(self._run())

    @property
    def leads(self) -> bool:
        """Whether the controller may act now."""
        return not self.stopped and self.seat.leads()

    async def _run(self) -> None:
        try:
            await self._ensure()
            await self.seat.introduce()
            await self.control.start()
            self.windows.advance(self.clock.now_ms())
            await self.telemetry.replay(self._sink)
        except (BrokerUnreachable, KafkaError, TimeoutError) as error:
            raise Unreachable from error
        await asyncio.gather(
            self.control.follow(), self.telemetry.follow(self._sink), self.seat.run(),
            self.terms.run(), self.loop.refresh(), self._watch.run(), self._delete_keys(),
        )  # fmt: skip

    async def _delete_keys(self) -> None:
        """Sweep once a second, as the composition root does."""
        while True:
            await asyncio.sleep(1.0)
            term = self.loop.state.term
            began = bool(term.ticked_ms) and term.leader_token == self.election.highest
            if began and self.seat.leads() and self.loop.declared().may_change:
                self._sweep.sweep(self.clock.now_s())

    def kill(self) -> None:
        """Kill the process (SIGKILL). Its tasks end in any order, so they draw from another
        source."""
        self.link.cut, self.link.rng = True, random.Random(0)
        self.process.kill()
