"""Finds models that fit into no slice of their pools, from declared facts alone.

Demand, fleet and rates do not matter: such a model can never start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.performance.catalog import gpu, quantized
from autoscaler.performance.memory import adapter_bytes, cache_of, kv_capacity_tokens, usable_gb
from autoscaler.planning.candidate_combos import usable_pools
from autoscaler.templates.engine_filter import VLLM
from topics.reason_codes import ReasonCode

_LEAST_TOKENS = 16
FP8 = "fp8"
_USUAL_GPUS = ("L40S", "H100", "H200", "B200")
"""GPU types that the error suggests for a model that fits nowhere, smallest memory first."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A model, and the slice that comes nearest to holding it.

    where, slice: the pool and its slice; None if the model may use no pool, or if no engine can
    split it over any slice. refused: a slice with enough memory over whose GPUs no engine can split
    the model, with the reason; "" if there is none. weights_gb, kv_gb: memory in 1e9 bytes for the
    weights, and for KV cache and state of one request of max_len tokens. usable_gb: memory in 1e9
    bytes that the slice has for both. longest_tokens: the largest max_len that would fit there, 0
    if the weights alone do not fit. would_do: other changes with which the model would fit.
    """

    model: str
    max_len_tokens: int
    where: str | None = None
    slice: NodeSlice | None = None
    weights_gb: float = 0.0
    kv_gb: float = 0.0
    usable_gb: float = 0.0
    longest_tokens: int = 0
    pools: int = 0
    would_do: tuple[str, ...] = ()
    refused: str = ""

    def reason(self) -> Reason:
        """The reason why the model fits nowhere."""
        if not self.pools:
            return Reason(ReasonCode.NO_POOL, self.model)
        if self.slice is None or self.where is None:
            return Reason(ReasonCode.SPLITS_NOWHERE, self.model, quoted=self.refused)
        tokens = self.max_len_tokens, self.usable_gb, self.longest_tokens
        figures = self.weights_gb, self.kv_gb, *tokens
        names = self.where, self.slice.name, *self.would_do
        return Reason(ReasonCode.TOO_LARGE, self.model, names, figures, self.refused)


def misfits(cluster: Cluster) -> tuple[Misfit, ...]:
    """The models of `cluster` that fit no slice that they may use, in the order of declaration.

    Models whose engine may join nodes are not checked, because the planner decides where they fit.
    Models of components are not checked either: their declared rates imply that they fit.
    """
    single = (s for s in cluster.services if s.pipelines == "none" and s.graph is None)
    found = (misfit(cluster, service) for service in single)
    return tuple(one for one in found if one is not None)


def misfit(cluster: Cluster, service: Service) -> Misfit | None:
    """For `service`, the slice of one node that comes nearest to holding the model, among those
    that it may use; None if the model fits."""
    spec = service.architecture
    longest = min(service.max_len_tokens, spec.max_position)
    pools = len(usable_pools(cluster, service))
    best: tuple[tuple[float, float], str, NodeSlice] | None = None
    refused, first = "", ""
    for pool, node in _all_slices(cluster, service):
        if why := VLLM.refusal(spec, node):
            why = f"{node.name} of {pool} cannot share it: {why}"
            first = first or why
            if kv_capacity_tokens(spec, node.gpu, node.gpus) >= longest:
                refused = refused or why
            continue
        tokens = kv_capacity_tokens(spec, node.gpu, node.gpus)
        if tokens >= longest:
            return None
        rank = tokens, usable_gb(spec, node.gpu, node.gpus)
        if best is None or rank > best[0]:
            best = rank, pool, node
    if best is None:
        return Misfit(service.model, longest, pools=pools, refused=first)
    (tokens, usable), where, node = best
    cache = cache_of(spec, node.gpu, node.gpus)
    blocks = cache.sequence_blocks(longest, cache.in_flight)
    return Misfit(
        model=service.model,
        max_len_tokens=longest,
        where=where,
        slice=node,
        weights_gb=(spec.weight_bytes + adapter_bytes(spec, node.gpus)) / 1e9,
        kv_gb=blocks * cache.block_bytes * node.gpus / 1e9,
        usable_gb=usable,
        longest_tokens=int(tokens) if tokens >= _LEAST_TOKENS else 0,
        pools=pools,
        would_do=_would_do(cluster, service, longest),
        refused=refused,
    )


def _would_do(cluster: Cluster, service: Service, longest: int) -> tuple[str, ...]:
    """Changes with which the model would fit: FP8 weights, and the smallest usual number of GPUs of
    one node that holds it."""
    spec = service.architecture
    found = []
    if spec.weight_dtype == "bf16":
        small = quantized(spec, "fp8")
        slices = _all_slices(cluster, service)
        nodes = (node for _, node in slices if VLLM.runs(small, node))
        held = (kv_capacity_tokens(small, node.gpu, node.gpus) for node in nodes)
        if max(held, default=0.0) >= longest:
            found.append(FP8)
    for name in _USUAL_GPUS:
        for gpus in SLICE_SIZES:
            node = NodeSlice(gpu(name), gpus)
            if VLLM.runs(spec, node) and kv_capacity_tokens(spec, node.gpu, gpus) >= longest:
                return (*found, f"{gpus}x{name}")
    return tuple(found)


def _all_slices(cluster: Cluster, service: Service) -> Iterator[tuple[str, NodeSlice]]:
    """(region/pool, slice) of every slice, including those over which the model cannot be split."""
    for pool in usable_pools(cluster, service):
        for gpus in SLICE_SIZES:
            node = NodeSlice(pool.gpu, gpus)
            if gpus <= pool.largest_slice:
                yield f"{pool.region}/{pool.name}", node
