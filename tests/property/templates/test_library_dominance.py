"""A library, compared with brute force: the kept templates and their throughput."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL, VLLM, VLLM_PIPELINE, EngineCapabilities
from autoscaler.templates.library_request import LibraryRequest
from tests.property.templates.placement_oracle import Floats, best_placement_by_dp

Multiset = tuple[int, ...]


def make_request(
    layers: int, memories_gb: list[float], gpus: list[int], engine: EngineCapabilities, nodes: int
) -> LibraryRequest:
    """A request for a 10 GB model, with this memory and GPU count of each configuration."""
    model = ModelSpec("m", layers, 64, 8, 8, 8, 128, 100, 1e9, 1e9, 10e9, 1e3)
    configs = tuple(
        NodeSlice(GpuSpec(f"g{i}", 1.0, 0.0, 1.0, memory / n, 1.0, 1.0), n)
        for i, (memory, n) in enumerate(zip(memories_gb, gpus, strict=True))
    )
    return LibraryRequest(
        model, Phase.DECODE, Slo(1.0, 1.0), Lengths(1.0, 1.0), configs, engine, "", nodes, 6.0
    )


def brute_force(request: LibraryRequest, table: Floats) -> dict[Multiset, float]:
    """The throughput of every undominated template.

    No set of other templates on at most the same nodes reaches its throughput.
    """
    configs = len(request.configs)
    engine = request.engine
    most = 1 if engine.single_node else request.max_nodes
    family = engine.families(request.configs)

    @cache
    def rate(nodes: Multiset) -> float:
        memory = sum(request.configs[c].mem_gb for c in nodes)
        if not 10.0 <= memory <= 10.0 * request.max_memory_ratio:
            return 0.0
        if len({family[c] for c in nodes}) > 1:
            return 0.0
        return best_placement_by_dp(table, nodes, chains=not engine.data_parallel_stages)

    @cache
    def best_without(nodes: Multiset, allow_itself: bool) -> float:
        """The highest total throughput of templates on `nodes`."""
        best = rate(nodes) if allow_itself else 0.0
        for part, rest in splits(nodes):
            best = max(best, rate(part) + best_without(rest, True))
        return best

    kept = {}
    for size in range(1, most + 1):
        for nodes in combinations_with_replacement(range(configs), size):
            if rate(nodes) > best_without(nodes, False):
                kept[nodes] = rate(nodes)
    return kept


def splits(nodes: Multiset) -> Iterator[tuple[Multiset, Multiset]]:
    """The pairs (part, rest) for every non-empty proper part of `nodes`."""
    for mask in range(1, (1 << len(nodes)) - 1):
        yield (
            tuple(c for i, c in enumerate(nodes) if mask >> i & 1),
            tuple(c for i, c in enumerate(nodes) if not mask >> i & 1),
        )


@st.composite
def problems(draw: st.DrawFn) -> tuple[LibraryRequest, Floats]:
    """Problems of up to three configurations, five nodes and six layers. Throughputs are whole
    numbers.
    """
    configs = draw(st.integers(1, 3))
    layers = draw(st.integers(1, 6))
    nodes = draw(st.integers(1, 5))
    memories = draw(
        st.lists(st.sampled_from([4.0, 8.0, 16.0, 40.0]), min_size=configs, max_size=configs)
    )
    gpus = draw(st.lists(st.sampled_from([1, 2]), min_size=configs, max_size=configs))
    engine = draw(st.sampled_from([CORAL, CORAL, VLLM_PIPELINE, VLLM]))
    size = nodes * configs * layers
    values = draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
    table = -np.sort(-np.array(values, dtype=np.float64).reshape(nodes, configs, layers), axis=2)
    return make_request(layers, memories, gpus, engine, nodes), table


@settings(max_examples=120, deadline=None)
@given(problems())
def test_a_library_keeps_exactly_the_templates_that_no_split_dominates(
    problem: tuple[LibraryRequest, Floats],
) -> None:
    """This covers enumeration, memory limits, engine filter, placement and dominance."""
    request, table = problem
    library = build_library(request, table)
    found = {
        tuple(c for c, n in enumerate(t.node_counts) for _ in range(n)): t.throughput_req_per_s
        for t in library.templates()
    }
    assert found == brute_force(request, table)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_placement_of_every_template_gives_its_throughput(
    problem: tuple[LibraryRequest, Floats],
) -> None:
    """Stages use the template's nodes, their layers add up to the model's, and the engine's limits
    are kept.
    """
    request, table = problem
    engine = request.engine
    for template in build_library(request, table).templates():
        nodes = [c for stage in template.stages for c in stage.nodes]
        assert tuple(nodes.count(c) for c in range(len(request.configs))) == template.node_counts
        assert sum(stage.layers for stage in template.stages) == request.model.layers
        rates = [
            sum(table[len(template.stages) - 1, c, stage.layers - 1] for c in stage.nodes)
            for stage in template.stages
        ]
        assert min(rates) == template.throughput_req_per_s
        if not engine.data_parallel_stages:
            assert all(len(stage.nodes) == 1 for stage in template.stages)
        if engine is VLLM_PIPELINE:
            assert len({request.configs[c].gpus for c in nodes}) == 1
        if engine is VLLM:
            assert len(nodes) == 1


def test_a_pipeline_is_kept_only_if_it_is_faster_than_its_parts() -> None:
    """Two separate nodes serve the sum of both rates. A pipeline with an equal rate is dropped; one
    with a higher rate is kept.
    """
    request = make_request(2, [10.0], [1], CORAL, 2)
    alone = np.array([[[9.0, 5.0]], [[9.0, 1.0]]])
    assert [t.node_counts for t in build_library(request, alone).templates()] == [(1,)]
    pipeline = np.array([[[30.0, 5.0]], [[20.0, 1.0]]])
    kept = build_library(request, pipeline).templates()
    assert [(t.node_counts, t.throughput_req_per_s) for t in kept] == [((1,), 5.0), ((2,), 20.0)]


@pytest.mark.parametrize(("ratio", "expected"), [(3.9, [1, 2, 3]), (4.0, [1, 2, 3, 4])])
def test_memory_ratio_bounds_the_multisets(ratio: float, expected: list[int]) -> None:
    """The maximum is rho times the memory of the model. Here each node has room for exactly one
    model.
    """
    base = make_request(12, [10.0], [1], CORAL, 6)
    request = LibraryRequest(
        base.model, base.phase, base.slo, base.bucket, base.configs, CORAL, "", 6, ratio
    )
    table = np.array([[[13.0 - j for j in range(1, 13)]] for _ in range(6)]) ** 3
    library = build_library(request, table)
    assert [int(n) for n in library.node_counts[:, 0]] == expected
