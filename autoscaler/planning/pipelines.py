"""Instances over several nodes: irreducible pipelines of a service, and the rate of a given one.

Owns the bridge from the template library (`autoscaler.templates`) to candidates, for engines that
declare pipelines. Libraries are built for the lengths that are planned for: with a dozen slices
that takes about 20 ms. Knows no pools and no prices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from autoscaler.domain.cluster import Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.profile import Profile
from autoscaler.planning.instances import planned_for
from autoscaler.templates.build import build_library
from autoscaler.templates.declared import capabilities, request_of
from autoscaler.templates.request import MAX_CONFIGS, LibraryRequest
from autoscaler.templates.tables import throughput_table, uncertain_configs

Stages = tuple[tuple[tuple[NodeSlice, ...], int], ...]
"""Per stage its node slices and the layers that each of them holds."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One instance of `phase` over several nodes, and what it sustains within the SLO."""

    phase: Phase
    stages: Stages
    req_per_s: float
    uncertain: bool


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
) -> Pipeline:
    """The pipeline with these stages; req_per_s is 0 where it cannot run or meet the SLO."""
    slices = tuple(dict.fromkeys(node for nodes, _ in stages for node in nodes))
    request = _request(service, phase, slices, lengths, profile, stretch)
    table = throughput_table(request, profile)
    marks = uncertain_configs(request, profile)
    rate = min(
        sum(float(table[len(stages) - 1, slices.index(node), layers - 1]) for node in nodes)
        for nodes, layers in stages
    )
    longest = min(service.max_len_tokens, service.architecture.max_position)
    if not _holds(service, stages, longest):
        rate = 0.0
    rate *= _share(service, stages, profile)
    return Pipeline(phase, stages, rate, bool(marks.any()))


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
    return request_of(service, phase, slices, lengths, profile.content_hash, engine, stretch)


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
            found.append(Pipeline(request.phase, stages, rate, template.uncertain))
    return tuple(found)


def _holds(service: Service, stages: Stages, tokens: float) -> bool:
    spec = service.architecture
    return all(
        kv_capacity_tokens(spec, node.gpu, node.gpus, layers) >= tokens
        for nodes, layers in stages
        for node in nodes
    )
