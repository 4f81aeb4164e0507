"""All nodes of one executor process: passes Kafka records to node workers and runs their steps.

An assignment waits until its leader's claim has been read. A node that another executor holds
receives no assignment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from executors.node import reclaim_hook
from executors.node.executor_config import ExecutorConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_worker import NodeWorker
from executors.node.reconcile import expires_at_ms
from executors.node.scripted_faults import FaultsFile
from topics.broker_clock import BrokerClock
from topics.fleet import Assignment, InstanceState, Status
from topics.topic_table import ASSIGNMENTS

log = logging.getLogger(__name__)

_STEP_S = 0.1
_TERM_GRACE_S, _STOP_LIMIT_S = 1.0, 2.0
_CLAIM_WAIT_S = 10.0
_MAX_PENDING = 1000
_LOG_INTERVAL_S = 60.0


_PendingAssignment = tuple[Assignment, float, int]
"""An assignment, its arrival (monotonic s) and its append time (ms of the broker's clock)."""


class Broker(Protocol):
    """The part of `KafkaClient` that the executor uses. highest_token: highest token of the
    leadership topic. forged: number of records with a wrong signature.
    """

    highest_token: int | None
    forged: int

    @property
    def caught_up(self) -> bool:
        """Whether all existing records have been read."""
        ...


class Executor:
    """Passes records to workers and runs their steps.

    on_launch_fault: called with a node and the scripted fault of its launches, "" = none.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        kafka: Broker,
        workers: dict[str, NodeWorker],
        metrics: Metrics,
        on_launch_fault: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config
        self._faults = FaultsFile(Path(config.faults_file)) if config.faults_file else None
        self._on_launch_fault = on_launch_fault or (lambda _node, _fault: None)
        self._kafka = kafka
        self.workers = workers
        self._metrics = metrics
        self._pending: dict[str, dict[int, _PendingAssignment]] = {}
        # The broker clock has a sample before the first assignment, because a node is claimed by
        # reading back its own status.
        self._broker_clock = BrokerClock(time.monotonic_ns, lambda: 0)
        self._logged_s: dict[str, float] = {}

    def on_record(self, _topic: str, key: str, record: Any, append_ms: int) -> None:
        """Handle a record from Kafka. Records of other executors' nodes are ignored."""
        if isinstance(record, Status):
            worker = self.workers.get(record.node)
            if worker is not None:
                if record.boot == worker.node_lock.boot:  # sent by this process
                    sent_ns = self._config.time_base.mono_ns_at(record.at_ms)
                    self._broker_clock.add_sample(append_ms, sent_ns)
                live = self._kafka.caught_up
                worker.node_lock.on_status(record, append_ms, self._now_ms(), live)
            return
        if not isinstance(record, Assignment):
            return
        if key in self.workers and key != record.node:  # the record names another node than its key
            self.workers[key].refuse(record, "node")
        elif key in self.workers:
            pending = self._pending.setdefault(key, {})
            before = pending.get(record.leader_token)
            if before is None or record.generation >= before[0].generation:
                pending[record.leader_token] = record, time.monotonic(), append_ms
            if len(pending) > _MAX_PENDING:
                self._drop_one(pending)

    def _drop_one(self, pending: dict[int, _PendingAssignment]) -> None:
        """Drop one pending assignment if too many leaders have one.

        If several pending assignments have claimed tokens, the lowest token is dropped, because a
        higher one supersedes it. Otherwise the highest token is dropped. The limit is needed
        because the topic may hold assignments of many past leaders.
        """
        bound = self._kafka.highest_token
        claimed = [token for token in pending if bound is not None and token <= bound]
        del pending[min(claimed) if len(claimed) > 1 else max(pending)]

    def on_tombstone(self, topic: str, key: str) -> None:
        """Handle a tombstone. A deleted assignment means that no controller plans for the node any
        more. As at the expiry of an assignment, existing instances keep running, because only an
        assignment can request a stop."""
        if topic == ASSIGNMENTS.name and key in self.workers:
            log.warning("%s: assignment deleted; existing instances keep running", key)

    def on_leadership(self) -> None:
        """Dispatch the assignments that waited for the leader token, because the highest token
        changed."""
        self._dispatch_assignments(time.monotonic())

    def restore(self) -> None:
        """Adopt the engines that earlier executor processes left running."""
        adopted = sum(worker.restore() for worker in self.workers.values())
        if adopted:
            log.info("adopted %d running engines", adopted)

    async def run(self, end: asyncio.Event) -> None:
        """Step every node until `end`."""
        loop = asyncio.get_running_loop()
        notices = [
            asyncio.create_task(
                reclaim_hook.poll_notices(
                    self._config.reclaim_command, node, worker.on_reclaim_notice
                )
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
            self._dispatch_assignments(time.monotonic())
            now_ms = self._now_ms()
            self._apply_faults(now_ms)
            used = set().union(*(worker.ports_used for worker in self.workers.values()))
            for worker in self.workers.values():
                worker.step(now_ms, loop.time(), used)
            self._update_metrics(now_ms)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), _STEP_S)

    async def close(self, end_engines: bool) -> None:
        """Stop the workers. end_engines: also terminate, kill and reap all engines."""
        workers = list(self.workers.values())
        for worker in workers:
            await worker.close()
        if not end_engines:
            return
        for worker in workers:
            worker.engines.terminate_all()
        started = time.monotonic()
        killed = False
        while sum(worker.engines.count_alive() for worker in workers):
            waited_s = time.monotonic() - started
            if waited_s > _STOP_LIMIT_S:
                log.error("some engines cannot be killed")
                return
            if waited_s > _TERM_GRACE_S and not killed:
                killed = True
                for worker in workers:
                    worker.engines.kill_all()
            await asyncio.sleep(0.02)

    # -- inside -------------------------------------------------------------------------------

    def _apply_faults(self, now_ms: int) -> None:
        """Apply the scripted faults if their file has changed."""
        if self._faults is None or not self._faults.refresh():
            return
        for node in self._config.nodes:
            worker = self.workers[node.node]
            self._faults.apply(node.node, worker, now_ms, self._config.time_base.speed)
            fault = self._faults.faults.launch_fault(node.node, node.pool)
            self._on_launch_fault(node.node, fault)

    def _now_ms(self) -> int:
        return self._config.time_base.now_ms(time.monotonic_ns())

    def _dispatch_assignments(self, now_s: float) -> None:
        """Give each worker its pending assignments whose leaders have a claim, the highest token
        last.

        Assignments wait while old records are still being read, while no claim is known, and while
        another executor may hold the node.
        """
        bound = self._kafka.highest_token
        if not self._kafka.caught_up or bound is None:
            return
        for node, pending in list(self._pending.items()):
            worker = self.workers[node]
            if not worker.node_lock.claimed:
                self._log_contested(worker, now_s)
                continue
            for token in sorted(pending):
                record, since_s, append_ms = pending[token]
                # The claim may still arrive: assignments and claims are read independently.
                if token > bound and now_s - since_s <= _CLAIM_WAIT_S:
                    continue
                del pending[token]
                if token > bound:
                    worker.refuse(record, "unclaimed token")
                else:
                    worker.accept(record, self._expiry_ms(record, append_ms))
            if not pending:
                del self._pending[node]

    def _expiry_ms(self, record: Assignment, append_ms: int) -> int:
        """Time at which `record` expires, in domain ms of this executor's clock. The age of the
        record is measured only by the broker's clock, because the clocks of leader and executor may
        differ by hours."""
        age_ms = max(0, self._broker_clock.now_ms() - append_ms)
        age_ms = int(age_ms * self._config.time_base.speed)
        return expires_at_ms(record, self._now_ms(), age_ms)

    def _log_contested(self, worker: NodeWorker, now_s: float) -> None:
        fault = worker.node_lock.fault(self._now_ms())
        node = worker.state.node
        if fault and now_s - self._logged_s.get(node, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._logged_s[node] = now_s
            log.error("%s", fault)

    def _update_metrics(self, now_ms: int) -> None:
        states = Counter(
            item.state for worker in self.workers.values() for item in worker.state.instances
        )
        for state in InstanceState:
            self._metrics.instances.labels(str(state)).set(states[state])
        self._metrics.forged.set(self._kafka.forged)
        faults = sum(bool(worker.node_lock.fault(now_ms)) for worker in self.workers.values())
        broken = any(worker.engines.fault for worker in self.workers.values())
        self._metrics.faults.set(faults + broken)
