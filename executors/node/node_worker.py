"""One node of an executor: executes the reconciler's commands and publishes the node's status.

It holds the node's state between steps. It does not use Kafka itself: records arrive by method
calls, and a publish function is passed in.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.metadata import version

from executors.engines.engine_protocol import RoleSwitch
from executors.node import reconcile
from executors.node.engine_processes import SHUTDOWN_TIMEOUT_S
from executors.node.engine_runner import EngineRunner
from executors.node.executor_config import ExecutorConfig, NodeConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_lock import NodeLock
from executors.node.node_state import Command, InstanceRecord, Kill, Launch, NodeState, Rules, Wake
from executors.node.start_spans import StartSpans
from topics.checks import InvalidValue
from topics.fleet import (
    NO_DEADLINE_MS,
    Assignment,
    InstanceState,
    ObservedInstance,
    Status,
    host_of,
)
from topics.spans import NO_SPANS, Spans

log = logging.getLogger(__name__)

_RELEASE = version("shoal")

Publish = Callable[[Status], Awaitable[bool]]

_SAME_NOTICE_S = 5.0
_SAVE_RETRY_S = 5.0  # real s between a failed write and its retry
_MIN_CHANGE_S = 0.2  # real s between two statuses of a node that changes
_PUBLISH_RETRY_S = 1.0  # real s between a failed publication and its retry
_HEARTBEAT_S, _IDLE_HEARTBEAT_S = 2.0, 10.0
# Lower bounds in real s, because at high speed a controller tolerates 5 real s of silence (15 for
# an idle node).
_MIN_HEARTBEAT_S, _MIN_IDLE_HEARTBEAT_S = 0.6, 2.0
_EXPIRY_STEP_MS = 60_000
_WAKE_OUTCOMES = {InstanceState.READY: "woken", InstanceState.STARTING: "restarted"}
_REAL_FLOORS_MS = {
    # Lower bounds in real s, because processes start and stop in real time, whatever the speed of
    # domain time.
    "start_timeout_ms": 15_000,
    "kill_after_ms": 2_000,
    "unhealthy_after_ms": 5_000,
}


def rules_for(config: ExecutorConfig, standby: bool = True) -> Rules:
    """The rules of this executor, with deadlines extended to the real time that processes need.

    standby: whether engines may sleep instead of being stopped.
    """
    base = Rules(
        start_timeout_ms=int(config.start_timeout_s * 1000),
        drain_timeout_ms=int(config.drain_timeout_s * 1000),
        live_switch_engines=frozenset(
            name for name, kind in config.engines.items() if kind.role_switch is RoleSwitch.ROUTING
        ),
        standby_engines=frozenset(
            name for name, kind in config.engines.items() if standby and kind.sleeps
        ),
    )
    speed = config.time_base.speed
    floors = {k: max(getattr(base, k), int(v * speed)) for k, v in _REAL_FLOORS_MS.items()}
    return replace(base, **floors)


def heartbeat_s(idle: bool, speed: float) -> float:
    """Real seconds between two statuses of a node without changes."""
    if idle:
        return max(_IDLE_HEARTBEAT_S / speed, _MIN_IDLE_HEARTBEAT_S)
    return max(_HEARTBEAT_S / speed, _MIN_HEARTBEAT_S)


class NodeWorker:
    """One node. Call `step` about ten times a second; it never waits."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        engines: EngineRunner,
        node_lock: NodeLock,
        metrics: Metrics,
        publish: Publish,
        rules: Rules,
        load_feed: str = "",
        spans: Spans = NO_SPANS,
    ) -> None:
        self._node = node
        self._config = config
        self.engines = engines
        self.node_lock = node_lock
        self._metrics = metrics
        self._publish = publish
        self._rules = rules
        self._load_feed = load_feed
        self._starts = StartSpans(spans, node.node)
        self._state = NodeState(node.node, node.pool)
        self._publishing: asyncio.Task[None] | None = None
        self._published: Status | None = None
        self._published_s = 0.0
        self._publish_failed = False
        self._save_due_s = math.inf
        self._reclaim_ms = 0
        self._lost = False

    @property
    def state(self) -> NodeState:
        """The node's current state."""
        return self._state

    @property
    def ports_used(self) -> set[int]:
        """Ports of running and starting engines."""
        return {port for item in self._state.instances if item.has_process for port in item.ports}

    def restore(self) -> int:
        """Adopt the engines of an earlier executor process; returns their number."""
        self._state, adopted = self.engines.restore(self._state)
        return adopted

    def accept(self, assignment: Assignment, expires_ms: int = 0) -> None:
        """Accept a new assignment, or count the refusal of an outdated one."""
        before = self._state
        self._state = reconcile.accept(before, assignment, expires_ms)
        for why, count in self._state.refused.items():
            if count > before.refused.get(why, 0):
                self._report_refusal(assignment, why)

    def refuse(self, assignment: Assignment, why: str) -> None:
        """Refuse an assignment, whatever the current assignment is."""
        self._state = reconcile.count_refusal(self._state, why)
        self._report_refusal(assignment, why)

    def on_reclaim_notice(self, left_s: float | None) -> None:
        """Handle a notice that the node is reclaimed in `left_s` real seconds; None = no notice,
        infinite = without a deadline."""
        if left_s is None:
            self._reclaim_ms = 0
            return
        base = self._config.time_base
        at_ms = NO_DEADLINE_MS
        if math.isfinite(left_s):
            at_ms = base.now_ms(time.monotonic_ns()) + int(left_s * base.speed * 1000)
        # A repeated notice gives a slightly different time, because the hook's response time
        # varies.
        if (
            not self._reclaim_ms
            or abs(at_ms - self._reclaim_ms) > _SAME_NOTICE_S * base.speed * 1e3
        ):
            when = f"in {left_s:.0f} s" if math.isfinite(left_s) else "when it is empty"
            log.warning("%s: reclaimed %s", self._node.node, when)
            self._reclaim_ms = at_ms

    def set_lost(self, lost: bool) -> None:
        """Simulate the loss of the node, or its return.

        A lost node has no engines and reports nothing. After its return it starts the engines of
        its assignment again.
        """
        if lost and not self._lost:
            log.warning("%s: lost", self._node.node)
            self.engines.kill_all()
        self._lost = lost

    def step(self, now_ms: int, now_s: float, used_ports: set[int]) -> None:
        """Observe, reconcile, execute, publish. now_s: the event loop's clock; used_ports: ports in
        use by all nodes of this executor."""
        if self._lost:
            return
        before = self._state
        if not before.instances:
            self.engines.node_released()
        seen = self.engines.observe(before.instances)
        # End drains early enough for requests in flight to finish between SIGTERM and reclaim.
        leave_ms = self._reclaim_ms - int(SHUTDOWN_TIMEOUT_S * 1000) if self._reclaim_ms else 0
        stop_ms = self.engines.stop_ms(self._rules)
        rules = replace(self._rules, stop_ms=stop_ms, drain_by_ms=max(0, leave_ms))
        self._state, commands = reconcile.reconcile(
            before, seen, now_ms, rules, self.engines.blocked_gpus()
        )
        for command in commands:
            self._execute(command, now_ms, used_ports)
        self._record_switch_times(before, now_ms)
        self._starts.step(before, self._state, now_ms)
        if now_s >= self._save_due_s or _persistent_part(before) != _persistent_part(self._state):
            saved = self.engines.save(self._state)
            self._save_due_s = math.inf if saved else now_s + _SAVE_RETRY_S
        self.engines.start_probes(self._state.instances, now_ms, now_s)
        self._publish_if_due(now_ms, now_s)

    async def close(self) -> None:
        """Stop probing and publishing. Engines keep running."""
        await self.engines.close()
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)

    # -- inside -------------------------------------------------------------------------------

    def _report_refusal(self, assignment: Assignment, why: str) -> None:
        self._metrics.refused.labels(why).inc()
        log.warning(
            "%s: refused assignment %d of leader %d: %s",
            self._node.node,
            assignment.generation,
            assignment.leader_token,
            why,
        )

    def _execute(self, command: Command, now_ms: int, used_ports: set[int]) -> None:
        if isinstance(command, Launch):
            started = self.engines.launch(command, now_ms, used_ports)
            if started is not None:
                instance = command.desired.instance
                self._state = reconcile.record_launch(self._state, instance, *started)
            return
        if isinstance(command, Wake):
            log.info("%s: waking %s as %s", self._node.node, command.sleeper, command.instance)
            self.engines.rename_sleeper(command)
            return
        log.info("%s: %s %s", self._node.node, type(command).__name__.lower(), command.instance)
        if isinstance(command, Kill):
            self.engines.kill(command.instance)
        else:
            self.engines.terminate(command.instance)

    def _record_switch_times(self, before: NodeState, now_ms: int) -> None:
        self._record_wake_times(before, now_ms)
        switching = {i.instance: i for i in before.instances if i.state is InstanceState.SWITCHING}
        for item in self._state.instances:
            old = switching.get(item.instance)
            if old is None or item.state is InstanceState.SWITCHING:
                continue
            engine = item.desired.engine
            routing = engine in self._rules.live_switch_engines
            strategy = RoleSwitch.ROUTING if routing else RoleSwitch.RELAUNCH
            outcome = _switch_outcome(old, item)
            took_s = (now_ms - old.switch_ms) / 1000
            self._metrics.switches.labels(engine, str(strategy), outcome).observe(took_s)
            log.info("%s: switch of %s %s after %.1f s", self._node.node, item.instance, outcome,
                     took_s)  # fmt: skip

    def _record_wake_times(self, before: NodeState, now_ms: int) -> None:
        waking = {i.instance: i for i in before.instances if _is_waking(i)}
        for item in self._state.instances:
            old = waking.get(item.instance)
            if old is None or _is_waking(item):
                continue
            outcome = _WAKE_OUTCOMES.get(item.state, "ended")
            took_s = (now_ms - old.sleep_ms) / 1000
            self._metrics.wakes.labels(item.desired.engine, outcome).observe(took_s)
            log.info("%s: %s %s after %.1f s", self._node.node, item.instance, outcome, took_s)

    def _publish_if_due(self, now_ms: int, now_s: float) -> None:
        if self._publishing is not None and not self._publishing.done():
            return
        if self.node_lock.contested(now_ms):
            return  # the other executor publishes this node's status
        shown_ms = self._published.at_ms if self._published else 0
        if shown_ms and now_ms - shown_ms > self.node_lock.silence_limit_ms * 2 // 3:
            self.node_lock.drop_claim()
        status = self._status(now_ms)
        if self._published is None or _urgent_part(status) != _urgent_part(self._published):
            if now_s - self._published_s < _MIN_CHANGE_S:
                return
        else:
            # Align the publications of all nodes of this process, so that Kafka can batch them.
            every_s = heartbeat_s(not self._state.instances, self._config.time_base.speed)
            again = self._publish_failed and now_s - self._published_s >= _PUBLISH_RETRY_S
            if not again and now_s // every_s == self._published_s // every_s:
                return
        self._published_s = now_s
        self._publishing = asyncio.create_task(self._publish_status(status))

    def _status(self, now_ms: int) -> Status:
        state = self._state
        faults = (self.engines.fault, self.node_lock.fault(now_ms))
        instances = tuple(
            replace(seen, template=self.engines.template_of(seen.instance))
            for seen in reconcile.observed_instances(state)
        )
        addresses: set[str] = set()
        if self.engines.endpoints_vary:
            addresses = {host_of(seen.endpoint) for seen in instances if seen.endpoint}
        else:
            instances = tuple(self._at_advertised_address(seen) for seen in instances)
        return Status(
            node=state.node,
            pool=state.pool,
            executor=self._config.executor,
            observed_generation=state.assignment.generation if state.assignment else 0,
            at_ms=now_ms,
            instances=instances,
            boot=self.node_lock.boot,
            place=self.node_lock.place,
            refused=sum(state.refused.values()),
            reclaim_ms=self._reclaim_ms,
            faults=tuple(fault for fault in faults if fault),
            load_feed=self._load_feed,
            observed_token=state.assignment.leader_token if state.assignment else 0,
            address=self._config.advertise,
            addresses=tuple(sorted(addresses)),
            launch_basis=self.engines.launch_basis,
            templates=self.engines.templates,
            release=_RELEASE,
        )

    def _at_advertised_address(self, seen: ObservedInstance) -> ObservedInstance:
        """`seen` with the currently advertised address, because an adopted engine may have been
        started under another name of this host."""
        home = self._config.advertise
        if seen.endpoint:
            seen = replace(seen, endpoint=f"{home}:{seen.endpoint.rpartition(':')[2]}")
        if seen.gang is not None and seen.gang.leads and seen.gang.rendezvous:
            port = seen.gang.rendezvous.rpartition(":")[2]
            seen = replace(seen, gang=replace(seen.gang, rendezvous=f"{home}:{port}"))
        return seen

    async def _publish_status(self, status: Status) -> None:
        try:
            accepted = await self._publish(status)
        except InvalidValue:
            log.exception("%s: status cannot be encoded", self._node.node)
            return
        self._publish_failed = not accepted
        if accepted:
            self._published = status


def _is_waking(item: InstanceRecord) -> bool:
    return item.state is InstanceState.STARTING and item.sleep_ms > 0


def _switch_outcome(old: InstanceRecord, new: InstanceRecord) -> str:
    if new.state is not InstanceState.READY:
        return "ended"
    return "switched" if new.phase != old.from_phase else "rolled back"


def _persistent_part(state: NodeState) -> object:
    """The part of the state whose change triggers a save: everything except load and the time
    without a processor, which change constantly."""
    held = tuple(
        replace(item, in_flight=0, held_kv=0, finished=0, starved_ms=0, unhealthy_since_ms=0)
        for item in state.instances
    )
    found = state.assignment
    if found is not None:
        found = replace(found, said_ms=0)
    return found, state.expires_ms // _EXPIRY_STEP_MS, held, tuple(state.refused.items())


def _urgent_part(status: Status) -> object:
    """The part of a status whose change is published at once. A change of load waits for the next
    heartbeat."""
    instances = tuple(replace(i, in_flight=0, held_kv=0, finished=0) for i in status.instances)
    generation, basis = status.observed_generation, status.launch_basis
    return generation, instances, status.reclaim_ms, status.faults, basis, status.templates
