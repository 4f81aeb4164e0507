"""One node of an executor: carries out what the reconciler says, and tells what it sees.

Holds the node's state between steps and its status record. Knows no Kafka: what it publishes goes
through a function, and assignments are handed to it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from executors.engines.engine_protocol import RoleSwitch
from executors.node import reconcile
from executors.node.engine_processes import SHUTDOWN_TIMEOUT_S, EnginesHere
from executors.node.executor_config import ExecutorConfig, NodeConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_lock import Occupancy
from executors.node.node_state import Command, Held, Kill, Launch, NodeState, Rules, Wake
from executors.node.state_store import Store
from topics.checks import InvalidRecord
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status

log = logging.getLogger(__name__)

Publish = Callable[[Status], Awaitable[bool]]

_SAME_NOTICE_S = 5.0
_SAVE_AGAIN_S = 5.0  # real s until what could not be written is tried again
_MIN_CHANGE_S = 0.2  # real s between two statuses of a node that changes
_TELL_AGAIN_S = 1.0  # real s until what the broker did not take is told again
_HEARTBEAT_S, _IDLE_HEARTBEAT_S = 2.0, 10.0
# In real time, too: at high speed a controller lets a node be silent for 5 real s, three times
# that if it runs nothing.
_MIN_HEARTBEAT_S, _MIN_IDLE_HEARTBEAT_S = 0.6, 2.0
_EXPIRY_STEP_MS = 60_000
_WOKEN = {InstanceState.READY: "woken", InstanceState.STARTING: "started anew"}
_REAL_FLOORS_MS = {
    # Processes start and end in real time, however fast domain time runs.
    "start_timeout_ms": 15_000,
    "kill_after_ms": 2_000,
    "sick_after_ms": 5_000,
}


def rules_at(config: ExecutorConfig) -> Rules:
    """The rules of this executor, with deadlines that leave real processes their real time."""
    base = Rules(
        start_timeout_ms=int(config.start_timeout_s * 1000),
        drain_timeout_ms=int(config.drain_timeout_s * 1000),
        routing=frozenset(
            name for name, kind in config.engines.items() if kind.role_switch is RoleSwitch.ROUTING
        ),
        sleeping=frozenset(name for name, kind in config.engines.items() if kind.sleeps),
    )
    speed = config.time_base.speed
    floors = {k: max(getattr(base, k), int(v * speed)) for k, v in _REAL_FLOORS_MS.items()}
    return replace(base, **floors)


def heartbeat_s(idle: bool, speed: float) -> float:
    """Real seconds between two statuses of a node of which nothing changes."""
    if idle:
        return max(_IDLE_HEARTBEAT_S / speed, _MIN_IDLE_HEARTBEAT_S)
    return max(_HEARTBEAT_S / speed, _MIN_HEARTBEAT_S)


class NodeWorker:
    """One node. `step` is called some ten times a second and never waits."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        engines: EnginesHere,
        store: Store,
        occupancy: Occupancy,
        metrics: Metrics,
        publish: Publish,
        rules: Rules,
        load_feed: str = "",
    ) -> None:
        self._node = node
        self._config = config
        self.engines = engines
        self._store = store
        self.occupancy = occupancy
        self._metrics = metrics
        self._publish = publish
        self._rules = rules
        self._load_feed = load_feed
        self._state = NodeState(node.node, node.pool)
        self._publishing: asyncio.Task[None] | None = None
        self._shown: Status | None = None
        self._shown_s = 0.0
        self._untold = False
        self._save_due_s = math.inf
        self._reclaim_ms = 0

    @property
    def state(self) -> NodeState:
        """What is known of the node now."""
        return self._state

    @property
    def ports_used(self) -> set[int]:
        """Ports of engines that live or start."""
        return {port for item in self._state.held if item.process for port in item.ports}

    def restore(self) -> int:
        """Take over what an earlier life left running; how many engines that were."""
        state, recorded = self._store.restore(self._state)
        self._state = self.engines.adopt(state, recorded)
        return len(self.engines.processes)

    def accept(self, assignment: Assignment, expires_ms: int = 0) -> None:
        """A new assignment, or an old one that is refused."""
        before = self._state
        self._state = reconcile.accept(before, assignment, expires_ms)
        for why, count in self._state.refused.items():
            if count > before.refused.get(why, 0):
                self._say_refused(assignment, why)

    def refuse(self, assignment: Assignment, why: str) -> None:
        """An assignment that is not even compared with the one in force."""
        self._state = reconcile.refused(self._state, why)
        self._say_refused(assignment, why)

    def notice(self, left_s: float | None) -> None:
        """The node will be taken away in `left_s` real seconds; None = nobody says so."""
        if left_s is None:
            self._reclaim_ms = 0
            return
        base = self._config.time_base
        at_ms = base.now_ms(time.monotonic_ns()) + int(left_s * base.speed * 1000)
        # The same notice, asked for again, is off by the time of an answer.
        if (
            not self._reclaim_ms
            or abs(at_ms - self._reclaim_ms) > _SAME_NOTICE_S * base.speed * 1e3
        ):
            log.warning("%s: will be taken away in %.0f s", self._node.node, left_s)
            self._reclaim_ms = at_ms

    def step(self, now_ms: int, now_s: float, used_ports: set[int]) -> None:
        """Look, reconcile, act, tell. now_s: the loop's clock; used_ports: of all nodes."""
        before = self._state
        if not before.held:
            self.engines.released()
        seen = self.engines.look(before.held)
        # What is still in flight then has until the node is gone to finish after SIGTERM.
        leave_ms = self._reclaim_ms - int(SHUTDOWN_TIMEOUT_S * 1000) if self._reclaim_ms else 0
        stop_ms = self.engines.stop_ms(self._rules)
        rules = replace(self._rules, stop_ms=stop_ms, leave_by_ms=max(0, leave_ms))
        self._state, commands = reconcile.reconcile(
            before, seen, now_ms, rules, self.engines.blocked_gpus()
        )
        for command in commands:
            self._carry_out(command, now_ms, used_ports)
        self._time_switches(before, now_ms)
        if now_s >= self._save_due_s or _durable(before) != _durable(self._state):
            saved = self._store.save(self._state, self.engines.processes)
            self._save_due_s = math.inf if saved else now_s + _SAVE_AGAIN_S
        self.engines.ask(self._state.held, now_ms, now_s)
        self._tell(now_ms, now_s)

    async def close(self) -> None:
        """Stop asking and telling; engines are left as they are."""
        await self.engines.close()
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)

    # -- inside -------------------------------------------------------------------------------

    def _say_refused(self, assignment: Assignment, why: str) -> None:
        self._metrics.refused.labels(why).inc()
        log.warning(
            "%s: refused assignment %d of leader %d: %s",
            self._node.node,
            assignment.generation,
            assignment.leader_token,
            why,
        )

    def _carry_out(self, command: Command, now_ms: int, used_ports: set[int]) -> None:
        if isinstance(command, Launch):
            started = self.engines.launch(command, now_ms, used_ports)
            if started is not None:
                instance = command.desired.instance
                self._state = reconcile.launched(self._state, instance, *started)
            return
        if isinstance(command, Wake):
            log.info("%s: waking %s as %s", self._node.node, command.sleeper, command.instance)
            self.engines.rename(command)
            return
        log.info("%s: %s %s", self._node.node, type(command).__name__.lower(), command.instance)
        if isinstance(command, Kill):
            self.engines.kill(command.instance)
        else:
            self.engines.terminate(command.instance)

    def _time_switches(self, before: NodeState, now_ms: int) -> None:
        self._time_wakes(before, now_ms)
        switching = {i.instance: i for i in before.held if i.state is InstanceState.SWITCHING}
        for item in self._state.held:
            old = switching.get(item.instance)
            if old is None or item.state is InstanceState.SWITCHING:
                continue
            engine = item.desired.engine
            routing = engine in self._rules.routing
            strategy = RoleSwitch.ROUTING if routing else RoleSwitch.RELAUNCH
            outcome = _outcome(old, item)
            took_s = (now_ms - old.switch_ms) / 1000
            self._metrics.switches.labels(engine, str(strategy), outcome).observe(took_s)
            log.info("%s: switch of %s %s after %.1f s", self._node.node, item.instance, outcome,
                     took_s)  # fmt: skip

    def _time_wakes(self, before: NodeState, now_ms: int) -> None:
        waking = {i.instance: i for i in before.held if _wakes(i)}
        for item in self._state.held:
            old = waking.get(item.instance)
            if old is None or _wakes(item):
                continue
            outcome = _WOKEN.get(item.state, "ended")
            took_s = (now_ms - old.sleep_ms) / 1000
            self._metrics.wakes.labels(item.desired.engine, outcome).observe(took_s)
            log.info("%s: %s %s after %.1f s", self._node.node, item.instance, outcome, took_s)

    def _tell(self, now_ms: int, now_s: float) -> None:
        if self._publishing is not None and not self._publishing.done():
            return
        if self.occupancy.contested(now_ms):
            return  # the word about this node is another executor's
        shown_ms = self._shown.at_ms if self._shown else 0
        if shown_ms and now_ms - shown_ms > self.occupancy.silent_ms * 2 // 3:
            self.occupancy.lapsed()
        status = self._status(now_ms)
        if self._shown is None or _shape(status) != _shape(self._shown):
            if now_s - self._shown_s < _MIN_CHANGE_S:
                return
        else:
            # All nodes of this process speak on one beat, so their statuses travel in one batch.
            every_s = heartbeat_s(not self._state.held, self._config.time_base.speed)
            again = self._untold and now_s - self._shown_s >= _TELL_AGAIN_S
            if not again and now_s // every_s == self._shown_s // every_s:
                return
        self._shown_s = now_s
        self._publishing = asyncio.create_task(self._show(status))

    def _status(self, now_ms: int) -> Status:
        state = self._state
        faults = (self._store.fault, self.occupancy.fault(now_ms))
        return Status(
            node=state.node,
            pool=state.pool,
            executor=self._config.executor,
            observed_generation=state.assignment.generation if state.assignment else 0,
            at_ms=now_ms,
            instances=tuple(self._at_home(seen) for seen in reconcile.observed(state)),
            boot=self.occupancy.boot,
            place=self.occupancy.place,
            refused=sum(state.refused.values()),
            reclaim_ms=self._reclaim_ms,
            faults=tuple(fault for fault in faults if fault),
            load_feed=self._load_feed,
            observed_token=state.assignment.leader_token if state.assignment else 0,
            address=self._config.advertise,
        )

    def _at_home(self, seen: ObservedInstance) -> ObservedInstance:
        """`seen` under the address of now: an adopted engine may have been started under another
        name of this host."""
        home = self._config.advertise
        if seen.endpoint:
            seen = replace(seen, endpoint=f"{home}:{seen.endpoint.rpartition(':')[2]}")
        if seen.gang is not None and seen.gang.leads and seen.gang.rendezvous:
            port = seen.gang.rendezvous.rpartition(":")[2]
            seen = replace(seen, gang=replace(seen.gang, rendezvous=f"{home}:{port}"))
        return seen

    async def _show(self, status: Status) -> None:
        try:
            told = await self._publish(status)
        except InvalidRecord:
            log.exception("%s: its status cannot be written", self._node.node)
            return
        self._untold = not told
        if told:
            self._shown = status


def _wakes(item: Held) -> bool:
    return item.state is InstanceState.STARTING and item.sleep_ms > 0


def _outcome(old: Held, new: Held) -> str:
    if new.state is not InstanceState.READY:
        return "ended"
    return "switched" if new.phase != old.from_phase else "rolled back"


def _durable(state: NodeState) -> object:
    """What is worth a write: everything but the load, which changes with each look."""
    held = tuple(replace(item, in_flight=0, held_kv=0) for item in state.held)
    found = state.assignment
    if found is not None:
        found = replace(found, said_ms=0)
    return found, state.expires_ms // _EXPIRY_STEP_MS, held, tuple(state.refused.items())


def _shape(status: Status) -> object:
    """What others act upon at once; the load comes with the next heartbeat."""
    instances = tuple(replace(i, in_flight=0, held_kv=0) for i in status.instances)
    return status.observed_generation, instances, status.reclaim_ms, status.faults
