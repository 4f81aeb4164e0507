"""Explains plans of models of components: saturated deployments, and pools that cannot serve."""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.explain.explanation import Rejected
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.planning.candidate_combos import usable_pools
from autoscaler.planning.planning_problem import PlanningProblem


def saturation(combo: Combo, graph: ComponentGraph, pools: Iterable[Pool]) -> list[str]:
    """The limits of the cell `combo`: its deployments that are busy all the time; empty if none
    is."""
    full = saturated_deployments(combo, graph, pools)
    return [f"saturated: {', '.join(full)}"] if full else []


def saturated_deployments(
    combo: Combo, graph: ComponentGraph, pools: Iterable[Pool]
) -> tuple[str, ...]:
    """The deployments of the cell `combo` that are busy all the time at the cell's full rate."""
    of = {pool.id: pool for pool in pools}
    busy: dict[tuple[str, str], float] = {}
    for path in combo.paths:
        for hop in path.hops:
            seconds = graph.seconds(of[hop.pool].gpu.name)[hop.deployment, frozenset(hop.runs)]
            key = hop.deployment, hop.pool
            busy[key] = busy.get(key, 0.0) + path.req_per_s * seconds
    return tuple(
        f"{member.deployment} on {of[member.pool].name}"
        for member in combo.members
        if busy.get((member.deployment, member.pool), 0.0) > member.count * 0.999
    )


def pools_without_deployments(
    problem: PlanningProblem, service: Service, graph: ComponentGraph
) -> tuple[Rejected, ...]:
    """The pools with a GPU for which no deployment of `graph` declares a rate."""
    rated = {gpu for option in graph.deployments for gpu in option.req_per_s}
    pools = usable_pools(problem.cluster, service)
    names = {
        f"{pool.region}/{pool.name}": short_gpu_name(pool.gpu.name)
        for pool in pools
        if pool.gpu.name not in rated
    }
    return tuple(
        Rejected(f"{name} ({gpu})", "no deployment declares a rate on it")
        for name, gpu in names.items()
    )
