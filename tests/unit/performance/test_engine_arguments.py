"""vLLM arguments that affect memory are either modelled or refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.memory import kv_capacity_tokens, usable_gb

LLAMA = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
L4 = catalog.gpu("L4")


def loaded(*args: str, spec: ModelSpec = LLAMA) -> ModelSpec:
    return engine_memory(args).apply_to(spec)


def test_the_share_of_memory_counts() -> None:
    assert kv_capacity_tokens(loaded("--gpu-memory-utilization=0.6"), L4, 1) == 0.0
    more = loaded("--gpu_memory_utilization", "0.95")
    assert usable_gb(more, L4, 1) - usable_gb(LLAMA, L4, 1) == pytest.approx(0.05 * L4.mem_gb)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_a_kv_cache_in_fp8_holds_twice_the_tokens(dtype: str) -> None:
    found = loaded("--kv-cache-dtype", dtype)
    assert found.kv_bytes_per_token == LLAMA.kv_bytes_per_token / 2
    assert kv_capacity_tokens(found, L4, 1) == pytest.approx(2 * kv_capacity_tokens(LLAMA, L4, 1))


def test_weights_quantised_on_load_take_the_quantised_size() -> None:
    assert loaded("-q", "fp8").weight_dtype == "fp8"
    assert loaded("--quantization=bitsandbytes").weight_bytes < 0.45 * LLAMA.weight_bytes


def test_expert_parallelism_keeps_experts_whole() -> None:
    blocks = catalog.model("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8")
    assert blocks.split_refusal(8)
    assert not loaded("--enable-expert-parallel", spec=blocks).split_refusal(8)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--cpu-offload-gb=20",), "--cpu-offload-gb"),
        (("--cpu-offload-gb", "20"), "'20'"),
        (("--speculative-model=eagle",), "--speculative-config"),
        (("--num-gpu-blocks-override=100",), "--num-gpu-blocks-override"),
        (("--hf-overrides", "{}"), "--hf-overrides"),
        (("--kv-cache-dtype=int3",), "int3"),
        (("--kv-cache-dtype",), "--kv-cache-dtype"),
        (("--gpu-memory-utilization=90",), "0.05 to 1"),
        (("--gpu-memory-utilization", "much"), "much"),
        (("--gpu-mem=0.5",), "in full: --gpu-memory-utilization"),
        (("--dtype=float64",), "float64"),
        (("--kv-cache-memory-bytes=much",), "much"),
        (("--kv-cache-memory=1G",), "--kv-cache-memory-bytes"),
        (("--quantization=int3",), "int3"),
    ],
)
def test_an_argument_that_is_not_modelled_is_refused_by_name(
    args: tuple[str, ...], named: str
) -> None:
    with pytest.raises(InvalidValue, match=named):
        engine_memory(args)


def test_speculative_decoding_changes_no_prediction() -> None:
    draft = '{"method": "ngram", "num_speculative_tokens": 4}'
    assert loaded("--speculative-config", draft) == LLAMA
    assert loaded("-sc", draft) == LLAMA
    assert loaded("--speculative-config.method=eagle") == LLAMA


def test_a_limit_of_the_kv_cache_and_32_bits_count() -> None:
    """Weights and cache take 32 bits per value instead of 16. The cache stays within its limit."""
    wide = loaded("--dtype=float32", "--kv-cache-memory-bytes", "1G")
    assert wide.weight_bytes == 2 * LLAMA.weight_bytes
    assert wide.kv_bytes_per_token == 2 * LLAMA.kv_bytes_per_token
    gpu = catalog.gpu("H100-SXM")
    assert kv_capacity_tokens(wide, gpu, 2) == 2 * 2**30 / wide.kv_bytes_per_token
    assert kv_capacity_tokens(LLAMA, gpu, 2) > kv_capacity_tokens(wide, gpu, 2)
    awq = catalog.model("Qwen/Qwen2.5-32B-Instruct-AWQ")
    with pytest.raises(InvalidValue, match="--dtype"):
        loaded("--dtype=float32", spec=awq)


def test_a_quantisation_that_the_checkpoint_does_not_have_is_refused() -> None:
    awq = catalog.model("Qwen/Qwen2.5-32B-Instruct-AWQ")
    assert loaded("--quantization=awq_marlin", spec=awq) == awq
    for args, spec in ((("-q", "fp8"), awq), (("-q", "awq"), LLAMA)):
        with pytest.raises(InvalidValue, match="--quantization"):
            loaded(*args, spec=spec)


def test_other_arguments_change_nothing() -> None:
    args = ("--trust-remote-code", "--enable-lora", "--swap-space=4")
    assert loaded(*args) == LLAMA


@pytest.mark.parametrize(
    "args",
    [
        ["-O0"],
        ["-cc.cudagraph_mode=NONE"],
        ["--compilation-config", '{"mode": 3, "cudagraph_mode": "NONE"}'],
        ['--compilation-config={"cudagraph_mode":"none"}'],
        ["--compilation-config.cudagraph_mode=NONE"],
    ],
)
def test_every_form_without_cuda_graphs_counts_as_eager(args: list[str]) -> None:
    assert engine_memory(args).eager


@pytest.mark.parametrize("args", [["-O3"], ["-cc.cudagraph_mode=FULL"], ["--no-enforce-eager"]])
def test_other_compilation_keeps_its_cuda_graphs(args: list[str]) -> None:
    assert not engine_memory(args).eager


def test_a_text_only_engine_loads_no_encoder() -> None:
    spec = replace(catalog.model("Qwen/Qwen3-8B"), tower_bytes=1e9)
    whole, text = (engine_memory(args).apply_to(spec) for args in ([], ["--language-model-only"]))
    assert spec.tower_bytes > 0.0 and text.tower_bytes == 0.0
    assert whole.weight_bytes - text.weight_bytes == pytest.approx(spec.tower_bytes)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--num-redundant-experts=32", "copies of experts are not planned"),
        ("--no-enable-chunked-prefill", "prompts are planned in chunks"),
    ],
)
def test_an_argument_that_plans_do_not_follow_is_named(argument: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        engine_memory([argument])
