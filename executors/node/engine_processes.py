"""The engine processes of one node: started, taken over, watched, counted.

Holds everything between a command of the reconciler and the operating system. Decides nothing: what
to start or stop is told to it, and what it sees goes back as `Seen`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from executors.engines.engine_protocol import LaunchSpec, rendezvous
from executors.node.containers import contained
from executors.node.engine_environment import Tag, engine_environment
from executors.node.engine_ports import NoPort, Ports
from executors.node.executor_config import ExecutorConfig, NodeConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_state import Held, Launch, NodeState, Rules, Seen, Wake
from executors.node.os_processes import EngineProcess, start
from executors.node.probe_schedule import Asking
from executors.node.process_recovery import Stray, take_over
from executors.node.state_store import Recorded, Store

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 10.0  # domain s for what is still in flight after SIGTERM
_CUT_LOGS_S = 10.0


class EnginesHere:
    """One node's processes by instance."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        ports: Ports,
        store: Store,
        asking: Asking,
        metrics: Metrics,
        engine_key: str = "",
    ) -> None:
        self._node = node
        self._config = config
        self._ports = ports
        self._store = store
        self._asking = asking
        self._metrics = metrics
        self._engine_key = engine_key
        self.processes: dict[str, EngineProcess] = {}
        self._strays: list[Stray] = []
        self._failed_launch: dict[str, str] = {}
        self._terminated_s: dict[str, float] = {}
        self._longest_stop_s: dict[str, float] = {}
        self._cut_logs_s = 0.0
        self._there_ms: int | None = None  # when the machine is there; None: nothing runs on it

    def adopt(self, state: NodeState, recorded: Mapping[str, Recorded]) -> NodeState:
        """Take over what an earlier life of this executor left; see `adopt.take_over`."""
        found = take_over(state, recorded, self._store, self._config.advertise)
        self.processes, self._strays = found.processes, found.strays
        self._metrics.orphans.labels("adopted").inc(found.unrecorded)
        self._metrics.orphans.labels("killed").inc(len(found.strays))
        self._there_ms = 0 if found.state.held else None
        return found.state

    def look(self, held: tuple[Held, ...]) -> dict[str, Seen]:
        """What is known of every instance that should have a process."""
        self._strays = [stray for stray in self._strays if stray.process.ended() is None]
        return {item.instance: self._look(item) for item in held if item.process}

    def released(self) -> None:
        """Nothing is wanted here any more: the machine goes."""
        self._there_ms = None

    def blocked_gpus(self) -> set[int]:
        """GPUs of what is left of earlier launches; all of the node where nobody knows which."""
        gpus: set[int] = set()
        for stray in self._strays:
            gpus.update(range(self._node.gpus) if stray.gpus is None else stray.gpus)
        return gpus

    def _look(self, item: Held) -> Seen:
        process = self.processes.get(item.instance)
        if process is None:
            note = self._failed_launch.pop(item.instance, "its process is gone")
            self._metrics.failed_launches.labels(item.desired.engine).inc()
            return Seen(alive=False, note=note)
        ended = process.ended()
        if ended is not None:
            self._gone(item)
            return Seen(alive=False, note=ended)
        answer = self._asking.answer(item.instance, process)
        if answer is None:
            return Seen(alive=True)
        answered, at_ms = answer
        load = answered.load
        return Seen(
            alive=True,
            healthy=answered.healthy,
            in_flight=load.in_flight if load else None,
            held_kv=load.held_kv if load else 0,
            probed_ms=at_ms,
            asleep=answered.asleep,
        )

    def _gone(self, item: Held) -> None:
        del self.processes[item.instance]
        self._asking.forget(item.instance)
        if not item.answered:
            self._metrics.failed_launches.labels(item.desired.engine).inc()
        begun_s = self._terminated_s.pop(item.instance, None)
        if begun_s is not None and not item.killed_ms:
            took_s = time.monotonic() - begun_s
            engine = item.desired.engine
            self._metrics.stops.labels(engine).observe(took_s)
            self._longest_stop_s[engine] = max(took_s, self._longest_stop_s.get(engine, 0.0))

    def stop_ms(self, rules: Rules) -> dict[str, int]:
        """How long each engine may take to stop, in domain ms: its time for requests in flight, and
        what is declared or, where that is more, twice the longest that was measured here."""
        speed = self._config.time_base.speed
        found = {}
        for name, kind in self._config.engines.items():
            own_s = max(kind.stop_s, 2.0 * self._longest_stop_s.get(name, 0.0))
            stop_ms = int((SHUTDOWN_TIMEOUT_S + own_s * speed) * 1000)
            found[name] = max(rules.kill_after_ms, stop_ms)
        return found

    def launch(
        self, command: Launch, now_ms: int, used_ports: set[int]
    ) -> tuple[str, tuple[int, ...]] | None:
        """Start an engine; where it will be reached and its ports, or None when it cannot be
        started (which `look` then tells)."""
        desired = command.desired
        reason = self._unfit(command)
        model = self._config.models.get(desired.model)
        kind = self._config.engines.get(desired.engine)
        if reason or model is None or kind is None:
            self._failed_launch[desired.instance] = reason
            return None
        tag = Tag(uuid.uuid4().hex, self._node.node, replace(desired, phase=command.phase), (), 0)
        state_dir = str(self._store.folder)
        if self._there_ms is None:
            self._there_ms = now_ms + int(1000 * self._node.provision_s)
        try:
            gang = desired.gang
            leads = gang is not None and gang.leads
            ports = self._ports.take(used_ports, kind.ports + leads)
            if gang is not None and leads:
                gang = replace(gang, rendezvous=rendezvous(self._config.advertise, ports))
            spec = LaunchSpec(
                model=desired.model,
                source=model.source,
                weights=model.weights,
                max_len=model.max_len,
                phase=command.phase,
                gpu=self._node.gpu,
                gpus=desired.gpus,
                host=self._config.bind,
                advertise=self._config.advertise,
                ports=ports,
                time_base=self._config.time_base,
                launched_ms=now_ms,
                shutdown_timeout_s=SHUTDOWN_TIMEOUT_S,
                kv_gb_s=self._node.kv_gb_s,
                node_s=max(0, self._there_ms - now_ms) / 1000.0,
                api_key=self._engine_key,
                gang=gang,
            )
            line = kind.launch_line(spec)
            tag = replace(tag, ports=ports, launched_ms=now_ms)
            passed = self._config.engine_env
            environment = engine_environment(line, tag, state_dir, passed)
            if kind.image and self._config.containers:
                line = contained(
                    line, self._config.containers, kind.image, tag.launch, desired.gpus,
                    model.weights or model.source, environment,
                )  # fmt: skip
                environment = engine_environment(line, tag, state_dir, passed)
            path = self._store.logs.open_new(desired.instance, now_ms)
            process = start(line, tag, environment, state_dir, path)
        except (OSError, NoPort, ValueError) as error:
            self._failed_launch[desired.instance] = str(error)
            return None
        used_ports.update(ports)
        self.processes[desired.instance] = process
        self._metrics.launches.labels(desired.engine).inc()
        endpoint = f"{self._config.advertise}:{ports[0]}"
        if gang is not None and not leads:
            log.info("%s: started %s, %s", self._node.node, desired.instance, gang.place)
            return "", ports
        log.info("%s: started %s on %s", self._node.node, desired.instance, endpoint)
        return endpoint, ports

    def _unfit(self, command: Launch) -> str:
        desired = command.desired
        if desired.model not in self._config.models:
            return f"model {desired.model} is not configured here"
        if desired.engine not in self._config.engines:
            return f"engine {desired.engine} is not configured here"
        if max(desired.gpus) >= self._node.gpus:
            return f"GPU {max(desired.gpus)} asked for, the node has {self._node.gpus}"
        return ""

    def rename(self, command: Wake) -> None:
        """The process of a sleeper becomes another instance's; it wakes when it is asked."""
        process = self.processes.pop(command.sleeper, None)
        self._asking.forget(command.sleeper)
        if process is not None:
            self.processes[command.instance] = process

    def terminate(self, instance: str) -> None:
        """SIGTERM to an engine."""
        process = self.processes.get(instance)
        if process is not None:
            self._terminated_s.setdefault(instance, time.monotonic())
            process.terminate()

    def kill(self, instance: str) -> None:
        """SIGKILL to an engine and everything it started."""
        process = self.processes.get(instance)
        if process is not None:
            process.kill()

    def ask(self, held: tuple[Held, ...], now_ms: int, now_s: float) -> None:
        """Begin the questions that are due; their answers are seen at a later look."""
        for item in held:
            process = self.processes.get(item.instance)
            if process is not None and item.ports:
                self._asking.ask(item, process, now_ms, now_s)
        known = {item.instance for item in held}
        for memory in (self._failed_launch, self._terminated_s):
            for instance in [i for i in memory if i not in known]:
                del memory[instance]
        if now_s >= self._cut_logs_s:
            self._cut_logs_s = now_s + _CUT_LOGS_S
            self._store.logs.cut([process.log for process in self.processes.values()])

    async def close(self) -> None:
        """Stop asking; engines are left as they are."""
        await self._asking.close()

    def terminate_all(self) -> None:
        """SIGTERM to every engine of the node."""
        for process in self.processes.values():
            process.terminate()

    def kill_all(self) -> None:
        """SIGKILL to what is left."""
        for process in self._all():
            process.kill()

    def alive(self) -> int:
        """How many engines of the node still run; those that do not are reaped."""
        return sum(process.ended() is None for process in self._all())

    def _all(self) -> list[EngineProcess]:
        return [*self.processes.values(), *(stray.process for stray in self._strays)]
