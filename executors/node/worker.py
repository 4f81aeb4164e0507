"""One node of an executor: carries out what the reconciler says.

Owns the node's processes, its probes and its status record. Knows no Kafka: what it publishes
goes through a function, and assignments are handed to it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import aiohttp

from executors.engines.protocol import Contact, LaunchSpec
from executors.node import reconcile
from executors.node.config import ExecutorConfig, NodeConfig
from executors.node.probes import Answered, probe
from executors.node.processes import EngineProcess, NoPort, Ports, start
from executors.node.state import Command, Held, Kill, Launch, NodeState, Rules, Seen, Terminate
from executors.node.store import Store
from topics.checks import InvalidRecord
from topics.fleet import Assignment, DesiredInstance, InstanceState, Status

log = logging.getLogger(__name__)

Publish = Callable[[Status], Awaitable[bool]]

SHUTDOWN_TIMEOUT_S = 10.0  # domain s for what is still in flight after SIGTERM
_PROBE_S = {  # real s between two looks at an engine
    InstanceState.STARTING: 0.1,
    InstanceState.READY: 1.0,
    InstanceState.DRAINING: 0.1,
}
_LOAD_EVERY_S = 2.0
_SAVE_AGAIN_S = 5.0  # real s until what could not be written is tried again
_HEARTBEAT_MS, _IDLE_HEARTBEAT_MS = 2_000, 10_000
_MIN_PUBLISH_S, _MIN_IDLE_PUBLISH_S = 0.2, 1.0
_REAL_FLOORS_MS = {
    # Processes start and end in real time, however fast domain time runs.
    "start_timeout_ms": 15_000,
    "kill_after_ms": 2_000,
    "sick_after_ms": 3_000,
}


def rules_at(speed: float, rules: Rules | None = None) -> Rules:
    """`rules` with deadlines that leave real processes their real time at this speed."""
    base = rules or Rules()
    return replace(
        base,
        **{k: max(getattr(base, k), int(v * speed)) for k, v in _REAL_FLOORS_MS.items()},
    )


class NodeWorker:
    """One node. `step` is called some ten times a second and never waits."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        ports: Ports,
        store: Store,
        client: aiohttp.ClientSession,
        publish: Publish,
        rules: Rules,
    ) -> None:
        self._node = node
        self._config = config
        self._ports = ports
        self._store = store
        self._client = client
        self._publish = publish
        self._rules = rules
        self._state = NodeState(node.node, node.pool)
        self._processes: dict[str, EngineProcess] = {}
        self._answers: dict[str, tuple[Answered, int]] = {}
        self._failed_launch: dict[str, str] = {}
        self._next_probe_s: dict[str, float] = {}
        self._next_load_s: dict[str, float] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._shown: Status | None = None
        self._shown_s = 0.0
        self._save_due_s = math.inf

    @property
    def state(self) -> NodeState:
        """What is known of the node now."""
        return self._state

    @property
    def ports_used(self) -> set[int]:
        """Ports of engines that live or start."""
        ends = [item.endpoint for item in self._state.held if item.process and item.endpoint]
        return {int(endpoint.rpartition(":")[2]) for endpoint in ends}

    def restore(self) -> int:
        """Take over what an earlier life left running; how many engines that were."""
        self._state, self._processes = self._store.restore(self._state)
        return len(self._processes)

    def accept(self, assignment: Assignment) -> None:
        """A new assignment, or an old one that is refused."""
        before = self._state
        self._state = reconcile.accept(before, assignment)
        if self._state.refused > before.refused:
            log.warning(
                "%s: refused assignment %d of leader %d",
                self._node.node,
                assignment.generation,
                assignment.leader_token,
            )

    def step(self, now_ms: int, now_s: float, used_ports: set[int]) -> None:
        """Look, reconcile, act, tell. now_s: the loop's clock; used_ports: of all nodes."""
        before = self._state
        seen = self._look()
        self._state, commands = reconcile.reconcile(before, seen, now_ms, self._rules)
        for command in commands:
            self._carry_out(command, now_ms, used_ports)
        self._forget()
        if now_s >= self._save_due_s or _durable(before) != _durable(self._state):
            saved = self._store.save(self._state, self._processes)
            self._save_due_s = math.inf if saved else now_s + _SAVE_AGAIN_S
        self._probe_due(now_ms, now_s)
        self._tell(now_ms, now_s)

    async def close(self) -> None:
        """Stop asking and telling; engines are left as they are."""
        tasks = [*self._probing.values()]
        if self._publishing is not None:
            tasks.append(self._publishing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def terminate_all(self) -> None:
        """SIGTERM to every engine of the node."""
        for process in self._processes.values():
            process.terminate()

    def kill_all(self) -> None:
        """SIGKILL to what is left."""
        for process in self._processes.values():
            process.kill()

    def alive(self) -> int:
        """How many engines of the node still run; those that do not are reaped."""
        return sum(process.ended() is None for process in self._processes.values())

    # -- inside -------------------------------------------------------------------------------

    def _look(self) -> dict[str, Seen]:
        seen = {}
        for item in self._state.held:
            if not item.process:
                continue
            process = self._processes.get(item.instance)
            if process is None:
                note = self._failed_launch.pop(item.instance, "its process is gone")
                seen[item.instance] = Seen(alive=False, note=note)
                continue
            ended = process.ended()
            if ended is not None:
                del self._processes[item.instance]
                self._answers.pop(item.instance, None)
                seen[item.instance] = Seen(alive=False, note=ended)
                continue
            answer = self._answers.pop(item.instance, None)
            if answer is None:
                seen[item.instance] = Seen(alive=True)
            else:
                answered, at_ms = answer
                load = answered.load
                seen[item.instance] = Seen(
                    alive=True,
                    healthy=answered.healthy,
                    in_flight=load.in_flight if load else None,
                    held_kv=load.held_kv if load else 0,
                    probed_ms=at_ms,
                )
        return seen

    def _carry_out(self, command: Command, now_ms: int, used_ports: set[int]) -> None:
        if isinstance(command, Launch):
            self._launch(command.desired, now_ms, used_ports)
            return
        process = self._processes.get(command.instance)
        log.info("%s: %s %s", self._node.node, type(command).__name__.lower(), command.instance)
        if process is None:
            return
        if isinstance(command, Terminate):
            process.terminate()
        elif isinstance(command, Kill):
            process.kill()

    def _launch(self, desired: DesiredInstance, now_ms: int, used_ports: set[int]) -> None:
        self._answers.pop(desired.instance, None)
        model = self._config.models.get(desired.model)
        kind = self._config.engines.get(desired.engine)
        if model is None or kind is None:
            what = f"model {desired.model}" if model is None else f"engine {desired.engine}"
            self._failed_launch[desired.instance] = f"{what} is not configured here"
            return
        if max(desired.gpus) >= self._node.gpus:
            reason = f"GPU {max(desired.gpus)} asked for, the node has {self._node.gpus}"
            self._failed_launch[desired.instance] = reason
            return
        try:
            ports = self._ports.take(used_ports | self.ports_used, kind.ports)
            spec = LaunchSpec(
                instance=desired.instance,
                model=desired.model,
                source=model.source,
                weights=model.weights,
                max_len=model.max_len,
                phase=desired.phase,
                gpu=self._node.gpu,
                gpus=desired.gpus,
                host=self._config.bind,
                advertise=self._config.bind,
                ports=ports,
                folder=self._store.path(desired.instance).with_suffix(""),
                time_base=self._config.time_base,
                launched_ms=now_ms,
                shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
            )
            process = start(kind.launch_line(spec), self._store.log_path(desired.instance))
        except (OSError, NoPort, ValueError) as error:
            self._failed_launch[desired.instance] = str(error)
            return
        used_ports.update(ports)
        self._processes[desired.instance] = process
        endpoint = f"{self._config.bind}:{ports[0]}"
        self._state = reconcile.launched(self._state, desired.instance, endpoint)
        log.info("%s: started %s on %s", self._node.node, desired.instance, endpoint)

    def _forget(self) -> None:
        known = {item.instance for item in self._state.held}
        for memory in (self._answers, self._next_probe_s, self._next_load_s, self._failed_launch):
            for instance in [i for i in memory if i not in known]:
                del memory[instance]

    def _probe_due(self, now_ms: int, now_s: float) -> None:
        for item in self._state.held:
            every_s = _PROBE_S.get(item.state)
            due = now_s >= self._next_probe_s.get(item.instance, 0.0)
            if every_s is None or not due or item.instance in self._probing:
                continue
            if item.instance not in self._processes:
                continue
            kind = self._config.engines.get(item.desired.engine)
            if kind is None:  # adopted, and its engine left the configuration: it stays as it is
                continue
            self._next_probe_s[item.instance] = now_s + every_s
            draining = item.state is InstanceState.DRAINING
            load = draining or now_s >= self._next_load_s.get(item.instance, 0.0)
            if load:
                self._next_load_s[item.instance] = now_s + _LOAD_EVERY_S
            task = asyncio.create_task(
                self._ask(item, self._processes[item.instance], now_ms, load)
            )
            self._probing[item.instance] = task
            task.add_done_callback(partial(self._probed, item.instance))

    def _probed(self, instance: str, _task: asyncio.Task[None]) -> None:
        self._probing.pop(instance, None)

    async def _ask(self, item: Held, process: EngineProcess, now_ms: int, load: bool) -> None:
        kind = self._config.engines[item.desired.engine]
        contact = Contact(self._client, item.endpoint, item.desired.model)
        answered = await probe(kind, contact, load)
        # An answer of an earlier process says nothing about the present one.
        if self._processes.get(item.instance) is process:
            self._answers[item.instance] = (answered, now_ms)

    def _tell(self, now_ms: int, now_s: float) -> None:
        if self._publishing is not None and not self._publishing.done():
            return
        idle = not self._state.held
        least_s = _MIN_IDLE_PUBLISH_S if idle else _MIN_PUBLISH_S
        every_ms = _IDLE_HEARTBEAT_MS if idle else _HEARTBEAT_MS
        status = reconcile.status(self._state, self._config.executor, now_ms)
        changed = self._shown is None or _shape(status) != _shape(self._shown)
        if not changed and now_ms - (self._shown.at_ms if self._shown else 0) < every_ms:
            return
        if now_s - self._shown_s < (_MIN_PUBLISH_S if changed else least_s):
            return
        self._shown_s = now_s
        self._publishing = asyncio.create_task(self._show(status))

    async def _show(self, status: Status) -> None:
        try:
            told = await self._publish(status)
        except InvalidRecord:
            log.exception("%s: its status cannot be written", self._node.node)
            return
        if told:
            self._shown = status


def _durable(state: NodeState) -> object:
    """What is worth a write: everything but the load, which changes with each look."""
    held = tuple(replace(item, in_flight=0, held_kv=0) for item in state.held)
    return state.assignment, held, state.refused


def _shape(status: Status) -> object:
    """What others act upon at once; the load comes with the next heartbeat."""
    instances = tuple(replace(i, in_flight=0, held_kv=0) for i in status.instances)
    return status.observed_generation, instances
