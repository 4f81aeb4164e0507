"""Engine setups of desired instances, each computed once per simulation."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Pool
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.network import link_gb_s
from autoscaler.serving.engine_setup import EngineSetup, setup_on
from autoscaler.simulation.component_stage import AnySetup, stage_setup
from topics.fleet import DesiredInstance


class EngineSetups:
    """Computes setups and caches them by architecture, slices, phase and length."""

    def __init__(self) -> None:
        self._setups: dict[tuple[object, ...], EngineSetup] = {}

    def setup(self, cluster: Cluster, pool: Pool, desired: DesiredInstance) -> AnySetup:
        """The engine for `desired` on a node of `pool`. Raises InvalidValue if it cannot run
        there."""
        service = cluster.service(desired.model)
        if service.graph is not None:
            return stage_setup(service.graph, service, pool, desired)
        spec = service.architecture
        longest = min(service.max_len_tokens, spec.max_position)
        place: NodeSlice | PipelineSlices = NodeSlice(pool.gpu, len(desired.gpus))
        if desired.gang is not None:
            gpus = {pool.gpu.name: pool.gpu for pool in cluster.pools}
            stages = ((NodeSlice(gpus[s.gpu], s.gpus), s.layers) for s in desired.gang.stages)
            place = PipelineSlices(tuple(stages), longest)
        over_gb_s = link_gb_s(pool, pool)
        key = spec, place, desired.phase, longest, over_gb_s
        found = self._setups.get(key)
        if found is None:
            profile = cluster_profile(cluster)
            found = setup_on(spec, place, Phase(desired.phase), longest, profile)
            found = self._setups[key] = replace(found, kv_gb_s=over_gb_s)
        return found
