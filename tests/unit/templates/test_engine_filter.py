"""The capabilities of an engine decide which templates exist, tested with the stage table of a real
model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.throughput import instance_throughput
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL, VLLM, VLLM_PIPELINE
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs
from loadtests.placement import PlacementSearch

CONFIGS = tuple(
    NodeSlice(catalog.gpu(name), n) for name in ("L4", "L40S", "A10G") for n in (1, 2, 4)
)


def request_for(model: str, phase: Phase, engine: str) -> LibraryRequest:
    engines = {"vllm": VLLM, "pipeline": VLLM_PIPELINE, "coral": CORAL}
    return LibraryRequest(
        catalog.model(model),
        phase,
        Slo(1600.0, 100.0),
        Lengths(1155.0, 211.0),
        CONFIGS,
        engines[engine],
        default_profile().content_hash,
    )


def test_phi4_is_not_split_over_four_gpus_by_vllm() -> None:
    """Phi-4 has 10 KV heads. 4 does not divide 10, nor 10 divide 4. 2 GPUs are allowed."""
    model = catalog.model("microsoft/phi-4")
    assert model.kv_heads == 10
    assert VLLM.runs(model, NodeSlice(catalog.gpu("L4"), 2))
    assert not VLLM.runs(model, NodeSlice(catalog.gpu("L4"), 4))
    assert CORAL.runs(model, NodeSlice(catalog.gpu("L4"), 4))
    table = throughput_table(
        request_for("microsoft/phi-4", Phase.DECODE, "vllm"), default_profile()
    )
    assert (table[0, [i for i, c in enumerate(CONFIGS) if c.gpus == 4]] == 0).all()
    assert (table > 0).any()


@pytest.mark.parametrize("phase", list(Phase))
def test_the_default_library_has_the_rates_of_single_nodes(phase: Phase) -> None:
    """They equal the rates of the instance model, with queueing and both latency limits."""
    request = request_for("Qwen/Qwen3-32B", phase, "vllm")
    profile = default_profile()
    library = build_library(request, throughput_table(request, profile))
    assert len(library) > 0
    for template in library.templates():
        assert sum(template.node_counts) == 1
        node = CONFIGS[template.node_counts.index(1)]
        rate = instance_throughput(
            request.model, node, phase, request.slo, request.bucket, profile, request.utilisation
        )
        assert template.throughput_req_per_s == rate.req_per_s


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_single_node_templates_have_the_same_rate_in_every_library(phase: Phase) -> None:
    """An engine with pipelines adds templates. Single-node templates keep their rates."""
    profile = default_profile()
    single = request_for("Qwen/Qwen3-32B", phase, "vllm")
    pipelines = request_for("Qwen/Qwen3-32B", phase, "pipeline")
    alone = build_library(single, throughput_table(single, profile))
    more = build_library(pipelines, throughput_table(pipelines, profile))
    rates = {t.node_counts: t.throughput_req_per_s for t in more.templates()}
    assert len(alone) > 0
    for template in alone.templates():
        assert rates[template.node_counts] == template.throughput_req_per_s


def test_waiting_shortens_the_prefill_budget_of_a_stage() -> None:
    """At a load of 0.8, each of two stages has half of its budget without waiting."""
    profile = default_profile()
    request = request_for("Qwen/Qwen3-32B", Phase.PREFILL, "coral")
    plain = throughput_table(replace(request, utilisation=0.0), profile)
    busy = throughput_table(request, profile)
    assert (busy[1:] <= plain[1:]).all()
    assert (busy[1:] < plain[1:]).any()
    twice = replace(request, slo=Slo(2 * request.slo.ttft_ms, request.slo.tpot_ms))
    assert (throughput_table(twice, profile)[1] <= plain[1]).all()
    decode = request_for("Qwen/Qwen3-32B", Phase.DECODE, "coral")
    assert np.array_equal(
        throughput_table(decode, profile)[1:],
        throughput_table(replace(decode, utilisation=0.0), profile)[1:],
    )


def test_richer_engines_serve_no_less_on_the_same_nodes() -> None:
    """Coral's placements include every chain, so its best rate is never below that of a chain."""
    profile = default_profile()
    chains = request_for("Qwen/Qwen3-32B", Phase.DECODE, "pipeline")
    full = replace(chains, engine=CORAL)
    search = PlacementSearch(throughput_table(full, profile))
    seen = 0
    for template in build_library(chains, throughput_table(chains, profile)).templates():
        nodes = [c for c, n in enumerate(template.node_counts) for _ in range(n)]
        assert search.best(nodes).req_per_s >= template.throughput_req_per_s
        seen += 1
    assert seen > 0


def test_a_library_of_real_size_agrees_with_single_solves() -> None:
    """Kept templates have the optimum of a separate solve. No dropped template is better than every
    split of its nodes.
    """
    request = request_for("Qwen/Qwen3-32B", Phase.PREFILL, "coral")
    table = throughput_table(request, default_profile())
    library = build_library(request, table)
    search = PlacementSearch(table)
    rates = {}
    for index in range(0, len(library), 7):
        counts = library.node_counts[index]
        nodes = [c for c, n in enumerate(counts) for _ in range(n)]
        found = search.best(nodes).req_per_s
        assert library.throughput_req_per_s[index] == pytest.approx(found, rel=1e-12)
        rates[tuple(nodes)] = found
    kept = {tuple(int(n) for n in row) for row in library.node_counts}
    rng = np.random.default_rng(5)
    dropped = 0
    for _ in range(400):
        nodes = sorted(int(c) for c in rng.integers(0, len(CONFIGS), 4))
        counts = tuple(nodes.count(c) for c in range(len(CONFIGS)))
        memory = sum(CONFIGS[c].mem_gb for c in nodes) * 1e9 / request.model.weight_bytes
        if counts in kept or not 1 <= memory <= request.max_memory_ratio:
            continue
        dropped += 1
        whole = search.best(nodes).req_per_s
        best_split = most_by_templates(library, counts)
        assert whole <= best_split * (1 + 1e-8)
    assert dropped > 50


def most_by_templates(library: object, counts: tuple[int, ...]) -> float:
    """The highest total rate that templates of the library reach on at most `counts` nodes."""
    rows = library.node_counts  # type: ignore[attr-defined]
    rates = library.throughput_req_per_s  # type: ignore[attr-defined]
    fits = np.flatnonzero((rows <= np.array(counts)).all(axis=1))
    best = 0.0
    for index in fits:
        rest = tuple(int(n) for n in np.array(counts) - rows[index])
        best = max(best, float(rates[index]) + most_by_templates(library, rest))
    return best


def test_templates_on_uncertain_configurations_are_marked() -> None:
    """Only these templates are marked. The profile marks the configurations."""
    request = request_for("microsoft/phi-4", Phase.DECODE, "coral")
    profile = default_profile()
    assert list(uncertain_configs(request, profile)) == [
        profile.uncertain(request.model, node.gpu) for node in CONFIGS
    ]
    marks = np.array([node.gpu.name == "A10G" for node in CONFIGS])
    library = build_library(request, throughput_table(request, profile), marks)
    for template in library.templates():
        uses = any(
            n and node.gpu.name == "A10G"
            for n, node in zip(template.node_counts, CONFIGS, strict=False)
        )
        assert template.uncertain == uses
    assert library.uncertain.any()
    assert not library.uncertain.all()


def test_progress_ends_at_100_percent() -> None:
    request = request_for("microsoft/phi-4", Phase.PREFILL, "coral")
    steps: list[tuple[int, int]] = []
    build_library(
        request,
        throughput_table(request, default_profile()),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert len(steps) == 6
    assert steps[-1][0] == steps[-1][1] == 5004  # multisets of 1 to 6 out of 9 configurations
