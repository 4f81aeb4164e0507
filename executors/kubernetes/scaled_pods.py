"""`Placer` of one slot in mode `scale`: engines are pods of workloads with another owner. Shoal
writes only labels and annotations of these pods, and the replicas of their workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from executors.engines.engine_protocol import LaunchLine
from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.group_ranks import is_worker, nodes_of
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.leftover_labels import without_claim
from executors.kubernetes.own_pods import serving_label
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_template import PodLaunch, dump_launch, read_launch
from executors.kubernetes.pod_view import PodView, metadata_change
from executors.kubernetes.scale_target import deletion_cost
from executors.kubernetes.workload_scaler import WorkloadScaler
from topics.checks import InvalidValue
from topics.fleet import InstanceState, LaunchCode

OWNERS_TEMPLATE = "workload"
"""Template of all launches in mode `scale`, because the owner's workload has the real one."""


class ScaledPods:
    """The pods of one slot."""

    def __init__(self, slot: str, pool: str, fleet: PodFleet, scaler: WorkloadScaler) -> None:
        self._slot = slot
        self._pool = pool
        self._fleet = fleet
        self._scaler = scaler
        self._marking: set[str] = set()
        self._draining: set[EnginePod] = set()

    @property
    def launch_basis(self) -> str:
        """See `Placer`. Derived from the pool's workloads."""
        return self._scaler.workloads.launch_basis(self._pool)

    def templates(self, engines: Iterable[str]) -> dict[str, str]:
        """See `Placer`. The owner's workload rolls out its own template."""
        return dict.fromkeys(engines, OWNERS_TEMPLATE)

    def adopt(self) -> list[EnginePod]:
        """See `Placer`."""
        found = []
        for pod in self._fleet.in_slot(self._slot, managed=False):
            launch = read_launch(pod.annotations)
            if pod.over or pod.terminating:
                continue
            engine = _adopted(launch, pod) if launch is not None else None
            if engine is not None and self._scaler.adopt(engine, pod):
                found.append(engine)
            elif (
                self._scaler.workloads.complete
            ):  # its workload left mode `scale`, or never owned it
                self._free(pod)
        return found

    def start(
        self, launch: PodLaunch, line: Callable[[], LaunchLine], image: str, grace_s: int
    ) -> EnginePod:
        """See `Placer`. The command line is ignored, because the owner sets it."""
        desired = launch.desired
        workload = self._scaler.workloads.find(desired.model, desired.phase, self._pool)
        if workload is None:
            allowed = (
                f'a workload with {names.MANAGED}: "true", {names.MODEL}: {desired.model}, '
                f"{names.ROLE}: {desired.phase} and {names.POOL}: {self._pool}"
            )
            raise InvalidValue("workload", "none", allowed)
        if workload.gpus and workload.gpus != len(desired.gpus):
            gpus = f"{len(desired.gpus)} GPUs"
            raise InvalidValue(workload.title, gpus, f"{workload.gpus}, as in its pod template")
        size, asked = workload.size, nodes_of(desired)
        if size != asked:
            raise InvalidValue(workload.title, f"{asked} nodes", f"{size}, as one of its replicas")
        engine = EnginePod(replace(launch, ports=(workload.port,), template=OWNERS_TEMPLATE))
        refusal = self._scaler.refusal(workload)
        if refusal:
            engine.fail(LaunchCode.NOT_SCALED, refusal)
            return engine
        self._scaler.claim(workload, engine)
        return engine

    def stop(self, engine: EnginePod, grace_s: int) -> None:
        """See `Placer`. The grace period is that of the pod template."""
        self._scaler.stop(engine)

    def kill(self, engine: EnginePod) -> None:
        """See `Placer`. Shoal may not delete pods, so the workload shrinks instead."""
        self._scaler.stop(engine)

    def hand_over(self, engine: EnginePod) -> bool:
        """See `Placer`. The workload rolls out a new template, or moves its pods."""
        return self._scaler.hand_over(engine)

    def moves(self, engine: EnginePod) -> bool:
        """See `Placer`."""
        return self._scaler.moves(engine)

    def release(self, engine: EnginePod, remove: bool) -> None:
        """See `Placer`. A pod that stays loses its claim and serves again."""
        self._scaler.release(engine)
        self._draining.discard(engine)
        pod = self._fleet.pods.objects.get(engine.pod)
        if pod is not None and not pod.terminating:
            self._free(pod)

    def mark(self, engine: EnginePod, state: InstanceState, launch: PodLaunch) -> bool:
        """See `Placer`. A pod leaves the routes only for a drain, so a claimed pod continues to
        serve."""
        if state is InstanceState.DRAINING and engine not in self._draining:
            self._draining.add(engine)
            self._scaler.swap_ordinals(engine)
        elif state is not InstanceState.DRAINING and state is not InstanceState.STOPPING:
            self._draining.discard(engine)
        pod = self._fleet.pods.objects.get(engine.pod)
        if pod is None:
            return False
        drains = serving_label(state) == "draining"
        labels: dict[str, str | None] = {names.SLOT: names.label_value(self._slot)}
        # Requests go to rank 0 alone.
        if not is_worker(engine) and (drains or state is InstanceState.READY):
            labels[names.SERVING] = serving_label(state)
            labels[names.ROLE] = launch.desired.phase
        notes: dict[str, str | None] = {
            names.LAUNCH: dump_launch(launch),
            names.DELETION_COST: deletion_cost(state),
        }
        change = metadata_change(pod, labels, notes)
        if not change:
            return True
        if engine.pod not in self._marking:
            self._marking.add(engine.pod)
            self._fleet.spawn(self._patch(engine.pod, change))
        return False

    def held_gpus(self, known: Mapping[str, EnginePod]) -> set[int] | None:
        """See `Placer`. Empty, because a slot of this mode has no GPUs of its own."""
        return set()

    # -- inside -------------------------------------------------------------------------------

    def _free(self, pod: PodView) -> None:
        self._fleet.spawn(self._fleet.mark_pod(pod.name, without_claim(pod.labels)))

    async def _patch(self, name: str, change: Manifest) -> None:
        try:
            await self._fleet.mark_pod(name, change)
        finally:
            self._marking.discard(name)


def _adopted(launch: PodLaunch, pod: PodView) -> EnginePod:
    return EnginePod(replace(launch, template=OWNERS_TEMPLATE), pod.name, created=True)
