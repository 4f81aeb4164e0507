"""Instances over several nodes: irreducible pipelines of a service, and the rate of a given one.

Owns the bridge from the template library (`autoscaler.templates`) to candidates, for engines that
declare pipelines, and aggregated instances over equal nodes, which libraries (of one phase) do not
know. Libraries are built for the lengths that are planned for: with a dozen slices
that takes about 20 ms. Knows no pools and no prices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from autoscaler.domain.cluster import Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import POISSON_ARRIVALS, Arrivals, Lengths, Phase
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.profile import Profile
from autoscaler.planning.instances import instance, planned_for, rate_over
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import VLLM
from autoscaler.templates.library_request import MAX_CONFIGS, LibraryRequest
from autoscaler.templates.partitions import MAX_NODES
from autoscaler.templates.required_libraries import capabilities, service_library_request
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs

_TRIED = 2

Stages = tuple[tuple[tuple[NodeSlice, ...], int], ...]
"""Per stage its node slices and the layers that each of them holds."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One instance of `phase` over several nodes, and what it sustains within the SLO.

    ttft_ms, tpot_ms: predicted; of the library's, which are sized to meet them, what the SLO
    leaves them.
    """

    phase: Phase
    stages: Stages
    req_per_s: float
    uncertain: bool
    ttft_ms: float
    tpot_ms: float


def irreducible(
    service: Service,
    phase: Phase,
    slices: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
) -> tuple[Pipeline, ...]:
    """Pipelines over `slices` (the first 48) that serve more than their nodes do in any split.

    With the SLO times `stretch`. Those that cannot hold a request of maximal length are left out.
    """
    request = _request(service, phase, slices[:MAX_CONFIGS], lengths, profile, stretch)
    longest = min(service.max_len_tokens, service.architecture.max_position)
    return tuple(
        replace(pipeline, req_per_s=pipeline.req_per_s * _share(service, pipeline.stages, profile))
        for pipeline in _library(request, profile)
        if _holds(service, pipeline.stages, longest)
    )


def rate_of(
    service: Service,
    phase: Phase,
    stages: Stages,
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> Pipeline:
    """The pipeline with these stages; req_per_s is 0 where it cannot run or meet the SLO.

    InvalidValue where they are no pipeline of the model, or more stages than its engine runs.
    """
    held, layers = [layers for _, layers in stages], service.architecture.layers
    if min(held) < 1 or sum(held) != layers:
        raise InvalidValue(f"layers of the stages of {service.model}", held, f"{layers} in all")
    if phase is Phase.AGGREGATED:
        flat = tuple((nodes[0], layers) for nodes, layers in stages)
        return _aggregated(service, flat, lengths, profile, stretch, arrivals)
    slices = tuple(dict.fromkeys(node for nodes, _ in stages for node in nodes))
    request = _request(service, phase, slices, lengths, profile, stretch)
    table = throughput_table(request, profile)
    if len(stages) > len(table):
        what = f"stages of {phase.value} of {service.model}"
        raise InvalidValue(what, len(stages), f"at most {len(table)}, as its engine is declared")
    marks = uncertain_configs(request, profile)
    rate = min(
        sum(float(table[len(stages) - 1, slices.index(node), layers - 1]) for node in nodes)
        for nodes, layers in stages
    )
    longest = min(service.max_len_tokens, service.architecture.max_position)
    if not _holds(service, stages, longest):
        rate = 0.0
    rate *= _share(service, stages, profile)
    return Pipeline(phase, stages, rate, bool(marks.any()), *_limits(request))


def spread(
    service: Service,
    slices: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Pipeline, ...]:
    """Aggregated instances over equal nodes: of each of `slices` the two smallest that can serve,
    where these do more than their nodes would one by one."""
    spec = service.architecture
    found = []
    for node in slices:
        if not VLLM.runs(spec, node):
            continue
        lone = instance(
            service, node, Phase.AGGREGATED, lengths, profile, stretch, arrivals
        ).req_per_s
        able = 0
        for count in range(2, min(MAX_NODES, spec.layers) + 1):
            stages = tuple((node, layers) for layers in even(spec.layers, count))
            made = _aggregated(service, stages, lengths, profile, stretch, arrivals)
            able += made.req_per_s > 0.0
            if made.req_per_s > count * lone:
                found.append(made)
            if able == _TRIED:
                break
    return tuple(found)


def even(layers: int, stages: int) -> tuple[int, ...]:
    """`layers` in as many parts as can be equal, larger ones first: 61 over 2 is 31 and 30."""
    least, more = divmod(layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))


def _aggregated(
    service: Service,
    stages: tuple[tuple[NodeSlice, int], ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> Pipeline:
    held = tuple(((node,), layers) for node, layers in stages)
    longest = min(service.max_len_tokens, service.architecture.max_position)
    if not _holds(service, held, longest):
        return Pipeline(Phase.AGGREGATED, held, 0.0, False, 0.0, 0.0)
    slices = PipelineSlices(stages, longest)
    rate = rate_over(service, slices, lengths, profile, stretch, arrivals)
    planned = rate.req_per_s * _share(service, held, profile)
    return Pipeline(Phase.AGGREGATED, held, planned, rate.uncertain, rate.ttft_ms, rate.tpot_ms)


def _limits(request: LibraryRequest) -> tuple[float, float]:
    prefill = request.phase is Phase.PREFILL
    return (request.slo.ttft_ms, 0.0) if prefill else (0.0, request.slo.tpot_ms)


def _share(service: Service, stages: Stages, profile: Profile) -> float:
    """Share of its predicted rate that is planned for: that of its least certain node."""
    return min(planned_for(service, node, profile) for nodes, _ in stages for node in nodes)


def _request(
    service: Service,
    phase: Phase,
    slices: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float,
) -> LibraryRequest:
    engine = capabilities(service)
    return service_library_request(
        service, phase, slices, lengths, profile.content_hash, engine, stretch
    )


@lru_cache(maxsize=256)
def _library(request: LibraryRequest, profile: Profile) -> tuple[Pipeline, ...]:
    library = build_library(
        request, throughput_table(request, profile), uncertain_configs(request, profile)
    )
    found = []
    for template in library.templates():
        if sum(template.node_counts) > 1:
            stages = tuple(
                (tuple(request.configs[c] for c in stage.nodes), stage.layers)
                for stage in template.stages
            )
            rate = template.throughput_req_per_s
            limits = _limits(request)
            found.append(Pipeline(request.phase, stages, rate, template.uncertain, *limits))
    return tuple(found)


def _holds(service: Service, stages: Stages, tokens: float) -> bool:
    spec = service.architecture
    return all(
        kv_capacity_tokens(spec, node.gpu, node.gpus, layers) >= tokens
        for nodes, layers in stages
        for node in nodes
    )
