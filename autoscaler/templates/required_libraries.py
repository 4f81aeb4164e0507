"""Which libraries a declared cluster needs.

Owns the way from services and pools to `LibraryRequest`s. Knows nothing of prices or demand.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.templates.engine_filter import EngineCapabilities, PipelineNodes
from autoscaler.templates.library_request import LibraryRequest


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


def capabilities(service: Service) -> EngineCapabilities:
    """What the service's engine declares to run."""
    return EngineCapabilities(service.engine, PipelineNodes(service.pipelines))


def request_of(
    service: Service,
    phase: Phase,
    configs: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile_hash: str,
    engine: EngineCapabilities,
    stretch: float = 1.0,
) -> LibraryRequest:
    """The library of `service` for `lengths` on `configs`, with its SLO times `stretch`."""
    return LibraryRequest(
        service.architecture,
        phase,
        Slo(service.slo.ttft_ms * stretch, service.slo.tpot_ms * stretch),
        lengths,
        configs,
        engine,
        profile_hash,
        utilisation=min(service.utilization, 0.999),
    )


def requests_for(
    cluster: Cluster, profile_hash: str, engine: EngineCapabilities | None = None
) -> tuple[LibraryRequest, ...]:
    """The libraries of all services at their declared lengths: every phase that `engine` can run.

    engine: what each service declares, where left out. Aggregated instances are single-node ones,
    so an engine with pipelines gets two phases only. A service without a pool in its regions gets
    none.
    """
    return tuple(
        request_of(service, phase, configs, service.lengths, profile_hash, runs)
        for service in cluster.services
        if (configs := slices_for(cluster, service))
        for runs in (engine or capabilities(service),)
        for phase in Phase
        if runs.single_node or phase is not Phase.AGGREGATED
    )
