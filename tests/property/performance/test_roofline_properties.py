"""Invariants of the performance model at any size: order, bounds, and consistent parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_point
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.plausibility import peak_share
from autoscaler.performance.step_times import step_times
from autoscaler.performance.throughput import instance_throughput, stage_table

PROFILE = default_profile()
# Models without a measured table, because a table may state that a larger input is faster.
MODELS = st.sampled_from(
    [
        catalog.model(name)
        for name in (
            "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "openai/gpt-oss-20b",
            "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1", "microsoft/phi-4",
        )
    ]
)  # fmt: skip
GPUS = st.sampled_from([catalog.gpu(n) for n in ("L4", "L40S", "A10G", "A100", "H100", "B200")])
NODES = st.builds(NodeSlice, GPUS, st.sampled_from(SLICE_SIZES))
TOKENS = st.floats(1.0, 50_000.0)
BUCKETS = st.builds(Lengths, st.floats(16.0, 16_000.0), st.floats(4.0, 4_000.0))
SLOS = st.builds(Slo, st.floats(100.0, 20_000.0), st.floats(5.0, 300.0))


@given(MODELS, NODES, TOKENS, TOKENS, st.integers(1, 512), st.integers(1, 512))
def test_more_work_never_takes_less_time(model, node, length, longer, batch, more) -> None:
    times = step_times(model, node, Phase.AGGREGATED, PROFILE)
    length, longer = sorted((length, longer))
    batch, more = sorted((batch, more))
    slack = 1 + 1e-9
    assert 0 < times.prefill_ms(length) <= times.prefill_ms(longer) * slack
    assert times.prefill_ms(length) <= times.prefill_ms(length, context=longer) * slack
    assert 0 < times.decode_ms(batch, length) <= times.decode_ms(more, length) * slack
    assert times.decode_ms(batch, length) <= times.decode_ms(batch, longer) * slack


@given(MODELS, NODES, TOKENS, TOKENS, st.integers(1, 256))
def test_a_mixed_iteration_takes_at_least_as_long_as_each_part(
    model, node, prompt, context, decodes
) -> None:
    times = step_times(model, node, Phase.AGGREGATED, PROFILE)
    both = times.mixed_ms(prompt, 0.0, decodes, context)
    assert both >= times.decode_ms(decodes, context) * 0.95
    assert both >= times.prefill_ms(prompt) * 0.95
    apart = times.decode_ms(decodes, context) + times.prefill_ms(prompt)
    assert both <= apart * 1.05


@settings(max_examples=30, deadline=None)
@given(
    MODELS, st.lists(NODES, min_size=1, max_size=4), st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    st.floats(5.0, 20_000.0), BUCKETS, st.integers(1, 6),
)  # fmt: skip
def test_stage_tables_are_ordered(model, nodes, phase, slo_ms, lengths, stages) -> None:
    """The rate never rises with more layers, nor with the smaller budget of more stages. It is
    never NaN.
    """
    table = stage_table(model, nodes, phase, slo_ms, lengths, stages, PROFILE)
    assert table.shape == (stages, len(nodes), model.layers)
    assert np.isfinite(table).all()
    assert (table >= 0).all()
    assert (np.diff(table, axis=2) <= 0).all()
    assert (np.diff(table, axis=0) <= 0).all()
    looser = stage_table(model, nodes, phase, slo_ms * 1.5, lengths, stages, PROFILE)
    assert (looser >= table).all()


@settings(max_examples=60, deadline=None)
@given(MODELS, NODES, st.sampled_from(list(Phase)), SLOS, BUCKETS)
def test_an_instance_keeps_its_slo_and_its_memory(model, node, phase, slo, lengths) -> None:
    rate = instance_throughput(model, node, phase, slo, lengths, PROFILE)
    assert rate.req_per_s >= 0
    if rate.req_per_s == 0:
        assert rate.bound_by in ("does not fit", "ttft", "tpot", "memory")
        return
    assert rate.ttft_ms <= slo.ttft_ms * (1 + 1e-6)
    assert rate.tpot_ms <= slo.tpot_ms * (1 + 1e-6)
    capacity = step_times(model, node, phase, PROFILE).kv_capacity_tokens
    assert rate.batch * (lengths.input_tokens - 1.0) <= capacity
    looser = Slo(slo.ttft_ms * 2, slo.tpot_ms * 2)
    more = instance_throughput(model, node, phase, looser, lengths, PROFILE)
    assert more.req_per_s >= rate.req_per_s * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(MODELS, NODES, BUCKETS, st.integers(1, 256), st.sampled_from(["vllm", "sglang", "trtllm"]))
def test_no_estimate_exceeds_the_data_sheet(model, node, lengths, load, engine) -> None:
    """The calibrated model never exceeds the peak above which a measurement is refused."""
    times = step_times(model, node, Phase.AGGREGATED, PROFILE)
    if times.kv_capacity_tokens < load * (lengths.input_tokens + lengths.output_tokens):
        return
    point = MeasuredPoint(
        model.name, node.gpu.name, model, node.gpu, PointKind.CLOSED_LOOP, engine, node.gpus,
        node.gpus, lengths.input_tokens, lengths.output_tokens, float(load), 0.0, None, None,
    )  # fmt: skip
    guess = estimate_point(point, PROFILE)
    assert guess.ttft_ms > 0
    assert guess.tpot_ms > 0
    assert peak_share(replace(point, ttft_ms=guess.ttft_ms, tpot_ms=guess.tpot_ms)) <= 1.0
