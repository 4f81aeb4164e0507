"""Engines over several nodes: the lanes of an engine follow from the time of each stage."""

from __future__ import annotations

import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.performance.catalog import gpu, model
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.pipeline import (
    HOP_GB_S,
    HOP_LATENCY_MS,
    PipelineSlices,
    pipeline_times,
)
from autoscaler.performance.step_times import step_times
from autoscaler.performance.timing_grid import timing_grid

PROFILE = default_profile()
SPEC = model("Qwen/Qwen3-32B")
A100 = NodeSlice(gpu("A100-SXM-80GB"), 1)


def slices(*layers: int, node: NodeSlice = A100, longest: int = 8192) -> PipelineSlices:
    return PipelineSlices(tuple((node, held) for held in layers), longest)


@pytest.mark.parametrize("layers", [(32, 32), (40, 24)])
def test_an_iteration_passes_every_stage_at_the_pace_of_the_slowest(
    layers: tuple[int, int],
) -> None:
    """The template library adds the same parts of a stage: its layers, its share of the head, a
    fixed time, and a hop.
    """
    lane, lanes = pipeline_times(SPEC, slices(*layers), Phase.AGGREGATED, PROFILE)
    assert lanes == 2
    bound = step_times(SPEC, A100, Phase.AGGREGATED, PROFILE).roofline
    held = max(layers)
    hop = HOP_LATENCY_MS + bound.hop_ms(16, HOP_GB_S)
    stage = bound.decode_ms(16, 1000.0, held) + hop
    assert lane.roofline.decode_ms(16, 1000.0) == pytest.approx(2 * stage, rel=0.02)
    prompt = bound.prefill_ms(2048, 0.0, 1.0, held) + HOP_LATENCY_MS + bound.hop_ms(2048, HOP_GB_S)
    assert lane.roofline.prefill_ms(2048) == pytest.approx(2 * prompt, rel=0.02)


def test_the_compiled_engine_has_the_same_times() -> None:
    """The capacity search makes its arrays from the same lanes."""
    lane, _ = pipeline_times(SPEC, slices(32, 32), Phase.AGGREGATED, PROFILE)
    grid = timing_grid(lane, 2048)
    assert grid.decode_ms(8, 700.0) == pytest.approx(lane.decode_ms(8, 700.0), rel=1e-3)


def test_lanes_share_the_memory_that_the_fullest_stage_leaves() -> None:
    """If that memory has room for only one request of maximal length, there is one lane."""
    lane, lanes = pipeline_times(SPEC, slices(32, 32), Phase.AGGREGATED, PROFILE)
    one, alone = pipeline_times(
        SPEC, slices(32, 32, longest=int(1.5 * lane.kv_capacity_tokens)), Phase.AGGREGATED, PROFILE
    )
    assert (lanes, alone) == (2, 1)
    assert one.kv_capacity_tokens == pytest.approx(2 * lane.kv_capacity_tokens)
    small = NodeSlice(gpu("L4"), 1)
    none, _ = pipeline_times(SPEC, slices(32, 32, node=small), Phase.AGGREGATED, PROFILE)
    assert none.kv_capacity_tokens == 0.0


def test_layers_must_add_up() -> None:
    with pytest.raises(InvalidValue, match="64 in all"):
        pipeline_times(SPEC, slices(32, 31), Phase.AGGREGATED, PROFILE)
