"""The workers of all slots of one executor, and the loops that they share."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import aiohttp

from executors.engines.engine_protocol import Contact
from executors.kubernetes import kube_names as names
from executors.kubernetes.claim_places import align_claims
from executors.kubernetes.controller_status import ControllerStatus
from executors.kubernetes.kube_client import KubeApi
from executors.kubernetes.kube_kinds import NODE_CLAIM
from executors.kubernetes.kubernetes_config import KubePool, KubernetesConfig, PoolMode
from executors.kubernetes.mode_change import EitherMode
from executors.kubernetes.model_objects import ModelObjects
from executors.kubernetes.node_claims import NodeClaimView, parse_claim, supply_fault
from executors.kubernetes.object_cache import ObjectCache
from executors.kubernetes.own_pods import OwnPods, Placer
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_runner import PodRunner, SlotSettings, reach_pod
from executors.kubernetes.pod_template import PodSettings
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scaled_pods import ScaledPods
from executors.kubernetes.template_folder import TemplateFolder
from executors.kubernetes.workload_scaler import WorkloadScaler
from executors.kubernetes.workload_view import WorkloadView
from executors.node.engine_probes import ProbeTimeouts
from executors.node.executor_config import NodeConfig
from executors.node.executor_metrics import Metrics
from executors.node.node_lock import NodeLock
from executors.node.node_worker import NodeWorker, Publish, rules_for
from executors.node.probe_schedule import ProbeSchedule
from topics.keys import Keys

log = logging.getLogger(__name__)

_NOTICE_EVERY_S = 1.0
_SYNC_EVERY_S = 0.1
_LOAD_LIMIT_S = 5.0


class SlotWorkers:
    """Builds and owns one worker per slot. workers, runners: by slot."""

    def __init__(
        self,
        config: KubernetesConfig,
        keys: Keys,
        api: KubeApi,
        client: aiohttp.ClientSession,
        metrics: Metrics,
        timeouts: ProbeTimeouts,
    ) -> None:
        self._config = config
        self._keys = keys
        self._client = client
        self._metrics = metrics
        self._timeouts = timeouts
        scales = any(pool.mode is PoolMode.SCALE for pool in config.pools.values())
        self.fleet = PodFleet(api, "" if scales else names.SLOT, config.read_nodes)
        self.scaler = WorkloadScaler(
            self.fleet, config.scale_kinds, self._load_of, config.route_lag_s, self._node_wait_s
        )
        self._claims: ObjectCache[NodeClaimView] = ObjectCache(api, NODE_CLAIM, parse_claim)
        self._templates = TemplateFolder(config.templates)
        self.runners: dict[str, PodRunner] = {}
        self.workers: dict[str, NodeWorker] = {}

    def build(self, publish: Publish, boot: str, place: str, load_feed: str) -> None:
        """Make the workers. boot, place: see `Status`."""
        executor = self._config.executor
        rules = rules_for(executor, standby=False)
        for node in executor.nodes:
            pool = self._config.pools[node.pool]
            probes = ProbeSchedule(
                executor.engines, self._client, reach_pod(self._keys.engine), self._timeouts
            )
            runner = PodRunner(
                node, executor, self.fleet, self._placer(node, pool), probes, self._metrics,
                self._settings(pool), self._keys.engine,
            )  # fmt: skip
            lock = NodeLock(node.node, boot, place, executor.time_base.speed)
            self.runners[node.node] = runner
            self.workers[node.node] = NodeWorker(
                node, executor, runner, lock, self._metrics, publish, rules, load_feed
            )

    def start(self) -> None:
        """Begin to follow the cluster."""
        self.fleet.start()
        self.scaler.start()
        waits = any(pool.node_wait_s for pool in self._config.pools.values())
        if waits and self._config.read_nodes:
            self.fleet.follow(self._claims)

    async def wait_synced(self, end: asyncio.Event) -> bool:
        """Wait until all pods are known; False if `end` is set first."""
        while not (self.fleet.pods.synced and self.scaler.workloads.synced):
            if end.is_set():
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(end.wait(), _SYNC_EVERY_S)
        return True

    def show_models(self) -> None:
        """Keep a ShoalModel for each model, if the configuration says so."""
        pools, executor = self._config.pools, self._config.executor
        if self._config.models_from:
            reports = ControllerStatus(self._config.models_from, self._client)
            made = {
                names.label_value(node.node)
                for node in executor.nodes
                if pools[node.pool].mode is PoolMode.PODS
            }
            objects = ModelObjects(self.fleet, reports, executor.executor, made)
            self.fleet.spawn(objects.run())

    async def align(self) -> None:
        """Prepare pods that mode `scale` claimed for mode `pods`. Call before they are adopted."""
        pools, nodes = self._config.pools, self._config.executor.nodes
        made = [node.node for node in nodes if pools[node.pool].mode is PoolMode.PODS]
        await align_claims(self.fleet, made)

    async def watch_notices(self) -> None:
        """Pass reclaim notices to the workers until cancelled."""
        while True:
            for slot, runner in self.runners.items():
                self.workers[slot].on_reclaim_notice(runner.reclaim_left_s())
            await asyncio.sleep(_NOTICE_EVERY_S)

    async def close(self) -> None:
        """Stop following. Pods keep running."""
        await self.fleet.close()

    # -- inside -------------------------------------------------------------------------------

    async def _load_of(self, workload: WorkloadView, pod: PodView) -> int | None:
        """The requests in flight on a pod that is not in the plan."""
        kind = next(iter(self._config.executor.engines.values()), None)
        if kind is None or not pod.ip:
            return None
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        contact = Contact(self._client, f"{host}:{workload.port}", workload.model)
        try:
            # wait_for may return although this task is cancelled.
            async with asyncio.timeout(_LOAD_LIMIT_S):
                load = await kind.load(contact)
        except TimeoutError:
            return None
        return load.in_flight + load.held_kv if load else None

    def _node_wait_s(self, pool: str) -> float:
        """The time for which a pod waits for a node of `pool`, or of one of its markets."""
        waits = (
            one.node_wait_s
            for name, one in self._config.pools.items()
            if pool in (name, name.rpartition("/")[0])
        )
        return max(waits, default=0.0)

    def _settings(self, pool: KubePool) -> SlotSettings:
        def fault(_: PodView) -> str:
            return supply_fault(self._claims.objects.values(), pool.nodes)

        binds = pool.mode is PoolMode.PODS
        return SlotSettings(pool.node_wait_s, self._config.route_lag_s, binds, fault)

    def _placer(self, node: NodeConfig, pool: KubePool) -> Placer:
        settings = PodSettings(
            node.pool, pool.nodes, pool.gpu_resource, self._config.key_secret, pool.queue
        )
        made = OwnPods(node.node, self.fleet, self._templates, settings)
        scaled = ScaledPods(node.node, node.pool, self.fleet, self.scaler)
        if pool.mode is PoolMode.SCALE:
            return EitherMode(present=scaled, former=made)
        return EitherMode(present=made, former=scaled)
