"""What binds a model of components: the deployments of its cells that are busy all the time.

Owns these reasons. Costs and alternatives are the same as of any other model.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.components import ComponentGraph
from autoscaler.explain.values import Rejected
from autoscaler.planning.component_cells import saturated


def binds(combo: Combo, service: Service, pools: Iterable[Pool]) -> tuple[str, ...]:
    """What keeps a cell from doing more; none where it is no cell."""
    if service.graph is None:
        return ()
    full = saturated(combo, service.graph, pools)
    return (f"saturated: {', '.join(full)}",) if full else ()


def without_deployments(graph: ComponentGraph, pools: Iterable[Pool]) -> tuple[Rejected, ...]:
    """Pools whose GPU no deployment has a rate for."""
    rated = {gpu for option in graph.deployments for gpu in option.req_per_s}
    names = {pool.name: pool.gpu.name for pool in pools if pool.gpu.name not in rated}
    return tuple(
        Rejected(f"{name} ({gpu})", "no deployment declares a rate on it")
        for name, gpu in names.items()
    )
