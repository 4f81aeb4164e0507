"""A simulated node: the executor's real reconciler, with engine processes that exist only as times.

The executor's checks before it acts are the real ones: signature, node, a leader token with a
claim, and a (token, generation) that never falls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from executors.node import reconcile
from executors.node.node_state import (
    Command,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Terminate,
)
from loadtests.invariants.controller import KEYS
from loadtests.invariants.log import T0, Link, Log, Reader
from topics.broker_clock import BrokerClock
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status
from topics.leadership import Leadership, token_of
from topics.macs import Signer, Verifier

HEARTBEAT_S, IDLE_HEARTBEAT_S = 2.0, 10.0
_RULES = Rules(start_timeout_ms=200_000, stable_ms=120_000)


class Vouched:
    """The highest leader token that the topic `leadership` has proven."""

    def __init__(self) -> None:
        self.highest = 0

    def heard(self, record: Leadership, offset: int) -> None:
        """Process one record of the topic."""
        self.highest = max(self.highest, token_of(record, offset))


@dataclass(slots=True)
class EngineProcess:
    """A process on `gpus`. ready_s: time at which it becomes ready. ends_s: time at which it fails
    by itself. finished: number of requests that it has finished.
    """

    model: str
    phase: str
    gpus: tuple[int, ...]
    endpoint: str
    ready_s: float
    ends_s: float = float("inf")
    in_flight: int = 0
    finished: int = 0

    def serves(self, now_s: float) -> bool:
        """Whether the process answers requests at `now_s`."""
        return self.ready_s <= now_s < self.ends_s


class Node:
    """One node. wall_skew_ms: error of its clock. stuck: whether launched processes never become
    ready. fails: whether they end soon. launches: number of processes started for each instance.
    """

    def __init__(
        self, name: str, pool: str, gpus: int, log: Log, link: Link, start_s: Callable[[], float],
        rng: random.Random,
    ) -> None:  # fmt: skip
        self.name, self.pool, self.gpus, self.link = name, pool, gpus, link
        self.state = NodeState(name, pool)
        self.processes: dict[str, EngineProcess] = {}
        self.launches: dict[str, int] = {}
        self.up = self.executor_up = True
        self.wall_skew_ms = 0
        self.reclaim_s = 0.0
        self.stuck = self.fails = False
        self.foreign: tuple[ObservedInstance, ...] = ()
        self.forged = 0
        self._log, self._start_s, self._rng = log, start_s, rng
        self._vouched, self._waiting = Vouched(), dict[int, tuple[Assignment, int]]()
        self._now_s = 0.0
        self._broker_clock = BrokerClock(
            lambda: int(self._now_s * 1e9), lambda: T0 + int(self._now_s * 1000)
        )
        self._signer = Signer(KEYS, self._broker_clock.now_ms)
        self._verifier = Verifier(KEYS, rereads=True)
        self._follow()
        self._told_s = -IDLE_HEARTBEAT_S * rng.random()
        self._shown: tuple[object, ...] = ()
        self._ports = 10_000

    def _follow(self) -> None:
        self._leaders = Reader(self._log, self.link, ("leadership",))
        self._orders = Reader(self._log, self.link, ("assignments",))

    def restart_executor(self) -> None:
        """Restart the executor from its state folder. Its engines keep running meanwhile."""
        self.executor_up = True
        self._vouched, self._waiting = Vouched(), {}
        self._follow()

    def lose(self) -> None:
        """Remove the machine."""
        self.up = False
        self.processes.clear()

    def come_back(self) -> None:
        """Return the machine, empty and with a new state folder."""
        self.up = True
        self.reclaim_s = 0.0
        self.launches.clear()
        self.state = NodeState(self.name, self.pool)
        self.restart_executor()

    def step(self, now_s: float) -> None:
        """Read assignments, reconcile, act, and report."""
        if not (self.up and self.executor_up):
            return
        now_ms = self._now_ms(now_s)
        self._now_s = now_s
        for _, entry in self._leaders.poll(now_s):
            try:
                word = decode("leadership", entry.value or b"")
            except InvalidValue:
                continue
            self._vouched.heard(word, entry.offset)
        own = self.name.encode()
        for _, entry in self._orders.poll(now_s):
            if entry.key == own and entry.value is not None:
                self._offered(entry.value, entry.timestamp)
        for token in sorted(self._waiting):
            if token <= self._vouched.highest:
                record, append_ms = self._waiting.pop(token)
                age_ms = max(0, self._broker_clock.now_ms() - append_ms)
                expires_ms = reconcile.expires_at_ms(record, now_ms, age_ms)
                self.state = reconcile.accept(self.state, record, expires_ms)
        seen = {name: self._observe(process, now_s) for name, process in self.processes.items()}
        for held in self.state.instances:
            if held.has_process and held.instance not in seen:
                seen[held.instance] = ProcessObservation(
                    alive=False, end_reason="the process ended"
                )
        for name in [n for n, process in self.processes.items() if now_s >= process.ends_s]:
            del self.processes[name]
        leave_ms = T0 + int(self.reclaim_s * 1000) + self.wall_skew_ms if self.reclaim_s else 0
        rules = replace(_RULES, drain_by_ms=max(0, leave_ms - 5_000)) if leave_ms else _RULES
        self.state, commands = reconcile.reconcile(self.state, seen, now_ms, rules)
        for command in commands:
            self._act(command, now_s)
        self._tell(now_s, now_ms)

    def _now_ms(self, now_s: float) -> int:
        return T0 + int(now_s * 1000) + self.wall_skew_ms

    def _offered(self, value: bytes, append_ms: int) -> None:
        if self._verifier.refusal("assignments", self.name.encode(), value, (), append_ms):
            self.forged += 1
            return
        try:
            record: Assignment = decode("assignments", value)
        except InvalidValue:
            self.forged += 1
            return
        known = self._waiting.get(record.leader_token)
        if known is None or record.generation >= known[0].generation:
            self._waiting[record.leader_token] = record, append_ms

    def _observe(self, process: EngineProcess, now_s: float) -> ProcessObservation:
        if now_s >= process.ends_s:
            return ProcessObservation(alive=False, end_reason="no CUDA device")
        ready = process.serves(now_s)
        return ProcessObservation(
            True,
            ready or None,
            process.in_flight,
            0,
            self._now_ms(now_s),
            finished=process.finished,
        )

    def _act(self, command: Command, now_s: float) -> None:
        if isinstance(command, Launch):
            instance = command.desired.instance
            self.launches[instance] = self.launches.get(instance, 0) + 1
            self._ports += 1
            endpoint = f"{self.name}:{self._ports}"
            made = EngineProcess(
                command.desired.model, command.phase, command.desired.gpus, endpoint,
                now_s + self._start_s(),
            )  # fmt: skip
            if self.fails:
                made.ready_s, made.ends_s = float("inf"), now_s + 3.0
            elif self.stuck:
                made.ready_s = float("inf")
            self.processes[instance] = made
            self.state = reconcile.record_launch(self.state, instance, endpoint, (self._ports,))
        elif isinstance(command, Terminate):
            process = self.processes.get(command.instance)
            if process is not None:
                process.ends_s = now_s + 1.0
        else:
            process = self.processes.get(command.instance)
            if process is not None:
                process.ends_s = now_s

    def _tell(self, now_s: float, now_ms: int) -> None:
        instances = (*reconcile.observed_instances(self.state), *self.foreign)
        shown = tuple((i.instance, i.state, i.endpoint, i.group) for i in instances)
        generation = self.state.assignment.generation if self.state.assignment else 0
        every_s = HEARTBEAT_S if instances else IDLE_HEARTBEAT_S
        news = (shown, generation, bool(self.reclaim_s))
        if now_s - self._told_s < every_s and (news == self._shown or now_s - self._told_s < 0.2):
            return
        away = self.link.cut or self._log.away or "status" in self._log.absent
        if away or self._rng.random() < self.link.lost:
            return  # The status is sent at the next step.
        self._told_s, self._shown = now_s, news
        status = Status(
            self.name, self.pool, f"executor-{self.name}", generation, now_ms, instances,
            reclaim_ms=T0 + int(self.reclaim_s * 1000) + self.wall_skew_ms if self.reclaim_s else 0,
            observed_token=self.state.assignment.leader_token if self.state.assignment else 0,
        )  # fmt: skip
        key, value = self.name.encode(), encode(status)
        headers = self._signer.headers("status", key, value)
        for _ in range(1 + (self._rng.random() < self.link.copies)):
            entry = self._log.append("status", key, value, headers)
            self._broker_clock.add_sample(entry.timestamp, int(now_s * 1e9))

    def ready(self) -> set[str]:
        """Instances that the executor reports as ready."""
        return {h.instance for h in self.state.instances if h.state is InstanceState.READY}
