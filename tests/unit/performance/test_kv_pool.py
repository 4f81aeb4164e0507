"""The KV cache is divided into blocks as vLLM divides it. Expected figures come from its logs."""

from __future__ import annotations

import pytest

from autoscaler.domain.cache_layers import CacheLayers
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.kv_pool import kv_pool
from autoscaler.performance.memory import cache_of
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import step_times

GIB = 2**30
# Qwen3.5-27B: 16 layers with 4 KV heads of 256, and 48 gated delta nets with a state of 3.2 MB.
HYBRID = (CacheLayers(16, 1 / 16, 4), CacheLayers(48, 0.0, 1, 0, 3_207_168.0))
# Qwen3.6-35B-A3B: 10 layers with 2 KV heads, and 30 gated delta nets.
SMALL_HYBRID = (CacheLayers(10, 0.1, 2), CacheLayers(30, 0.0, 1, 0, 2_146_304.0))
# Gemma 4 31B: 50 layers with a window of 1,024 and 16 heads of 256, 10 full with 4 heads of 512.
WINDOWS = (CacheLayers(50, 16_384 / 901_120, 16, 1024), CacheLayers(10, 8192 / 901_120, 4))


def test_states_of_recurrent_layers_take_blocks_of_the_same_pool() -> None:
    """vLLM 0.23 on two GPUs logged 161 blocks and 123,399 tokens for 3.86 GiB per GPU."""
    pool = kv_pool(HYBRID, 65_536.0, 3.86 * GIB, 2, 2048)
    assert pool.state_blocks == 161
    assert pool.reported_tokens(122_633) == pytest.approx(123_399, abs=1)


@pytest.mark.parametrize(
    ("layers", "token_bytes", "gib", "tp", "longest", "logged"),
    [
        (HYBRID, 32_768.0, 4.99, 2, 131_072, 302_921),
        (SMALL_HYBRID, 10_240.0, 6.01, 1, 131_072, 569_878),
        (SMALL_HYBRID, 10_240.0, 17.02, 2, 262_144, 3_382_054),
    ],
)
def test_prefix_caching_keeps_two_states_per_sequence(
    layers: tuple[CacheLayers, ...], token_bytes: float, gib: float, tp: int, longest: int,
    logged: int,
) -> None:  # fmt: skip
    """The KV cache is in FP8, so a block holds twice as many tokens."""
    pool = kv_pool(layers, token_bytes, gib * GIB, tp, 8192, state_copies=2)
    assert pool.reported_tokens(longest) == pytest.approx(logged, rel=0.004)


def test_layers_with_a_window_keep_only_the_window() -> None:
    """vLLM 0.21 logged about 525,000 tokens for 50 GB; 0.20 kept all tokens, about 55,000."""
    pool = kv_pool(WINDOWS, 901_120.0, 50e9, 1, 2048)
    assert pool.reported_tokens(131_072) == pytest.approx(525_000, rel=0.1)
    whole = tuple(CacheLayers(one.count, one.share, one.kv_heads) for one in WINDOWS)
    assert kv_pool(whole, 901_120.0, 50e9, 1, 2048).longest_tokens() == pytest.approx(
        55_000, rel=0.02
    )


def test_short_sequences_leave_room_for_fewer_tokens_than_long_ones() -> None:
    pool = kv_pool(WINDOWS, 901_120.0, 50e9, 1, 2048)
    assert pool.tokens_at(500.0) < pool.tokens_at(5000.0) < pool.tokens_at(50_000.0)
    assert pool.tokens_at(50_000.0) < pool.longest_tokens() + 2048


def test_heads_of_each_kind_divide_among_gpus_on_their_own() -> None:
    """With eight GPUs the four heads of full layers are copied, the sixteen others divided."""
    pages = [kv_pool(WINDOWS, 901_120.0, GIB, tp, 2048).block_bytes for tp in (1, 4, 8)]
    assert pages[1] == pages[0] / 4
    assert pages[2] == pages[0] / 8


def test_without_memory_there_are_no_blocks() -> None:
    pool = kv_pool(HYBRID, 65_536.0, 0.0, 1, 2048)
    assert pool.blocks == 0 == pool.longest_tokens()


def test_equal_layers_store_their_bytes_per_token() -> None:
    pool = kv_pool((CacheLayers(32, 1 / 32, 8),), 131_072.0, 56.21 * GIB, 1, 2048)
    assert pool.longest_tokens() == pytest.approx(460_496, abs=32)  # logged by vLLM on an A100


def test_an_argument_turns_windows_off() -> None:
    spec = catalog.model("google/gemma-3-27b-it")
    whole = engine_memory(("--disable-hybrid-kv-cache-manager",)).apply_to(spec)
    gpu = catalog.gpu("H200")
    assert cache_of(whole, gpu, 1).longest_tokens() < 0.3 * cache_of(spec, gpu, 1).longest_tokens()


def test_a_planned_batch_never_exceeds_the_states_that_fit() -> None:
    spec = catalog.model("Qwen/Qwen3.5-27B-FP8")
    node = NodeSlice(catalog.gpu("L40S"), 1)
    times = step_times(spec, node, Phase.AGGREGATED, default_profile())
    states = cache_of(spec, node.gpu, 1).state_blocks
    assert states is not None
    assert times.max_batch <= states


def test_kinds_of_layers_are_read_from_a_configuration() -> None:
    config = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024,
        "sliding_window_pattern": 6,
    }  # fmt: skip
    found = from_config("x", config).layers_by_cache
    assert {(one.count, one.window, one.kv_heads) for one in found} == {(29, 1024, 4), (5, 0, 4)}
    assert sum(one.count * one.share for one in found) == pytest.approx(1.0)
