"""`EngineRunner` of one slot: the engines of a node as pods.

A slot represents one node of the plan. Each pod has its own address. The node's device plugin
chooses the GPUs, so only the number of GPU indices matters. This module makes no decisions.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from executors.kubernetes import kube_names as names
from executors.kubernetes.drain_gate import MOVED_LAG_S, DrainGate
from executors.kubernetes.engine_pod import EnginePod, Wait, end_of, wait_of
from executors.kubernetes.kube_events import write_event
from executors.kubernetes.kube_kinds import POD
from executors.kubernetes.launch_lines import launch_line
from executors.kubernetes.notices import notice_s
from executors.kubernetes.own_pods import Placer
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from executors.node.engine_processes import SHUTDOWN_TIMEOUT_S
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
from executors.node.probe_schedule import ProbeSchedule, Reach
from executors.node.start_reports import with_blocks
from topics.checks import InvalidValue
from topics.fleet import InstanceState, LaunchCode

log = logging.getLogger(__name__)

FIRST_PORT = 8000
_DRAINS = (InstanceState.DRAINING, InstanceState.STOPPING)


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """Settings of a slot. node_wait_s: time for which a pod waits for a new node. route_lag_s: time
    until routers that select by label apply a change. binds: whether the first pod of a slot binds
    the slot to a node. supply_fault: returns the reason why no node is added."""

    node_wait_s: float = 0.0
    route_lag_s: float = 0.0
    binds: bool = True
    supply_fault: Callable[[PodView], str] = lambda pod: ""


class PodRunner:
    """The engines of one slot, by instance id."""

    def __init__(
        self,
        node: NodeConfig,
        config: ExecutorConfig,
        fleet: PodFleet,
        placer: Placer,
        probes: ProbeSchedule,
        metrics: Metrics,
        settings: SlotSettings,
        engine_key: str = "",
    ) -> None:
        self._node = node
        self._config = config
        self._fleet = fleet
        self._placer = placer
        self._probes = probes
        self._metrics = metrics
        self._settings = settings
        self._engine_key = engine_key
        self.engines: dict[str, EnginePod] = {}
        self._failed_launch: dict[str, str] = {}
        self._attempts: dict[str, int] = {}
        self._gates: dict[str, DrainGate] = {}
        self._notice_since_s = 0.0

    @property
    def fault(self) -> str:
        """The reason why the local copy of the cluster may be old or incomplete, "" = it is
        current."""
        return self._fleet.fault

    @property
    def endpoints_vary(self) -> bool:
        """True: each pod has its own address."""
        return True

    @property
    def launch_basis(self) -> str:
        """See `EngineRunner`."""
        return self._placer.launch_basis

    @property
    def templates(self) -> Mapping[str, str]:
        """See `EngineRunner`."""
        return self._placer.templates(self._config.engines)

    def template_of(self, instance: str) -> str:
        """See `EngineRunner`."""
        engine = self.engines.get(instance)
        return engine.launch.template if engine is not None else ""

    def restore(self, state: NodeState) -> tuple[NodeState, int]:
        """`state` with the pods that an earlier executor left. A second pod of an instance, or of
        GPUs in use, is not adopted: Shoal deletes its own, and frees the other owner's."""
        records: dict[str, InstanceRecord] = {item.instance: item for item in state.instances}
        busy: set[int] = set()
        for engine in self._placer.adopt():
            desired = engine.launch.desired
            if desired.instance in self.engines or busy.intersection(desired.gpus):
                self._placer.release(engine, remove=False)
                continue
            busy.update(desired.gpus)
            self.engines[desired.instance] = engine
            self._attempts[desired.instance] = engine.launch.attempt + 1
            records[desired.instance] = self._adopted(engine)
        self._metrics.orphans.labels("adopted").inc(len(self.engines))
        return replace(state, instances=tuple(records.values())), len(self.engines)

    def save(self, state: NodeState) -> bool:
        """True: the pods hold the state, so nothing must be saved."""
        return True

    def observe(self, records: tuple[InstanceRecord, ...]) -> Mapping[str, ProcessObservation]:
        """See `EngineRunner`."""
        now_s = time.monotonic()
        return {
            item.instance: self._observe_one(item, now_s) for item in records if item.has_process
        }

    def node_released(self) -> None:
        """See `EngineRunner`."""
        self._attempts.clear()

    def blocked_gpus(self) -> set[int]:
        """See `EngineRunner`. Nothing starts before the pods are known."""
        every = set(range(self._node.gpus))
        if not self._fleet.pods.synced:
            return every
        held = self._placer.held_gpus(self.engines)
        return every if held is None else held

    def stop_ms(self, rules: Rules) -> dict[str, int]:
        """See `EngineRunner`."""
        speed = self._config.time_base.speed
        return {
            name: max(rules.kill_after_ms, int(1000 * (SHUTDOWN_TIMEOUT_S + kind.stop_s * speed)))
            for name, kind in self._config.engines.items()
        }

    def launch(
        self, command: Launch, now_ms: int, used_ports: set[int]
    ) -> tuple[str, tuple[int, ...]] | None:
        """See `EngineRunner`. The endpoint is known once the pod has an address."""
        desired = replace(command.desired, phase=command.phase)
        kind = self._config.engines.get(desired.engine)
        try:
            if desired.model not in self._config.models:
                raise InvalidValue("model", desired.model, "a model that is configured here")
            if kind is None:
                raise InvalidValue("engine", desired.engine, "an engine that is configured here")
            count = kind.ports + (desired.gang is not None and desired.gang.leads)
            ports = tuple(range(FIRST_PORT, FIRST_PORT + count))
            attempt = self._attempts.get(desired.instance, 0)
            launch = PodLaunch(desired, attempt, ports, now_ms)
            grace_s = math.ceil(SHUTDOWN_TIMEOUT_S + kind.stop_s)
            line = partial(launch_line, launch, kind, self._node, self._config, self._engine_key)
            engine = self._placer.start(launch, line, kind.image, grace_s)
        except ValueError as error:
            self._failed_launch[desired.instance] = str(error)
            return None
        self._attempts[desired.instance] = attempt + 1
        self.engines[desired.instance] = engine
        self._metrics.launches.labels(desired.engine).inc()
        log.info("%s: starting %s as a pod", self._node.node, desired.instance)
        return "", engine.launch.ports

    def rename_sleeper(self, command: Wake) -> None:
        """Does nothing: pods do not sleep."""

    def terminate(self, instance: str) -> None:
        """See `EngineRunner`."""
        engine = self.engines.get(instance)
        if engine is not None and not engine.stopping:
            kind = self._config.engines.get(engine.launch.desired.engine)
            grace_s = SHUTDOWN_TIMEOUT_S + (kind.stop_s if kind else 60.0)
            self._placer.stop(engine, math.ceil(grace_s))

    def kill(self, instance: str) -> None:
        """See `EngineRunner`."""
        engine = self.engines.get(instance)
        if engine is not None:
            self._placer.kill(engine)

    def start_probes(self, records: tuple[InstanceRecord, ...], now_ms: int, now_s: float) -> None:
        """See `EngineRunner`. Also brings the labels of the pods up to date."""
        for item in records:
            engine = self.engines.get(item.instance)
            if engine is None or not item.has_process:
                continue
            desired = replace(item.desired, phase=item.phase or item.desired.phase)
            if desired != engine.launch.desired:
                engine.launch = replace(engine.launch, desired=desired)
            marked = self._placer.mark(engine, item.state, engine.launch)
            self._follow_drain(item, marked)
            if item.ports:
                self._probes.start_probe(item, engine, now_ms, now_s)
        known = {item.instance for item in records}
        for instance in [i for i in self._failed_launch if i not in known]:
            del self._failed_launch[instance]

    def reclaim_left_s(self) -> float | None:
        """Seconds until the slot's node is reclaimed, None = no notice. Infinite: the node stays
        until its pods have left. Pods that the placer itself replaces need no notice."""
        stay = [engine for engine in self.engines.values() if not self._placer.moves(engine)]
        pods = [pod for engine in stay if (pod := self._fleet.pods.objects.get(engine.pod))]
        found = (notice_s(pod, self._fleet.node_of(pod)) for pod in pods)
        least_s = min((one for one in found if one is not None), default=None)
        if least_s is None or math.isinf(least_s):
            self._notice_since_s = 0.0
            return least_s
        now_s = time.monotonic()
        self._notice_since_s = self._notice_since_s or now_s
        return max(0.0, least_s - (now_s - self._notice_since_s))

    async def close(self) -> None:
        """See `EngineRunner`."""
        await self._probes.close()

    def terminate_all(self) -> None:
        """Do nothing, because pods outlive their executor."""

    def kill_all(self) -> None:
        """Do nothing, because pods outlive their executor."""

    def count_alive(self) -> int:
        """0: pods outlive their executor, so it need not wait for them."""
        return 0

    # -- inside -------------------------------------------------------------------------------

    def _observe_one(self, item: InstanceRecord, now_s: float) -> ProcessObservation:
        engine = self.engines.get(item.instance)
        if engine is None:
            why = self._failed_launch.pop(item.instance, "its pod is gone")
            self._metrics.failed_launches.labels(item.desired.engine).inc()
            return ProcessObservation(alive=False, end_reason=why)
        pod = self._fleet.pods.objects.get(engine.pod)
        ready = item.state is InstanceState.READY
        if ready and _leaves(engine, pod) and self._placer.hand_over(engine):
            pod = self._fleet.pods.objects.get(engine.pod)
        fault = self._settings.supply_fault(pod) if pod is not None and pod.unschedulable else ""
        end = end_of(engine, pod, now_s, self._settings.node_wait_s, fault)
        if end is not None:
            if end.code:
                self._tell(engine, pod, Wait(LaunchCode(end.code), end.reason))
            self._placer.release(engine, end.remove)
            del self.engines[item.instance]
            self._gates.pop(item.instance, None)
            self._probes.forget(item.instance)
            if not item.was_ready:
                self._metrics.failed_launches.labels(item.desired.engine).inc()
            full = end.pool_fails or (end.node_full and not self._is_bound(engine))
            return ProcessObservation(
                alive=False, end_reason=end.reason, hopeless=end.hopeless, pool_full=full,
                code=end.code,
            )  # fmt: skip
        waiting, code = self._wait(item, engine, pod, now_s)
        gang = item.desired.gang
        serves_http = gang is None or gang.leads
        address = pod.ip if pod is not None and serves_http else ""
        endpoint = _endpoint(address, item.ports) if address else ""
        if endpoint and item.endpoint and endpoint != item.endpoint:
            self._moved(item.instance)
        answer = self._probes.take_result(item.instance, engine)
        if answer is None:
            return ProcessObservation(alive=True, endpoint=endpoint, waiting=waiting, code=code)
        answered, at_ms = answer
        load = answered.load
        in_flight = load.in_flight if load else None
        gate = self._gates.get(item.instance)
        if gate is not None and load is not None:
            held = load.in_flight + load.held_kv
            if not gate.is_idle(held, self._settings.route_lag_s, now_s) and not held:
                in_flight = None  # unknown: requests may still follow
        return ProcessObservation(
            alive=True,
            healthy=answered.healthy and (serves_http or _runs(pod)),
            in_flight=in_flight,
            held_kv=load.held_kv if load else 0,
            finished=load.finished if load else 0,
            probed_ms=at_ms,
            endpoint=endpoint,
            start=with_blocks(item.start, load),
            waiting=waiting,
            code=code,
        )

    def _wait(
        self, item: InstanceRecord, engine: EnginePod, pod: PodView | None, now_s: float
    ) -> tuple[str, str]:
        """The reason why a starting instance waits, and its code; ("", "") = it does not wait."""
        wait = wait_of(engine, pod, now_s) if item.state is InstanceState.STARTING else None
        if wait is None:
            return "", ""
        self._tell(engine, pod, wait)
        return wait.text, wait.code

    def _tell(self, engine: EnginePod, pod: PodView | None, wait: Wait) -> None:
        """Write a Warning on the pod of `engine`, once for each code."""
        if engine.pod and wait.code not in engine.told:
            engine.told.add(wait.code)
            about = (POD, engine.pod, pod.uid if pod is not None else "")
            self._fleet.spawn(write_event(self._fleet.api, about, wait.code, wait.text))

    def _is_bound(self, engine: EnginePod) -> bool:
        """Whether other pods bind the slot to a node, so that a lack of room concerns this node."""
        others = self._fleet.in_slot(self._node.node, managed=True) if self._settings.binds else ()
        return any(pod.node and not pod.over and pod.name != engine.pod for pod in others)

    def _moved(self, instance: str) -> None:
        """Note that the engine is now another pod: probe results of the old pod are void, and
        routers must learn the new address first."""
        self._probes.forget(instance)
        if instance in self._gates:
            self._gates[instance] = DrainGate(extra_lag_s=MOVED_LAG_S)

    def _follow_drain(self, item: InstanceRecord, marked: bool) -> None:
        if item.state not in _DRAINS:
            self._gates.pop(item.instance, None)
            return
        gate = self._gates.setdefault(item.instance, DrainGate())
        if marked and not gate.unrouted_s:
            gate.unrouted_s = time.monotonic()

    def _adopted(self, engine: EnginePod) -> InstanceRecord:
        """The record of an adopted engine. The pod's labels tell whether it has served, because a
        pod that may have requests must not count as never started."""
        launch = engine.launch
        now_ms = self._config.time_base.now_ms(time.monotonic_ns())
        pod = self._fleet.pods.objects.get(engine.pod)
        label = pod.labels.get(names.SERVING, "false") if pod else "false"
        gang = launch.desired.gang
        served = label != "false" or (pod is not None and pod.ready)
        address = _endpoint(pod.ip, launch.ports) if pod is not None and pod.ip else ""
        return InstanceRecord(
            desired=launch.desired,
            state=InstanceState.DRAINING if label == "draining" else InstanceState.STARTING,
            since_ms=now_ms,  # an old engine has time to answer the first probe
            phase=launch.desired.phase,
            has_process=True,
            was_ready=served,
            endpoint=address if gang is None or gang.leads else "",
            ports=launch.ports,
            launched_ms=launch.launched_ms,
            restarts=launch.attempt,
            # The drain's deadline counts from the adoption, because the begin of the drain is
            # unknown.
            drain_ms=now_ms if label == "draining" else 0,
        )


def reach_pod(engine_key: str) -> Reach:
    """How probes reach engines in pods. engine_key: the API key of this fleet's engines, "" =
    none."""

    def reach(item: InstanceRecord, _: object) -> tuple[str, str] | None:
        return (item.endpoint, engine_key) if item.endpoint else None

    return reach


def _leaves(engine: EnginePod, pod: PodView | None) -> bool:
    """Whether another client deletes the pod of an engine, or deleted it."""
    return engine.created and not engine.stopping and (pod is None or pod.terminating)


def _endpoint(ip: str, ports: tuple[int, ...]) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}:{ports[0]}" if ports else ""


def _runs(pod: PodView | None) -> bool:
    """Whether a container of the pod runs. Ranks above 0 answer no probe."""
    return pod is not None and (pod.started or pod.ready)
