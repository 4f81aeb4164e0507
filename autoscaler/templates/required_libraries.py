"""Makes the `LibraryRequest`s that a declared cluster needs, from its services and pools."""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.templates.engine_filter import EngineCapabilities, PipelineNodes
from autoscaler.templates.library_request import LibraryRequest


def usable_slices(cluster: Cluster, service: Service) -> tuple[NodeSlice, ...]:
    """The distinct slices of all pools that `service` may use, in the order of the pools."""
    found: dict[str, NodeSlice] = {}
    for pool in cluster.pools:
        if service.regions and pool.region not in service.regions:
            continue
        for gpus in SLICE_SIZES:
            if gpus <= pool.largest_slice:
                node = NodeSlice(pool.gpu, gpus)
                found.setdefault(node.name, node)
    return tuple(found.values())


def capabilities(service: Service) -> EngineCapabilities:
    """The templates that the service's engine can run, as declared."""
    return EngineCapabilities(service.engine, PipelineNodes(service.pipelines))


def service_library_request(
    service: Service,
    phase: Phase,
    configs: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile_hash: str,
    engine: EngineCapabilities,
    stretch: float = 1.0,
) -> LibraryRequest:
    """The request for the library of `service` at `lengths` on `configs`, with the SLO multiplied
    by `stretch`."""
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


def required_library_requests(
    cluster: Cluster, profile_hash: str, engine: EngineCapabilities | None = None
) -> tuple[LibraryRequest, ...]:
    """The requests for the libraries of all services at their declared lengths, for every phase
    that `engine` can run.

    engine: if left out, the declared engine of each service. Aggregated instances use a single
    node, so an engine with pipelines gets the other two phases only. A service without a pool in
    its regions gets no library.
    """
    return tuple(
        service_library_request(service, phase, configs, service.lengths, profile_hash, runs)
        for service in cluster.services
        if (configs := usable_slices(cluster, service))
        for runs in (engine or capabilities(service),)
        for phase in Phase
        if runs.single_node or phase is not Phase.AGGREGATED
    )
