"""The roofline terms follow the formulas and change with the hardware as expected."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY
from autoscaler.performance.layer_shapes import experts_touched, layer_shape
from autoscaler.performance.memory import usable_gb
from autoscaler.performance.packaged_profile import default_profile, plain_profile
from autoscaler.performance.profile_codec import decode, encode, make_profile
from autoscaler.performance.roofline import (
    fits,
    kv_capacity_tokens,
    kv_transfer_ms,
    roofline,
)
from autoscaler.performance.step_times import step_times
from autoscaler.performance.throughput import instance_throughput, stage_table

LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
QWEN = catalog.model("Qwen/Qwen3-32B")
MOE = catalog.model("Qwen/Qwen3-30B-A3B")
GPT = catalog.model("openai/gpt-oss-20b")
H100, L4 = catalog.gpu("H100"), catalog.gpu("L4")


def test_dense_layer_weights_follow_from_the_architecture() -> None:
    """A layer has attention with grouped KV heads and a gated MLP (Cauchy eq. 6)."""
    attention = 2 * 4096 * 4096 + 2 * 4096 * 8 * 128
    assert layer_shape(LLAMA).dense_params == pytest.approx(attention + 3 * 4096 * 14336, rel=1e-3)


def test_a_shared_vocabulary_matrix_is_counted_once() -> None:
    spec = catalog.model("Qwen/Qwen3-1.7B")
    attention = 2 * 2048 * (16 + 8) * 128
    assert layer_shape(spec).dense_params == pytest.approx(attention + 3 * 2048 * 6144, rel=1e-3)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama2-70b", "meta-llama/Llama-2-70b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
    ],
)
def test_a_tuned_or_quantised_copy_has_its_architecture(written: str, meant: str) -> None:
    found = catalog.model(written)
    assert (found.name, found.params) == (written, catalog.entry(meant).spec.params)


def test_fewer_bits_take_less_memory_and_the_embeddings_stay() -> None:
    """FP8 halves the body of an 8B model. Its two vocabulary matrices stay in BF16."""
    embeddings = 2 * 4096 * 128256
    stored = catalog.quantized(LLAMA, "fp8").weight_bytes
    assert stored == pytest.approx((LLAMA.params - embeddings) + 2 * embeddings)
    with pytest.raises(InvalidValue, match="quantization"):
        catalog.quantized(LLAMA, "fp3")
    assert catalog.with_kv_cache(LLAMA, "fp8").kv_bytes_per_token == 65536


def test_prefill_is_never_faster_than_the_gpu_can_compute() -> None:
    """The time of Cauchy eq. 4 at full peak is a lower bound."""
    floor_ms = 2 * (LLAMA.params - 2 * 4096 * 128256) * 4096 / (H100.bf16_tflops * 1e12) * 1e3
    assert floor_ms < roofline(LLAMA, H100, 1).prefill_ms(4096) < 10 * floor_ms


def test_decode_is_never_faster_than_reading_the_weights() -> None:
    """The time of Cauchy eq. 10 at full bandwidth is a lower bound."""
    floor_ms = (LLAMA.weight_bytes - 2 * 4096 * 128256) / (H100.mem_bw_gb_s * 1e9) * 1e3
    assert floor_ms < roofline(LLAMA, H100, 1).decode_ms(1, 128) < 4 * floor_ms


def test_a_longer_context_and_a_larger_batch_cost_more() -> None:
    short = roofline(LLAMA, H100, 1).decode_ms(32, 512)
    assert short < roofline(LLAMA, H100, 1).decode_ms(32, 8192)
    assert short < roofline(LLAMA, H100, 1).decode_ms(64, 512)


def test_a_sliding_window_saves_half_of_a_long_context() -> None:
    """In GPT-OSS every other layer attends to only 128 tokens."""
    bound = roofline(GPT, H100, 1)
    grows = bound.decode_ms(64, 16384) - bound.decode_ms(64, 8192)
    full = 64 * 8192 * GPT.kv_bytes_per_token / (H100.mem_bw_gb_s * 1e6)
    assert grows == pytest.approx(0.5 * full / DEFAULT_EFFICIENCY.kv, rel=0.05)


def test_the_number_of_experts_in_use_grows_from_k_to_all() -> None:
    assert experts_touched(MOE, 1) == pytest.approx(8)
    assert 8 < experts_touched(MOE, 16) < 128
    assert experts_touched(MOE, 5000) == pytest.approx(128)
    assert experts_touched(LLAMA, 16) == 0


def test_an_instance_fits_only_if_its_memory_does() -> None:
    assert not fits(QWEN, L4, 1)
    assert kv_capacity_tokens(QWEN, L4, 1) == 0
    assert fits(QWEN, H100, 1)
    left = usable_gb(QWEN, H100, 1) * 1e9 - QWEN.weight_bytes
    expected = left / QWEN.kv_bytes_per_token
    assert kv_capacity_tokens(QWEN, H100, 1) == pytest.approx(expected, abs=16)
    assert kv_capacity_tokens(QWEN, L4, 1, layers=8) > 0


def test_kv_transfer_is_bytes_over_bandwidth() -> None:
    assert kv_transfer_ms(LLAMA, 1000, 25.0) == pytest.approx(1000 * 131072 / 25e9 * 1e3)


def test_a_pass_over_all_layers_is_the_sum_of_its_stages() -> None:
    """The fixed time counts once per stage, because each stage has its own iteration."""
    halves = roofline(LLAMA, H100, 2).prefill_ms(2048, layers=16)
    both = roofline(LLAMA, H100, 2).prefill_ms(2048) + DEFAULT_EFFICIENCY.step_ms
    assert 2 * halves == pytest.approx(both)


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
@pytest.mark.parametrize("model", [QWEN, MOE])
def test_the_stage_table_never_rises_with_layers_nor_with_stages(phase, model) -> None:
    nodes = [NodeSlice(H100, 2), NodeSlice(L4, 8), NodeSlice(L4, 1)]
    table = stage_table(model, nodes, phase, 400.0, Lengths(1155, 211), 6, default_profile())
    assert table.shape == (6, 3, model.layers)
    assert (np.diff(table, axis=2) <= 0).all()
    assert (np.diff(table, axis=0) <= 0).all()
    assert table[0, 0, 0] > 0


def test_the_stage_table_agrees_with_the_scalar_formulas() -> None:
    """One stage has all layers. A brute force over the same batch sizes finds
    the same best batch.
    """
    lengths, slo = Lengths(1000, 200), 40.0
    table = stage_table(LLAMA, [NodeSlice(H100, 1)], Phase.DECODE, slo, lengths, 1, plain_profile())
    best = 0.0
    for batch in range(1, 513):
        step = roofline(LLAMA, H100, 1).decode_ms(batch, 1100)
        # The table counts the hand-over latency only for pipelines.
        if step <= slo and batch * 1100 <= kv_capacity_tokens(LLAMA, H100, 1):
            best = max(best, batch / step * 1e3 / 200)
    assert table[0, 0, -1] == pytest.approx(best, rel=0.05)
    assert table[0, 0, -1] <= best * (1 + 1e-9)


def test_the_stage_table_refuses_the_aggregated_phase() -> None:
    with pytest.raises(InvalidValue, match="phase"):
        stage_table(
            LLAMA, [NodeSlice(H100, 1)], Phase.AGGREGATED, 40.0, Lengths(1, 1), 1, plain_profile()
        )


@pytest.mark.parametrize("phase", list(Phase))
def test_an_instance_keeps_its_slo_and_a_looser_one_gives_no_less(phase: Phase) -> None:
    node, lengths = NodeSlice(H100, 1), Lengths(1155, 211)
    tight = instance_throughput(LLAMA, node, phase, Slo(400, 20), lengths, default_profile())
    loose = instance_throughput(LLAMA, node, phase, Slo(2000, 60), lengths, default_profile())
    assert 0 < tight.req_per_s <= loose.req_per_s
    assert tight.ttft_ms <= 400 + 1e-6
    assert tight.tpot_ms <= 20 + 1e-6


def test_an_instance_that_does_not_fit_has_no_rate() -> None:
    rate = instance_throughput(
        QWEN, NodeSlice(L4, 1), Phase.DECODE, Slo(2000, 50), Lengths(1000, 200), default_profile()
    )
    assert (rate.req_per_s, rate.bound_by) == (0.0, "does not fit")


def test_step_times_survive_pickling() -> None:
    times = step_times(MOE, NodeSlice(H100, 1), Phase.AGGREGATED, default_profile())
    again = pickle.loads(pickle.dumps(times))  # noqa: S301 - bytes of this test
    assert again.decode_ms(8, 900) == times.decode_ms(8, 900)
    assert times.mixed_ms(512, 0, 8, 900) > times.decode_ms(8, 900)


def test_engines_need_no_numpy() -> None:
    """The step times do not import numpy, so simulated engines start fast."""
    code = (
        "import sys; from autoscaler.performance import catalog, packaged_profile, step_times;"
        "import autoscaler.serving.engine_setup;"
        "packaged_profile.default_profile(); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_profile_survives_its_file_and_an_edited_one_is_refused() -> None:
    profile = make_profile(DEFAULT_EFFICIENCY, DEFAULT_EFFICIENCY, {"L4": DEFAULT_EFFICIENCY})
    assert decode(encode(profile)) == profile
    with pytest.raises(InvalidValue, match="content_hash"):
        decode(encode(profile).replace('"L4"', '"A10G"'))
