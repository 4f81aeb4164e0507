"""Bytes of quantised checkpoints: every method that vLLM loads is supported; others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config
from autoscaler.templates.engine_filter import VLLM

LLAMA_70B: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096, "head_dim": 128,
    "num_attention_heads": 64, "num_key_value_heads": 4, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936, "tie_word_embeddings": False,
}  # fmt: skip
# 80 layers have 855,638,016 matrix weights each. Input and output embeddings stay in BF16.
LAYERS = 80 * 855_638_016
BESIDE = 2 * 2 * 128256 * 8192


def of(how: dict[str, Any] | None, config: dict[str, Any] = LLAMA_70B) -> ModelSpec:
    return from_config("x", {**config, "quantization_config": how} if how else config)


def group(**weights: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": weights}


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{index}": one for index, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": ["lm_head"],
            **more}  # fmt: skip


@pytest.mark.parametrize(
    ("how", "dtype", "bits"),
    [
        (compressed(group(num_bits=8, type="int", strategy="channel")), "int8", 8),
        (compressed(group(num_bits=4, type="int", group_size=128)), "int4", 4 + 16 / 128),
        (compressed(group(num_bits=4, type="int", group_size=32, symmetric=False)), "int4", 4.625),
        (compressed(group(num_bits=8, type="float")), "fp8", 8),
        (compressed(group(num_bits=4, type="float", group_size=16)), "fp4", 4.5),
        (compressed(group(num_bits=4, type="float", group_size=32)), "mxfp4", 4.25),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "int4", 3 + 19 / 128),
        ({"quant_method": "gptq", "bits": 2, "group_size": 64}, "int4", 2 + 18 / 64),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128),
        ({"w_bit": 4, "q_group_size": 128, "zero_point": True}, "int4", 4 + 20 / 128),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True,
          "bnb_4bit_use_double_quant": True}, "int4", 4 + 8.125 / 64),
        ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, "int4", 4.5),
        ({"quant_method": "hqq", "quant_config": {
            "weight_quant_params": {"nbits": 4, "group_size": 64}}}, "int4", 4.5),
        ({"quant_method": "torchao", "quant_type": {"default": {
            "_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}}, "int4", 4.25),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8", 8),
        ({"quant_method": "torchao", "quant_type": {"default": {
            "_type": "Float8DynamicActivationFloat8WeightConfig", "_data": {}}}}, "fp8", 8),
        ({"quant_method": "quark", "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3"}}, "exclude": ["lm_head"]}, "fp8", 8),
        ({"quant_method": "quark", "global_quant_config": {
            "weight": {"dtype": "fp4", "group_size": 32}}}, "mxfp4", 4.25),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 8),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, "fp4", 4.5),
        ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, "fp8", 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8", 8),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32,
          "data_type": "mx_fp4"}, "mxfp4", 4.25),
        ({"quant_method": "mxfp8"}, "fp8", 8.25),
    ],
)  # fmt: skip
def test_weights_take_the_bits_of_their_method_and_its_scales(
    how: dict[str, Any], dtype: str, bits: float
) -> None:
    found = of(how)
    assert found.weight_dtype == dtype
    assert found.weight_bytes == pytest.approx(LAYERS * bits / 8 + BESIDE, rel=2e-4)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"quant_method": "eetq"}, "eetq"),
        ({"quant_method": "gguf"}, "gguf"),
        ({"quant_method": ""}, "quant_method"),
        ({"bits": 4}, "quant_method"),
        ({"quant_method": "gptq", "bits": 5}, "bits"),
        ({"quant_method": "awq"}, "bits"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        ({"quant_method": "torchao", "quant_type": "int3_weight_only"}, "int3_weight_only"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp12"}}}, "fp12"),
        ({"quant_method": "modelopt", "quant_algo": "W2A2"}, "W2A2"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "X"}, "kv_cache"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        (compressed(group(num_bits=6, type="float")), "num_bits"),
        (compressed(group(num_bits=4, type="int"), format="marlin-24"), "marlin-24"),
        (compressed(), "config_groups"),
        (compressed(group(num_bits=8, type="int"), kv_cache_scheme={"num_bits": 4}), "num_bits"),
        (compressed({"targets": ["re:((a+)+)+$"], "weights": None}), "targets"),
    ],
)
def test_an_unknown_quantisation_is_refused_by_key_and_value(
    how: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidValue, match=named) as refused:
        of(how)
    assert "quantization_config" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_groups_of_a_mixed_checkpoint_count_by_their_targets() -> None:
    attention, mlp = 80 * 150_994_944, 80 * 704_643_072
    how = compressed(
        {"targets": ["re:.*norm.*"], "weights": None},
        {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
        {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    )
    assert of(how).weight_bytes == pytest.approx(attention + mlp * 4.5 / 8 + BESIDE, rel=2e-4)


def test_ignored_layers_stay_in_their_own_dtype() -> None:
    how = compressed(group(num_bits=8, type="float"))
    how["ignore"] = ["lm_head", *(f"model.layers.{n}.mlp.down_proj" for n in range(10))]
    down = 10 * 8192 * 28672
    assert of(how).weight_bytes == pytest.approx(of(None).weight_bytes - LAYERS + down, rel=1e-4)


def test_a_rule_for_the_second_layer_does_not_mean_the_twentieth() -> None:
    how = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["model.layers.2.*"]}
    one = 855_638_016
    assert of(how).weight_bytes == pytest.approx(LAYERS + one + BESIDE, rel=2e-4)


def test_only_experts_are_quantised_if_other_layers_are_ignored() -> None:
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"]
    how = compressed(group(num_bits=4, type="int", group_size=32))
    how["ignore"] = ignore
    found, whole = of(how, EXPERTS), of(None, EXPERTS)
    experts = 94 * 128 * 3 * 4096 * 1536
    saved = experts * (2 - (4 + 16 / 32) / 8)
    assert found.weight_bytes == pytest.approx(whole.weight_bytes - saved, rel=1e-6)
    assert found.dense_bytes == pytest.approx(2.0)
    assert found.expert_bytes == pytest.approx(4.5 / 8)


@pytest.mark.parametrize(
    "how",
    [
        compressed(group(num_bits=8, type="float"),
                   kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}),
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"},
    ],
)  # fmt: skip
def test_a_checkpoint_with_a_kv_cache_scheme_takes_half_the_cache(how: dict[str, Any]) -> None:
    assert of(how).kv_bytes_per_token == of(None).kv_bytes_per_token / 2


@pytest.mark.parametrize(
    ("how", "config", "gpus", "why"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, EXPERTS, {1, 2, 4}, "192"),
        ({"quant_method": "fp8"}, EXPERTS, {1, 2, 4, 8}, ""),
        (None, EXPERTS, {1, 2, 4, 8}, ""),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128},
         {**LLAMA_70B, "intermediate_size": 29568}, {1}, "29568"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, LLAMA_70B, {1}, "bitsandbytes"),
        (None, {**LLAMA_70B, "num_attention_heads": 40, "num_key_value_heads": 10,
                "head_dim": 128}, {1, 2}, "KV heads"),
    ],
)  # fmt: skip
def test_tensor_parallel_sizes_keep_blocks_and_groups_whole(
    how: dict[str, Any] | None, config: dict[str, Any], gpus: set[int], why: str
) -> None:
    found = of(how, config)
    assert {n for n in (1, 2, 4, 8) if not found.split_refusal(n)} == gpus
    assert why in found.split_refusal(8)


def test_int8_activations_need_a_gpu_with_int8_products() -> None:
    how = compressed({**group(num_bits=8, type="int"), "input_activations": {"num_bits": 8}})
    found = of(how)
    assert VLLM.runs(found, NodeSlice(catalog.gpu("H100"), 4))
    assert "INT8" in VLLM.refusal(found, NodeSlice(catalog.gpu("B200"), 4))


def test_a_name_in_int8_counts_as_int8_and_one_in_gguf_is_refused() -> None:
    found = catalog.model("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8")
    assert found.weight_dtype == "int8"
    assert found.weight_bytes < 0.6 * catalog.entry("meta-llama/Llama-3.1-8B").spec.weight_bytes
    with pytest.raises(InvalidValue, match="GGUF"):
        catalog.model("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF")


def test_fp8_in_a_name_means_blocks_except_for_publishers_of_row_scales() -> None:
    name = "Qwen3-30B-A3B-Instruct-2507-FP8"
    assert "blocks of 128" in catalog.model(f"Qwen/{name}").split_refusal(8)
    assert not catalog.model(f"RedHatAI/{name}-dynamic").split_refusal(8)
