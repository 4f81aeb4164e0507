"""The engine processes of one node: launch, adoption, observation, signals.

Executes the commands of the reconciler and reports `ProcessObservation`s to it. This module makes
no decisions.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from executors.engines.engine_protocol import API_KEY, LaunchSpec, rendezvous
from executors.node import procfs
from executors.node.containers import container_line
from executors.node.engine_environment import LaunchTag, engine_environment
from executors.node.engine_ports import EnginePorts, NoFreePort
from executors.node.engine_probes import ProbeResult
from executors.node.executor_config import ExecutorConfig, NodeConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_state import (
    InstanceRecord,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Wake,
)
from executors.node.os_processes import EngineProcess, start_engine
from executors.node.probe_schedule import ProbeSchedule, Reach
from executors.node.process_recovery import StrayProcess, adopt_engines
from executors.node.start_reports import read_report, repeats, with_blocks
from executors.node.state_store import RecordedProcess, StateStore
from topics.engine_start import EngineStart

log = logging.getLogger(__name__)

OTHER_MODEL = "{} is configured here with another source, weights, adapters or max_len"
SHUTDOWN_TIMEOUT_S = 10.0  # domain s for requests in flight after SIGTERM
_CUT_LOGS_S = 10.0


class EngineProcesses:
    """The processes of one node, by instance id."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        ports: EnginePorts,
        store: StateStore,
        probes: ProbeSchedule,
        metrics: Metrics,
        engine_key: str = "",
    ) -> None:
        self._node = node
        self._config = config
        self._ports = ports
        self._store = store
        self._probes = probes
        self._metrics = metrics
        self._engine_key = engine_key
        self.processes: dict[str, EngineProcess] = {}
        self._strays: list[StrayProcess] = []
        self._failed_launch: dict[str, str] = {}
        self._reported: dict[str, str] = {}  # by instance, the launch whose log was read
        self._terminated_s: dict[str, float] = {}
        self._longest_stop_s: dict[str, float] = {}
        self._cut_logs_s = 0.0
        self.launch_fault = ""  # Why every launch fails, as a scenario scripts it; "" = none.
        self._provisioned_ms: int | None = (
            None  # when the simulated machine is provisioned; None: no engine yet
        )

    @property
    def fault(self) -> str:
        """The reason why the state folder cannot be written, "" if it can."""
        return self._store.fault

    @property
    def endpoints_vary(self) -> bool:
        """False: all processes share the node's address."""
        return False

    @property
    def launch_basis(self) -> str:
        """ "": the settings of a node do not change while its executor runs."""
        return ""

    @property
    def templates(self) -> Mapping[str, str]:
        """Empty: the settings of processes are part of the declared version."""
        return {}

    def template_of(self, instance: str) -> str:
        """ "": see `templates`."""
        return ""

    def restore(self, state: NodeState) -> tuple[NodeState, int]:
        """`state` as saved, with the engines that an earlier executor process started."""
        saved, recorded = self._store.restore(state)
        return self.adopt(saved, recorded), len(self.processes)

    def save(self, state: NodeState) -> bool:
        """Write `state` with the identities of its processes to the state folder."""
        return self._store.save(state, self.processes)

    def adopt(self, state: NodeState, recorded: Mapping[str, RecordedProcess]) -> NodeState:
        """Adopt the engines that an earlier executor process started; see `process_recovery`."""
        now_ms = self._config.time_base.now_ms(time.monotonic_ns())
        found = adopt_engines(state, recorded, self._store, self._config.advertise, now_ms)
        self.processes, self._strays = found.processes, found.strays
        self._metrics.orphans.labels("adopted").inc(found.unrecorded)
        self._metrics.orphans.labels("killed").inc(len(found.strays))
        self._provisioned_ms = 0 if found.state.instances else None
        return found.state

    def observe(self, records: tuple[InstanceRecord, ...]) -> dict[str, ProcessObservation]:
        """Observations of all instances that should have a process."""
        self._strays = [stray for stray in self._strays if stray.process.poll() is None]
        return {item.instance: self._observe_one(item) for item in records if item.has_process}

    def node_released(self) -> None:
        """Note that the node has no instances left, so that a simulated node is provisioned again
        for its next launch."""
        self._provisioned_ms = None

    def blocked_gpus(self) -> set[int]:
        """GPUs that stray processes hold; all GPUs of the node if those of a stray process are
        unknown."""
        gpus: set[int] = set()
        for stray in self._strays:
            gpus.update(range(self._node.gpus) if stray.gpus is None else stray.gpus)
        return gpus

    def _observe_one(self, item: InstanceRecord) -> ProcessObservation:
        process = self.processes.get(item.instance)
        if process is None:
            note = self._failed_launch.pop(item.instance, "its process is gone")
            self._metrics.failed_launches.labels(item.desired.engine).inc()
            return ProcessObservation(alive=False, end_reason=note)
        ended = process.poll()
        if ended is not None:
            report = None if item.was_ready else read_report(process.log, item.instance)
            self._record_end(item)
            report = report if report is not None and report.refused else None
            return ProcessObservation(
                alive=False, end_reason=ended, hopeless=repeats(report), start=report
            )
        answer = self._probes.take_result(item.instance, process)
        starved_ms = int(process.starved_s() * self._config.time_base.speed * 1000)
        if answer is None:
            return ProcessObservation(alive=True, starved_ms=starved_ms)
        answered, at_ms = answer
        load = answered.load
        return ProcessObservation(
            alive=True,
            healthy=answered.healthy,
            in_flight=load.in_flight if load else None,
            held_kv=load.held_kv if load else 0,
            finished=load.finished if load else 0,
            probed_ms=at_ms,
            asleep=answered.asleep,
            starved_ms=starved_ms,
            start=self._report(item, process, answered),
        )

    def _report(
        self, item: InstanceRecord, process: EngineProcess, answered: ProbeResult
    ) -> EngineStart | None:
        """The memory of the engine, from its log once it is ready, and from its metrics."""
        report = item.start
        if answered.healthy and self._reported.get(item.instance) != process.launch:
            self._reported[item.instance] = process.launch
            report = read_report(process.log, item.instance) or report
        report = with_blocks(report, answered.load)
        return None if report is None or report.refused else report

    def _record_end(self, item: InstanceRecord) -> None:
        del self.processes[item.instance]
        self._probes.forget(item.instance)
        if not item.was_ready:
            self._metrics.failed_launches.labels(item.desired.engine).inc()
        begun_s = self._terminated_s.pop(item.instance, None)
        if begun_s is not None and not item.killed_ms:
            took_s = time.monotonic() - begun_s
            engine = item.desired.engine
            self._metrics.stops.labels(engine).observe(took_s)
            self._longest_stop_s[engine] = max(took_s, self._longest_stop_s.get(engine, 0.0))

    def stop_ms(self, rules: Rules) -> dict[str, int]:
        """Longest stop time per engine kind, in domain ms. It is the kind's shutdown time-out for
        requests in flight, plus the declared `stop_s` or twice the longest stop measured here,
        whichever is longer."""
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
        """Start an engine. Returns its endpoint and its ports.

        The endpoint is "" for a rank that serves no HTTP. Returns None if the start failed; the
        next `observe` reports the reason.
        """
        desired = command.desired
        reason = self._config_fault(command)
        model = self._config.models.get(desired.model)
        kind = self._config.engines.get(desired.engine)
        if reason or model is None or kind is None:
            self._failed_launch[desired.instance] = reason
            return None
        tag = LaunchTag(
            uuid.uuid4().hex, self._node.node, replace(desired, phase=command.phase), (), 0
        )
        state_dir = str(self._store.folder)
        if self._provisioned_ms is None:
            self._provisioned_ms = now_ms + int(1000 * self._node.provision_s)
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
                adapters=model.adapters,
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
                node_s=max(0, self._provisioned_ms - now_ms) / 1000.0,
                api_key=self._engine_key,
                gang=gang,
            )
            line = kind.launch_line(spec)
            tag = replace(tag, ports=ports, launched_ms=now_ms)
            passed = self._config.engine_env
            environment = engine_environment(line, tag, state_dir, passed)
            if kind.image and self._config.containers:
                line = container_line(
                    line, self._config.containers, kind.image, tag.launch, desired.gpus,
                    (model.weights or model.source, *(one.weights for one in model.adapters)),
                    environment,
                )  # fmt: skip
                environment = engine_environment(line, tag, state_dir, passed)
            path = self._store.logs.open_new(desired.instance, now_ms)
            fds = self._ports.lock_fds
            process = start_engine(line, tag, environment, state_dir, path, fds)
        except (OSError, NoFreePort, ValueError) as error:
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

    def _config_fault(self, command: Launch) -> str:
        desired = command.desired
        if self.launch_fault:
            return self.launch_fault
        if desired.model not in self._config.models:
            return f"model {desired.model} is not configured here"
        if desired.engine not in self._config.engines:
            return f"engine {desired.engine} is not configured here"
        if not self._config.models[desired.model].launches(desired.version):
            return OTHER_MODEL.format(desired.model)
        if max(desired.gpus) >= self._node.gpus:
            return f"GPU {max(desired.gpus)} is assigned, but the node has {self._node.gpus}"
        return ""

    def rename_sleeper(self, command: Wake) -> None:
        """Assign the process of a sleeping instance to the instance that replaces it. The new
        instance's next probe wakes the engine."""
        process = self.processes.pop(command.sleeper, None)
        self._probes.forget(command.sleeper)
        if process is not None:
            self.processes[command.instance] = process

    def terminate(self, instance: str) -> None:
        """Send SIGTERM to an engine."""
        process = self.processes.get(instance)
        if process is not None:
            self._terminated_s.setdefault(instance, time.monotonic())
            process.terminate()

    def kill(self, instance: str) -> None:
        """Send SIGKILL to an engine and all its descendants."""
        process = self.processes.get(instance)
        if process is not None:
            process.kill()

    def start_probes(self, records: tuple[InstanceRecord, ...], now_ms: int, now_s: float) -> None:
        """Start the probes that are due; a later `observe` returns their results."""
        for item in records:
            process = self.processes.get(item.instance)
            if process is not None and item.ports:
                self._probes.start_probe(item, process, now_ms, now_s)
        known = {item.instance for item in records}
        for memory in (self._failed_launch, self._terminated_s, self._reported):
            for instance in [i for i in memory if i not in known]:
                del memory[instance]
        if now_s >= self._cut_logs_s:
            self._cut_logs_s = now_s + _CUT_LOGS_S
            self._store.logs.truncate([process.log for process in self.processes.values()])

    async def close(self) -> None:
        """Stop all probes. Engines keep running."""
        await self._probes.close()

    def terminate_all(self) -> None:
        """Send SIGTERM to all engines of the node."""
        for process in self.processes.values():
            process.terminate()

    def kill_all(self) -> None:
        """Send SIGKILL to all remaining processes of the node, strays included."""
        for process in self._all_processes():
            process.kill()

    def count_alive(self) -> int:
        """The number of engines of the node that still run. Reaps the engines that have ended."""
        return sum(process.poll() is None for process in self._all_processes())

    def _all_processes(self) -> list[EngineProcess]:
        return [*self.processes.values(), *(stray.process for stray in self._strays)]


def reach_process(host: str) -> Reach:
    """How probes reach engines that are processes on this machine. host: address of the
    processes."""

    def reach(item: InstanceRecord, engine: object) -> tuple[str, str] | None:
        # Read the key from the process: an adopted engine may have another key.
        pid = engine.pid if isinstance(engine, EngineProcess) else 0
        given = procfs.environment_or_none(pid)
        if given is not None and not given:
            return None  # exec in progress: the variables are readable afterwards
        return f"{host}:{item.ports[0]}", (given or {}).get(API_KEY, "")

    return reach
