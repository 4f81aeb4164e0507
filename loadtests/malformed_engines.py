"""Inputs from engines that `loadtests.malformed_files` damages: start logs, metrics, answers of
Prometheus, and configurations of models. Each reader raises UserError for a refused input.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import random
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.memory import kv_capacity_tokens
from executors.engines.metrics_text import is_awake, parse_load
from streams.cli.import_start import import_start
from streams.files.model_source import architecture
from streams.files.user_errors import UserError
from streams.ports.latency_histograms import growth_by_mark, latencies_of
from streams.ports.metric_servers import MARK, summed
from streams.ports.promql import is_vector, rate_of

_CORE = "(EngineCore pid=2) INFO 11-06 10:51:48 "
_V1 = f"""\
(APIServer pid=1) INFO 11-06 10:50:01 [utils.py:2] non-default args: {{'model': 'Qwen/Qwen3-8B', \
'max_model_len': 32768, 'gpu_memory_utilization': 0.92, 'tensor_parallel_size': 1}}
{_CORE}[core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: model='Qwen/Qwen3-8B', \
max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1
{_CORE}[gpu_model_runner.py:3] Model loading took 15.27 GiB memory and 3.1 seconds
{_CORE}[gpu_worker.py:3] Available KV cache memory: 54.10 GiB
{_CORE}[kv_cache_utils.py:1] GPU KV cache size: 393,920 tokens
{_CORE}[kv_cache_utils.py:1] Maximum concurrency for 32,768 tokens per request: 12.02x
{_CORE}[gpu_model_runner.py:6] Graph capturing finished in 2 secs, took 0.50 GiB
"""
_V0 = """\
INFO 03-21 20:15:10 llm_engine.py:240] Initializing an LLM engine (v0.6.4) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=32768, tensor_parallel_size=1
INFO 03-21 20:15:20 model_runner.py:1025] Loading model weights took 14.9888 GB
INFO 03-21 20:15:45 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.16GiB; \
PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is \
53.18GiB.
INFO 03-21 20:15:46 executor_base.py:111] # cuda blocks: 27191, # CPU blocks: 512
INFO 03-21 20:15:46 executor_base.py:116] Maximum concurrency for 32768 tokens per request: 13.2x
"""
_REFUSED = f"""\
{_CORE}[gpu_worker.py:3] Available KV cache memory: 3.18 GiB
(EngineCore pid=2) ERROR 11-06 10:51:48 ValueError: To serve at least one request with the \
models's max seq len (262144), (36.0 GiB KV cache is needed, which is larger than the available \
KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length is \
23120.
"""
_TENSORRT = """\
[11/20/2026-10:15:30] [TRT-LLM] [I] Starting TensorRT LLM v1.2.0
[11/20/2026-10:16:02] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): \
18.41 GiB, available KV cache memory when calculating max tokens: 54.10 GiB, fraction is set 0.9
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 48.69 GiB for max tokens in paged KV cache (398848).
"""
STARTS = (_V1, _V0, _V1.partition("Available")[0] + _REFUSED, _TENSORRT)
"""The last one is of an engine whose logs are refused."""

METRICS = (
    """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 12345.0
vllm:generation_tokens_total{engine="0",model_name="m"} 678.0
vllm:request_success_total{engine="0",finished_reason="stop"} 40.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="28027"} 1.0
""",
    "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n",
)


def _sample(mark: str, value: str, **labels: str) -> dict[str, Any]:
    return {"metric": {MARK: mark, **labels}, "value": [1767607200.123, value]}


_VLLM = {"instance": "10.0.0.1:8000", "engine": "0", "namespace": "prod", "pod": "a-0"}
_SGLANG = {"instance": "10.0.0.2:30000", "engine_type": "decode", "pod": "sglang-decode-0"}
_DYNAMO = {"instance": "10.0.0.3:8000", "dynamo_component": "backend", "dynamo_namespace": "d"}
_TRTLLM = {"instance": "10.0.0.4:8000", "model_name": "m", "engine_type": "trtllm"}
_LLMD = {"pod": "picker-0", "namespace": "llm-d", "endpoint": "metrics"}
ANSWERS = tuple(
    json.dumps(vector)
    for vector in (
        [
            _sample("finished", "3.5", **_VLLM),
            _sample("growth", "0.5", **_VLLM),
            _sample("restarts", "0", **_VLLM),
            _sample("finished", "1.5", **_SGLANG),
            _sample("growth", "-0.5", **_SGLANG),
        ],
        [_sample("finished", "2", **_DYNAMO), _sample("arrived", "1", **_DYNAMO)],
        [_sample("finished", "4", **_LLMD), _sample("arrived", "1")],
        [
            _sample("finished", "2.5", **_TRTLLM),
            _sample("running", "1"),
            _sample("counted", "1"),
            _sample("restarts", "0", **_TRTLLM),
            _sample("growth", "0.25", **_TRTLLM),
        ],
        [{"metric": {}, "value": [1767607200, "7.25"]}],
        [
            _sample(mark, value, le=bound)
            for mark in ("ttft", "tpot", "token", "whole")
            for bound, value in (("0.1", "3"), ("0.5", "8"), ("+Inf", "10"))
        ],
    )
)

_QWEN_3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                            "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
_HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "full_attention_interval": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3
        + ["full_attention"], "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
                      "hidden_act": "gelu_pytorch_tanh"},
    "quantization_config": {
        "quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}}},
    },
}  # fmt: skip
_LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 129280,
    "max_position_embeddings": 163840, "rope_scaling": {"type": "yarn", "factor": 40},
}  # fmt: skip
_WINDOWS: dict[str, Any] = {
    "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024, "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
}  # fmt: skip
_MAMBA: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 12, "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M*-", "intermediate_size": 15680,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128,
    "mamba_head_dim": 80, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "vocab_size": 131072,
}  # fmt: skip
_PARAMS: dict[str, Any] = {
    "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
    "n_kv_heads": 8, "vocab_size": 131072, "norm_eps": 1e-5, "max_seq_len": 131072,
    "moe": {"num_experts": 128, "num_experts_per_tok": 4, "expert_hidden_dim": 4096},
}  # fmt: skip
CONFIGS = tuple(json.dumps(one) for one in (_QWEN_3, _HYBRID, _LATENT, _WINDOWS, _MAMBA, _PARAMS))


def read_log(path: Path, _: int, draw: random.Random) -> None:
    """Import the start of an engine; sometimes the command line states what the log lacks."""
    stated = draw.random() < 0.7
    wanted = argparse.Namespace(
        log=path, gpu="H100", gpus=1, quantization="", into=path.with_name("measurements.json"),
        model="Qwen/Qwen3-8B" if stated and draw.random() < 0.5 else None,
        engine_args="--gpu-memory-utilization=0.9" if stated else None,
    )  # fmt: skip
    wanted.into.unlink(missing_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        assert import_start(wanted) == 0


def read_metrics(path: Path, _: int, __: random.Random) -> None:
    """Read the page /metrics of an engine."""
    try:
        text = path.read_bytes().decode()
        is_awake(text)
        load = parse_load(text)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    counts = (load.in_flight, load.held_kv, load.finished, load.blocks, load.block_tokens)
    assert all(isinstance(one, int) and one >= 0 for one in counts)
    assert 0.0 <= load.tokens < math.inf


def read_answer(path: Path, _: int, draw: random.Random) -> None:
    """Read an answer of Prometheus: a rate, or the latencies."""
    try:
        vector = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {type(error).__name__}") from None
    if not is_vector(vector):
        raise UserError(f"{path}: no vector")
    rate = rate_of(summed(vector))
    assert rate is None or 0.0 <= rate < math.inf
    found = latencies_of(growth_by_mark(vector, MARK), 60.0, draw.random() < 0.5)
    for one in (found.ttft, found.tpot) if found else ():
        assert one is None or all(math.isfinite(value) for value in one.rates)
    if rate is None and found is None:
        raise UserError(f"{path}: unknown")


def read_config(path: Path, _: int, __: random.Random) -> None:
    """Read the configuration of a model, and place the model on GPUs."""
    try:
        spec = architecture(str(path), Path())
    except InvalidValue as error:
        raise UserError(f"{path}: {error}") from None
    assert 0.0 < spec.weight_bytes < math.inf
    assert 0.0 < spec.active_params <= 2.0 * spec.params
    assert math.isfinite(kv_capacity_tokens(spec, catalog.gpu("H200"), 8))
