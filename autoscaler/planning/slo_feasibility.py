"""Finds SLOs that no hardware of a cluster meets, and the lowest possible latencies. Every slice is
checked with a single request, so demand and prices do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.profile import Profile
from autoscaler.performance.throughput import unloaded_latency
from autoscaler.planning.candidate_combos import usable_pools
from autoscaler.planning.instances import served_spec
from autoscaler.templates.engine_filter import VLLM
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class UnattainableSlo:
    """A model's SLO, and the lowest possible latencies, at least one of which exceeds it.

    ttft_ms, tpot_ms: the minimum of each latency over all slices, at the declared percentile.
    ttft_on, tpot_on: names of the slices with these minima.
    """

    slo: Slo
    ttft_ms: float
    ttft_on: str
    tpot_ms: float
    tpot_on: str

    def reason(self, model: str) -> Reason:
        """The reason that `model` cannot meet its SLO."""
        times_ms = self.slo.ttft_ms, self.ttft_ms, self.slo.tpot_ms, self.tpot_ms
        where = self.ttft_on, self.tpot_on
        return Reason(ReasonCode.SLO_OUT_OF_REACH, model, where, times_ms)


def unattainable_slo(
    cluster: Cluster, service: Service, lengths: Lengths, profile: Profile
) -> UnattainableSlo | None:
    """The lowest latencies that are possible for `service`, with its SLO; None if no slice of one
    node can hold the model."""
    if service.graph is not None:
        return None
    spec = served_spec(service)
    longest = spec.max_position
    first: tuple[float, str] | None = None
    later: tuple[float, str] | None = None
    for pool in usable_pools(cluster, service):
        for gpus in SLICE_SIZES:
            node = NodeSlice(pool.gpu, gpus)
            if gpus > pool.largest_slice or not VLLM.runs(spec, node):
                continue
            if kv_capacity_tokens(spec, node.gpu, gpus) < longest:
                continue
            ttft_ms, tpot_ms = unloaded_latency(spec, node, lengths, profile, service.percentile)
            name = short_gpu_name(pool.gpu.name)
            name = name if gpus == 1 else f"{gpus}x{name}"
            first = min(first or (ttft_ms, name), (ttft_ms, name))
            later = min(later or (tpot_ms, name), (tpot_ms, name))
    if first is None or later is None:
        return None
    return UnattainableSlo(service.slo, *first, *later)
