"""Which libraries a declared cluster needs.

Owns the way from services and pools to `LibraryRequest`s. Knows nothing of prices or demand.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.templates.engines import VLLM, EngineCapabilities
from autoscaler.templates.request import LibraryRequest


def slices_for(cluster: Cluster, service: Service) -> tuple[NodeSlice, ...]:
    """Every slice of every pool that `service` may use, each once, in the order of the pools."""
    found: dict[str, NodeSlice] = {}
    for pool in cluster.pools:
        if service.regions and pool.region not in service.regions:
            continue
        for gpus in SLICE_SIZES:
            if gpus <= pool.per_node:
                node = NodeSlice(pool.gpu, gpus)
                found.setdefault(node.name, node)
    return tuple(found.values())


def requests_for(
    cluster: Cluster, profile_hash: str, engine: EngineCapabilities = VLLM
) -> tuple[LibraryRequest, ...]:
    """The libraries of all services: every phase that `engine` can run.

    Aggregated instances are single-node ones, so an engine with pipelines gets two phases only.
    A service without a pool in its regions gets none.
    """
    phases = tuple(Phase) if engine.single_node else (Phase.PREFILL, Phase.DECODE)
    return tuple(
        LibraryRequest(
            service.architecture,
            phase,
            service.slo,
            service.lengths,
            configs,
            engine,
            profile_hash,
            utilisation=min(service.utilization, 0.999),
        )
        for service in cluster.services
        if (configs := slices_for(cluster, service))
        for phase in phases
    )
