"""Reasons why a GPU type is not a candidate: memory, the SLO, the markets. Candidates that are only
more expensive are in `alternatives`.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.explain.explanation import Rejected
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import usable_pools
from autoscaler.planning.instances import LONGEST_REQUEST, NO_SPLIT, evaluate_instance
from autoscaler.planning.planning_problem import PlanningProblem, arrivals_of
from autoscaler.templates.engine_filter import VLLM


def impossible_pools(
    problem: PlanningProblem, service: Service, profile: Profile
) -> tuple[Rejected, ...]:
    """Pools that `service` may use but that have no slice that can serve it, each with the
    reason."""
    found: dict[str, Rejected] = {}
    for pool in usable_pools(problem.cluster, service):
        sizes = [size for size in SLICE_SIZES if size <= pool.largest_slice]
        demand = problem.demands[service.model]
        arrivals = arrivals_of(demand, service)
        made = [
            evaluate_instance(
                service, NodeSlice(pool.gpu, size), phase, demand.lengths, profile, 1.0, arrivals
            )
            for size in sizes
            for phase in Phase
        ]
        if any(one.req_per_s > 0.0 for one in made):
            continue
        spec = service.architecture
        room = pool.gpu.mem_gb * pool.per_node
        weights = spec.weight_bytes / 1e9
        limits = {one.bound_by for one in made}
        if weights > 0.9 * room:
            why = f"{weights:.0f} GB weights, {room:.0f} GB on a node"
        elif limits <= {LONGEST_REQUEST, NO_SPLIT}:
            why = f"no room for a request of {service.max_len_tokens} tokens"
            tried = [size for size in sizes if spec.room(pool.gpu.name, size) is not None]
            why += " (measured at a start)" if tried else ""
            refusals = (VLLM.refusal(spec, NodeSlice(pool.gpu, size)) for size in reversed(sizes))
            split = next((one for one in refusals if one), "")
            why = f"{why}, or no split: {split}" if split else why
        else:
            why = f"TPOT above {service.slo.tpot_ms:g} ms or TTFT above {service.slo.ttft_ms:g} ms"
        where = f"{pool.region}/{pool.name}"
        found.setdefault(where, Rejected(f"{where} ({short_gpu_name(pool.gpu.name)})", why))
    return tuple(found.values())
