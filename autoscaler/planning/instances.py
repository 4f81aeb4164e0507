"""Single-node instances of a service, with the rates that the performance model predicts within the
SLO. The rate is 0 if a request of maximal length does not fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from autoscaler.domain.cluster import Service
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.token_times import TokenTimes
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
# Arrivals at an instance would be smoother with one gateway, but several gateways run separate
# round robins.
_LEAST_CV = 0.4
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance: the rate that it sustains (0 if the instance is impossible) and its start
    time."""

    phase: Phase
    slice: NodeSlice
    req_per_s: float
    ttft_ms: float
    tpot_ms: float
    start_s: float
    uncertain: bool
    bound_by: str
    token_times: TokenTimes | None = None


NO_SPLIT, LONGEST_REQUEST = "no_split", "longest_request"
"""Values of `bound_by` for an impossible instance: the engine cannot split the model over its GPUs,
or the longest request does not fit in memory."""


@PLAN_CACHES.by_value(4096)
def evaluate_instance(
    service: Service,
    node: NodeSlice,
    phase: Phase,
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> Instance:
    """The instance of `service` on `node` in `phase` at `lengths`, with the SLO multiplied by
    `stretch`.

    arrivals: arrival process of the whole model, of which the instance serves a share. link_gb_s:
    bandwidth between prefill and decode instances, in 1e9 bytes/s.
    """
    spec = served_spec(service)
    longest = spec.max_position
    slo = Slo(service.slo.ttft_ms * stretch, service.slo.tpot_ms * stretch)
    start = startup_s(spec, node)
    if not VLLM.runs(spec, node):
        return Instance(phase, node, 0.0, 0.0, 0.0, start, False, NO_SPLIT)
    if kv_capacity_tokens(spec, node.gpu, node.gpus) < longest:
        return Instance(phase, node, 0.0, 0.0, 0.0, start, False, LONGEST_REQUEST)
    limits = service.utilization, service.percentile, link_gb_s
    rate = _rate_at_shared_load((spec, node, phase, slo, lengths, profile, *limits), arrivals)
    return Instance(
        phase=phase,
        slice=node,
        req_per_s=rate.req_per_s * cautious_share(service, node, profile),
        ttft_ms=rate.ttft_ms,
        tpot_ms=rate.tpot_ms,
        start_s=start,
        uncertain=rate.uncertain,
        bound_by=rate.bound_by,
        token_times=rate.token_times,
    )


def served_spec(service: Service) -> ModelSpec:
    """The architecture of `service`, limited to the context length `max_len` with which its engines
    start."""
    return _served(service.architecture, service.max_len_tokens)


@lru_cache(maxsize=1024)  # returns one object per input, so that caches with this key hit
def _served(spec: ModelSpec, max_len_tokens: int) -> ModelSpec:
    if max_len_tokens >= spec.max_position:
        return spec
    return replace(spec, max_position=max_len_tokens)


def pipeline_rate(
    service: Service,
    slices: PipelineSlices,
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> InstanceRate:
    """The predicted rate of an aggregated instance of `service` over several nodes."""
    slo = Slo(service.slo.ttft_ms * stretch, service.slo.tpot_ms * stretch)
    limits = service.utilization, service.percentile, KV_LINK_GB_PER_S
    phase = Phase.AGGREGATED
    arguments = (served_spec(service), slices, phase, slo, lengths, profile, *limits)
    return _rate_at_shared_load(arguments, arrivals)


def cautious_share(service: Service, node: NodeSlice, profile: Profile) -> float:
    """The share of the predicted rate of `service` on `node` that plans use; it is below 1 if the
    prediction is uncertain."""
    if not service.cautious:
        return 1.0
    spec = service.architecture
    return planned_share(spec, profile.measurement(spec, node.gpu, node.gpus), node.gpu.name)


_RateArguments = tuple[
    ModelSpec, NodeSlice | PipelineSlices, Phase, Slo, Lengths, Profile, float, float, float
]


def _rate_at_shared_load(arguments: _RateArguments, arrivals: Arrivals) -> InstanceRate:
    """The rate of an instance that serves its share of `arrivals`.

    The share depends on the rate, and the rate on the share. Two iterations from the maximal rate
    approximate the fixed point; the result for burstier arrivals is used. One evaluation is enough
    in a large fleet, because the share hardly depends on the rate there.
    """
    spec, node, phase, _, lengths, profile, _, _, link_gb_s = arguments
    most = max_req_per_s(spec, node, phase, lengths, profile, link_gb_s)
    cv = round_cv_up(min(1.0, arrivals.instance_cv(most)))
    rate = _rate(*arguments, cv)
    tried = []
    for _ in range(_ROUNDS):
        cv = round_cv_up(
            arrivals.instance_cv(rate.req_per_s) if rate.req_per_s > 0.0 else arrivals.cv
        )
        rate = _rate(*arguments, cv)
        tried.append(cv)
    return rate if cv == max(tried) else _rate(*arguments, max(tried))


def round_cv_up(cv: float) -> float:
    """`cv`, but at least 0.4, rounded up to a geometric grid (factor 1.125), so that caches hit
    more often."""
    steps = math.ceil(math.log(max(cv, _LEAST_CV)) / math.log(_CV_STEP) - 1e-9)
    return float(_CV_STEP**steps)


@PLAN_CACHES.by_value(16384)
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
