"""Memory besides weights and KV cache grows with the batch, and with what the GPU must emulate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance import catalog
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.engine_overhead import batched_tokens, overhead_bytes
from autoscaler.performance.memory import kv_capacity_tokens

LLAMA = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
H100, A100, B200 = (catalog.gpu(name) for name in ("H100", "A100", "B200"))


def loaded(*args: str, spec: ModelSpec = LLAMA) -> ModelSpec:
    return engine_memory(args).apply_to(spec)


def test_memory_is_what_the_driver_reports() -> None:
    sizes = {name: catalog.gpu(name).mem_gb for name in ("H100", "H200", "B200", "MI300X")}
    assert sizes == pytest.approx(
        {"H100": 85.0, "H200": 150.1, "B200": 191.5, "MI300X": 206.1}, abs=0.1
    )


def test_the_default_batch_depends_on_the_gpu() -> None:
    assert [batched_tokens(LLAMA, gpu) for gpu in (A100, H100, B200)] == [2048, 8192, 16384]
    assert batched_tokens(loaded("--max-num-batched-tokens=4k"), H100) == 4000
    assert batched_tokens(replace(LLAMA, max_seqs=4096), A100) == 4096


def test_a_larger_batch_leaves_less_for_the_cache() -> None:
    """An iteration of 20,000 tokens of Llama 3.1 8B took 2.07 GiB on an RTX 3090."""
    few, many = (loaded(f"--max-num-batched-tokens={n}") for n in (2048, 20_000))
    grown = overhead_bytes(many, A100, 1) - overhead_bytes(replace(few, max_seqs=1), A100, 1)
    assert 1.7 < grown / 2**30 < 2.4
    assert kv_capacity_tokens(many, A100, 1) < kv_capacity_tokens(few, A100, 1)


def test_an_engine_without_graphs_has_more_cache() -> None:
    eager = loaded("--enforce-eager")
    assert kv_capacity_tokens(eager, A100, 1) > kv_capacity_tokens(LLAMA, A100, 1)


def test_formats_without_units_take_workspaces() -> None:
    experts = catalog.model("openai/gpt-oss-120b")
    assert overhead_bytes(experts, H100, 1) > overhead_bytes(experts, B200, 1) + 3e9


def test_sampler_and_layers_share_the_peak() -> None:
    """The logits of 1,024 sequences take 2.5 GiB at most, and the smaller layers nothing more.
    Experts and encoders work before the sampler."""
    few, many = (replace(LLAMA, max_seqs=n, eager=True) for n in (1, 1024))
    experts = replace(many, experts=64, experts_per_token=2, moe_intermediate=512)
    grown = overhead_bytes(many, A100, 1) - overhead_bytes(few, A100, 1)
    assert 1.0 < grown / 2**30 < 2.5
    assert overhead_bytes(experts, A100, 1) == overhead_bytes(many, A100, 1)


def test_tensor_parallelism_divides_the_work_of_encoders() -> None:
    plain, seeing = LLAMA, replace(LLAMA, tower_bytes=1e9)
    one, two = (overhead_bytes(seeing, H100, n) - overhead_bytes(plain, H100, n) for n in (1, 2))
    assert 0.0 < two == one / 2


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5", ""])
def test_a_batch_must_be_a_whole_number(value: str) -> None:
    with pytest.raises(ValueError, match="--max-num-batched-tokens"):
        loaded(f"--max-num-batched-tokens={value}")
