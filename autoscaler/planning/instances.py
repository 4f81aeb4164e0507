"""One single-node instance of a service as a building block of combos and plans.

Owns the bridge from the performance model to planning: the rate within the SLO, or 0 where a
request of maximal length would not fit. Knows no pools and no prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from autoscaler.domain.cluster import Service
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import POISSON_ARRIVALS, Arrivals, Lengths, Phase, Slo
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S
from autoscaler.performance.intervals import planned_share
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.profile import Profile
from autoscaler.performance.startup import startup_s
from autoscaler.performance.throughput import InstanceRate, instance_throughput, max_req_per_s
from autoscaler.templates.engine_filter import VLLM

_CV_STEP = 1.125
_LEAST_CV = 0.4  # several gateways, each with a round of its own, smooth less than one
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance: what it sustains (req_per_s 0 = impossible) and how long it takes to start."""

    phase: Phase
    slice: NodeSlice
    req_per_s: float
    ttft_ms: float
    tpot_ms: float
    start_s: float
    uncertain: bool
    bound_by: str


NO_SPLIT, LONGEST_REQUEST = "no_split", "longest_request"
"""What bounds an instance that cannot exist: the engine does not split the model over so many GPUs,
or the longest request does not fit in memory."""


@lru_cache(maxsize=4096)
def instance(
    service: Service,
    node: NodeSlice,
    phase: Phase,
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> Instance:
    """What `service` does on `node` in `phase` at `lengths`, with its SLO times `stretch`.

    arrivals: of the model as a whole; the instance is to carry a share of them. link_gb_s: between
    prefill and decode instances.
    """
    spec = served(service)
    longest = spec.max_position
    slo = Slo(service.slo.ttft_ms * stretch, service.slo.tpot_ms * stretch)
    start = startup_s(spec, node)
    if not VLLM.runs(spec, node):
        return Instance(phase, node, 0.0, 0.0, 0.0, start, False, NO_SPLIT)
    if kv_capacity_tokens(spec, node.gpu, node.gpus) < longest:
        return Instance(phase, node, 0.0, 0.0, 0.0, start, False, LONGEST_REQUEST)
    limits = service.utilization, service.percentile, link_gb_s
    rate = _shared((spec, node, phase, slo, lengths, profile, *limits), arrivals)
    return Instance(
        phase=phase,
        slice=node,
        req_per_s=rate.req_per_s * planned_for(service, node, profile),
        ttft_ms=rate.ttft_ms,
        tpot_ms=rate.tpot_ms,
        start_s=start,
        uncertain=rate.uncertain,
        bound_by=rate.bound_by,
    )


def served(service: Service) -> ModelSpec:
    """The architecture with the context that its servers are started with, `max_len`."""
    return _served(service.architecture, service.max_len_tokens)


@lru_cache(maxsize=1024)  # the same value each time, so that what is cached by it is found
def _served(spec: ModelSpec, max_len_tokens: int) -> ModelSpec:
    if max_len_tokens >= spec.max_position:
        return spec
    return replace(spec, max_position=max_len_tokens)


def rate_over(
    service: Service,
    slices: PipelineSlices,
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> InstanceRate:
    """What an aggregated instance of `service` over several nodes sustains, as it is predicted."""
    slo = Slo(service.slo.ttft_ms * stretch, service.slo.tpot_ms * stretch)
    limits = service.utilization, service.percentile, KV_LINK_GB_PER_S
    phase = Phase.AGGREGATED
    asked = (served(service), slices, phase, slo, lengths, profile, *limits)
    return _shared(asked, arrivals)


def planned_for(service: Service, node: NodeSlice, profile: Profile) -> float:
    """Share of the rate predicted for `service` on `node` that plans rest on."""
    if not service.cautious:
        return 1.0
    spec = service.architecture
    return planned_share(spec, profile.measurement(spec, node.gpu, node.gpus))


_Asked = tuple[
    ModelSpec, NodeSlice | PipelineSlices, Phase, Slo, Lengths, Profile, float, float, float
]


def _shared(asked: _Asked, arrivals: Arrivals) -> InstanceRate:
    """The rate of an instance that carries its share of `arrivals`.

    The share depends on the rate and the rate on the share: from the most that it could carry two
    rounds come near, and the burstier of them counts. In a large fleet all have the same share of
    chance, and one valuation is enough.
    """
    spec, node, phase, _, lengths, profile, _, _, link_gb_s = asked
    most = max_req_per_s(spec, node, phase, lengths, profile, link_gb_s)
    cv = on_grid(min(1.0, arrivals.instance_cv(most)))
    rate = _rate(*asked, cv)
    tried = []
    for _ in range(_ROUNDS):
        cv = on_grid(arrivals.instance_cv(rate.req_per_s) if rate.req_per_s > 0.0 else arrivals.cv)
        rate = _rate(*asked, cv)
        tried.append(cv)
    return rate if cv == max(tried) else _rate(*asked, max(tried))


def on_grid(cv: float) -> float:
    """`cv` rounded up to a grid of an eighth, so that caches hit; at least 0.4."""
    steps = math.ceil(math.log(max(cv, _LEAST_CV)) / math.log(_CV_STEP) - 1e-9)
    return float(_CV_STEP**steps)


@lru_cache(maxsize=16384)
def _rate(
    spec: ModelSpec,
    node: NodeSlice | PipelineSlices,
    phase: Phase,
    slo: Slo,
    lengths: Lengths,
    profile: Profile,
    utilization: float,
    percentile: float,
    link_gb_s: float,
    arrival_cv: float,
) -> InstanceRate:
    return instance_throughput(
        spec, node, phase, slo, lengths, profile, utilization, percentile, arrival_cv, link_gb_s
    )
