"""Instances over several nodes: the irreducible pipelines of a service, and the rates of given
pipelines.

Pipelines come from the template library (`autoscaler.templates`), for engines that declare
pipelines. A library has templates for one phase only, so this module adds aggregated instances over
equal nodes. Libraries are built for the planned lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import POISSON_ARRIVALS, Arrivals, Lengths, Phase
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.profile import Profile
from autoscaler.planning.instances import cautious_share, evaluate_instance, pipeline_rate
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import VLLM
from autoscaler.templates.library_request import MAX_CONFIGS, LibraryRequest
from autoscaler.templates.partitions import MAX_NODES
from autoscaler.templates.required_libraries import capabilities, service_library_request
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs

_TRIED = 2

Stages = tuple[tuple[tuple[NodeSlice, ...], int], ...]
"""Node slices of each stage, and the layers that each slice holds."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One instance of `phase` over several nodes, and its rate within the SLO.

    ttft_ms, tpot_ms: predicted latencies. Pipelines from the library are sized to meet the SLO just
    so; for them the values are the limits of the SLO.
    """

    phase: Phase
    stages: Stages
    req_per_s: float
    uncertain: bool
    ttft_ms: float
    tpot_ms: float


def irreducible_pipelines(
    service: Service,
    phase: Phase,
    slices: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
) -> tuple[Pipeline, ...]:
    """Irreducible pipelines: they serve more than any split of their nodes into smaller pipelines.
    slices: only the first 48 are used. stretch: factor on the SLO. Pipelines that cannot hold a
    request of maximal length are dropped.
    """
    request = _request(service, phase, slices[:MAX_CONFIGS], lengths, profile, stretch)
    longest = min(service.max_len_tokens, service.architecture.max_position)
    return tuple(
        replace(pipeline, req_per_s=pipeline.req_per_s * _share(service, pipeline.stages, profile))
        for pipeline in _library(request, profile)
        if _fits_memory(service, pipeline.stages, longest)
    )


def evaluate_pipeline(
    service: Service,
    phase: Phase,
    stages: Stages,
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> Pipeline:
    """The pipeline with the given stages; req_per_s is 0 if it cannot run or cannot meet the SLO.

    Raises InvalidValue if the stages do not form the model, or if the engine does not support their
    number.
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
    if not _fits_memory(service, stages, longest):
        rate = 0.0
    rate *= _share(service, stages, profile)
    return Pipeline(phase, stages, rate, bool(marks.any()), *_limits(request))


def aggregated_pipelines(
    service: Service,
    slices: tuple[NodeSlice, ...],
    lengths: Lengths,
    profile: Profile,
    stretch: float = 1.0,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Pipeline, ...]:
    """Aggregated instances over several equal nodes that serve more than separate instances on the
    same nodes.

    For each of `slices`, the two smallest numbers of nodes that can serve are tried.
    """
    spec = service.architecture
    found = []
    for node in slices:
        if not VLLM.runs(spec, node):
            continue
        lone = evaluate_instance(
            service, node, Phase.AGGREGATED, lengths, profile, stretch, arrivals
        ).req_per_s
        able = 0
        for count in range(2, min(MAX_NODES, spec.layers) + 1):
            stages = tuple((node, layers) for layers in split_evenly(spec.layers, count))
            made = _aggregated(service, stages, lengths, profile, stretch, arrivals)
            able += made.req_per_s > 0.0
            if made.req_per_s > count * lone:
                found.append(made)
            if able == _TRIED:
                break
    return tuple(found)


def split_evenly(layers: int, stages: int) -> tuple[int, ...]:
    """`layers` divided into `stages` parts of nearly equal size, larger parts first: 61 over 2 is
    31 and 30."""
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
    if not _fits_memory(service, held, longest):
        return Pipeline(Phase.AGGREGATED, held, 0.0, False, 0.0, 0.0)
    slices = PipelineSlices(stages, longest)
    rate = pipeline_rate(service, slices, lengths, profile, stretch, arrivals)
    planned = rate.req_per_s * _share(service, held, profile)
    return Pipeline(Phase.AGGREGATED, held, planned, rate.uncertain, rate.ttft_ms, rate.tpot_ms)


def _limits(request: LibraryRequest) -> tuple[float, float]:
    prefill = request.phase is Phase.PREFILL
    return (request.slo.ttft_ms, 0.0) if prefill else (0.0, request.slo.tpot_ms)


def _share(service: Service, stages: Stages, profile: Profile) -> float:
    """The share of the predicted rate that plans use: the lowest share among the pipeline's
    nodes."""
    return min(cautious_share(service, node, profile) for nodes, _ in stages for node in nodes)


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


@PLAN_CACHES.by_value(256)
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


def _fits_memory(service: Service, stages: Stages, tokens: float) -> bool:
    spec = service.architecture
    return all(
        kv_capacity_tokens(spec, node.gpu, node.gpus, layers) >= tokens
        for nodes, layers in stages
        for node in nodes
    )
