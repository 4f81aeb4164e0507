"""All nodes of one executor process, between Kafka and their workers.

Holds which record reaches which node and when: assignments of a leader that nobody has claimed to
be wait, and an executor that does not hold its node takes none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import Any, Protocol

from executors.node import reclaim_hook
from executors.node.executor_config import ExecutorConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_worker import NodeWorker
from executors.node.reconcile import expiry_ms
from executors.node.state_store import Store
from topics.broker_clock import BrokerClock
from topics.fleet import Assignment, InstanceState, Status
from topics.topic_table import ASSIGNMENTS

log = logging.getLogger(__name__)

_STEP_S = 0.1
_MANNERS_S, _END_S = 1.0, 2.0
_CLAIM_S = 10.0
_MOST_OFFERS = 1000
_TELL_AGAIN_S = 60.0


_Offer = tuple[Assignment, float, int]
"""An assignment, when it came (monotonic s), when the broker took it (ms of its clock)."""


class Broker(Protocol):
    """What is needed of the Kafka client. highest_token: see `KafkaClient`."""

    highest_token: int | None
    forged: int

    @property
    def caught_up(self) -> bool:
        """Whether the past was read."""
        ...


class Executor:
    """Routes records to workers and steps them."""

    def __init__(
        self,
        config: ExecutorConfig,
        kafka: Broker,
        workers: dict[str, NodeWorker],
        metrics: Metrics,
        store: Store,
    ) -> None:
        self._config = config
        self._kafka = kafka
        self.workers = workers
        self._metrics = metrics
        self._store = store
        self._waiting: dict[str, dict[int, _Offer]] = {}
        # A node is claimed by reading its own status back, so it is heard before any assignment.
        self._broker_clock = BrokerClock(time.monotonic_ns, lambda: 0)
        self._told_s: dict[str, float] = {}

    def on_record(self, _topic: str, key: str, record: Any, append_ms: int) -> None:
        """A record from Kafka; those of other executors' nodes are none of our business."""
        if isinstance(record, Status):
            worker = self.workers.get(record.node)
            if worker is not None:
                if record.boot == worker.occupancy.boot:  # said between then and now
                    sent_ns = self._config.time_base.mono_ns_at(record.at_ms)
                    self._broker_clock.heard(append_ms, sent_ns)
                live = self._kafka.caught_up
                worker.occupancy.heard(record, append_ms, self._now_ms(), live)
            return
        if not isinstance(record, Assignment):
            return
        if key in self.workers and key != record.node:  # meant for another node
            self.workers[key].refuse(record, "node")
        elif key in self.workers:
            offered = self._waiting.setdefault(key, {})
            before = offered.get(record.leader_token)
            if before is None or record.generation >= before[0].generation:
                offered[record.leader_token] = record, time.monotonic(), append_ms
            if len(offered) > _MOST_OFFERS:
                self._drop_one(offered)

    def _drop_one(self, offered: dict[int, _Offer]) -> None:
        """Too many leaders wait: an assignment that a later claimed one supersedes goes first, else
        the highest token, which nobody has claimed. A topic keeps words of many past leaders."""
        bound = self._kafka.highest_token
        claimed = [token for token in offered if bound is not None and token <= bound]
        del offered[min(claimed) if len(claimed) > 1 else max(offered)]

    def on_gone(self, topic: str, key: str) -> None:
        """A tombstone. Of an assignment it says that nobody plans for the node any more, and as
        with one that has expired nothing is stopped: only an assignment can ask for that."""
        if topic == ASSIGNMENTS.name and key in self.workers:
            log.warning("%s: its assignment was deleted; what runs goes on", key)

    def on_leadership(self) -> None:
        """The highest leader token moved: assignments may have waited for it."""
        self._hand_out(time.monotonic())

    def restore(self) -> None:
        """Take over what earlier lives left running."""
        adopted = sum(worker.restore() for worker in self.workers.values())
        if adopted:
            log.info("took over %d running engines", adopted)

    async def run(self, end: asyncio.Event) -> None:
        """Step every node until `end`."""
        loop = asyncio.get_running_loop()
        notices = [
            asyncio.create_task(
                reclaim_hook.watch(self._config.reclaim_command, node, worker.notice)
            )
            for node, worker in self.workers.items()
            if self._config.reclaim_command
        ]
        try:
            await self._step_until(end, loop)
        finally:
            for task in notices:
                task.cancel()
            await asyncio.gather(*notices, return_exceptions=True)

    async def _step_until(self, end: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        while not end.is_set():
            self._hand_out(time.monotonic())
            now_ms = self._now_ms()
            used = set().union(*(worker.ports_used for worker in self.workers.values()))
            for worker in self.workers.values():
                worker.step(now_ms, loop.time(), used)
            self._count(now_ms)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), _STEP_S)

    async def close(self, end_engines: bool) -> None:
        """Stop; end_engines: take the engines along (terminate, wait, kill, reap)."""
        workers = list(self.workers.values())
        for worker in workers:
            await worker.close()
        if not end_engines:
            return
        for worker in workers:
            worker.engines.terminate_all()
        started = time.monotonic()
        killed = False
        while sum(worker.engines.alive() for worker in workers):
            waited_s = time.monotonic() - started
            if waited_s > _END_S:
                log.error("engines are left that cannot be killed")
                return
            if waited_s > _MANNERS_S and not killed:
                killed = True
                for worker in workers:
                    worker.engines.kill_all()
            await asyncio.sleep(0.02)

    # -- inside -------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return self._config.time_base.now_ms(time.monotonic_ns())

    def _hand_out(self, now_s: float) -> None:
        """Give each worker the assignments that their leaders may have written, the newest last.

        While old records pass by, or nobody knows who claimed to lead, or the node may be another
        executor's, they wait.
        """
        bound = self._kafka.highest_token
        if not self._kafka.caught_up or bound is None:
            return
        for node, offered in list(self._waiting.items()):
            worker = self.workers[node]
            if not worker.occupancy.claimed:
                self._say_contested(worker, now_s)
                continue
            for token in sorted(offered):
                record, since_s, append_ms = offered[token]
                # A claim may be on its way: two topics are read one beside the other.
                if token > bound and now_s - since_s <= _CLAIM_S:
                    continue
                del offered[token]
                if token > bound:
                    worker.refuse(record, "unclaimed token")
                else:
                    worker.accept(record, self._expiry_ms(record, append_ms))
            if not offered:
                del self._waiting[node]

    def _expiry_ms(self, record: Assignment, append_ms: int) -> int:
        """By the broker's clock alone how old it is; the leader's and ours may differ by hours."""
        age_ms = max(0, self._broker_clock.now_ms() - append_ms)
        age_ms = int(age_ms * self._config.time_base.speed)
        return expiry_ms(record, self._now_ms(), age_ms)

    def _say_contested(self, worker: NodeWorker, now_s: float) -> None:
        fault = worker.occupancy.fault(self._now_ms())
        node = worker.state.node
        if fault and now_s - self._told_s.get(node, -_TELL_AGAIN_S) >= _TELL_AGAIN_S:
            self._told_s[node] = now_s
            log.error("%s", fault)

    def _count(self, now_ms: int) -> None:
        states = Counter(
            item.state for worker in self.workers.values() for item in worker.state.held
        )
        for state in InstanceState:
            self._metrics.instances.labels(str(state)).set(states[state])
        self._metrics.forged.set(self._kafka.forged)
        faults = sum(bool(worker.occupancy.fault(now_ms)) for worker in self.workers.values())
        self._metrics.faults.set(faults + bool(self._store.fault))
