"""vLLM arguments that change the memory of a model, applied to its architecture.

Arguments that change the memory in a way that is not modelled here are refused by name, because
plans would be wrong. Facts about vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.catalog import quantized

_KV_BITS = {
    "auto": 0.0, "bfloat16": 16.0, "float16": 16.0, "half": 16.0, "fp8": 8.0, "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0, "fp8_inc": 8.0, "nvfp4": 4.5,
}  # fmt: skip
"""Bits of one number in the KV cache; 0: as in the checkpoint."""
_IN_FLIGHT = {"fp8": "fp8", "bitsandbytes": "int4"}
"""Values of --quantization that quantise an unquantised checkpoint at load time, with the resulting
weight format."""
_CHECKPOINT_METHODS = (
    "auto-round", "awq", "awq_marlin", "compressed-tensors", "fbgemm_fp8", "gptq", "gptq_marlin",
    "hqq", "inc", "modelopt", "modelopt_fp4", "moe_wna16", "mxfp4", "quark", "torchao",
)  # fmt: skip
_DTYPES = ("auto", "bfloat16", "float16", "half", "float", "float32")
_FLOAT32 = ("float", "float32")
_UNITS = {
    "": 1,
    "k": 1e3,
    "m": 1e6,
    "g": 1e9,
    "t": 1e12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
"""vLLM's suffixes of a number of bytes."""
_SHARE, _KV, _KV_BYTES, _QUANTIZATION, _DTYPE, _EXPERTS = (
    "--gpu-memory-utilization", "--kv-cache-dtype", "--kv-cache-memory-bytes", "--quantization",
    "--dtype", "--enable-expert-parallel",
)  # fmt: skip
_SHORT = {
    "-q": _QUANTIZATION, "-ep": _EXPERTS, "-sc": "--speculative-config",
    "-dcp": "--decode-context-parallel-size", "-pcp": "--prefill-context-parallel-size",
    "-cc": "--compilation-config", "-O0": "--compilation-config",
    "-O": "--compilation-config",
}  # fmt: skip
_EAGER, _BATCHED, _SEQS, _PREFIXES, _NO_PREFIXES, _WHOLE = (
    "--enforce-eager", "--max-num-batched-tokens", "--max-num-seqs", "--enable-prefix-caching",
    "--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager",
)  # fmt: skip
_RUNNER, _TASK, _CONVERT = "--runner", "--task", "--convert"
_GENERATES = ("auto", "generate", "draft", "none", "transcription")
_TEXT_ONLY, _COMPILATION = "--language-model-only", "--compilation-config"
_NO_GRAPHS = re.compile(
    r"-O0\Z|-O(?:\.mode)?=0\Z|\S*\.cudagraph_mode=NONE\Z|.*cudagraph_mode[\"']?\s*:\s*[\"']NONE",
    re.I,
)
_COUNTED = (_RUNNER, _TASK, _CONVERT, _SHARE, _KV, _KV_BYTES, _QUANTIZATION, _DTYPE, _EXPERTS,
            _EAGER, _BATCHED, _SEQS, _PREFIXES, _NO_PREFIXES, _WHOLE, _TEXT_ONLY,
            _COMPILATION)  # fmt: skip
_STATE_COPIES = {_PREFIXES: 2, _NO_PREFIXES: 1}
"""Blocks per sequence in a group of recurrent layers: with prefix caching, vLLM 0.32 keeps the
state at the last full block and the current one."""
_MOST_TOKENS = 10**7
_REFUSED = {
    "--cpu-offload-gb": "weights in the host's memory are not planned",
    "--cpu-offload-params": "weights in the host's memory are not planned",
    "--offload-backend": "weights in the host's memory are not planned",
    "--offload-group-size": "weights in the host's memory are not planned",
    "--offload-num-in-group": "weights in the host's memory are not planned",
    "--offload-prefetch-step": "weights in the host's memory are not planned",
    "--offload-params": "weights in the host's memory are not planned",
    "--kv-cache-memory": "declare --kv-cache-memory-bytes instead",
    "--num-gpu-blocks-override": "declare --gpu-memory-utilization instead",
    "--kv-cache-dtype-skip-layers": "the cache is planned with one dtype",
    "--speculative-model": "declare --speculative-config instead",
    "--hf-overrides": "change the config.json, and declare it as the source",
    "--hf-config-path": "declare that config.json as the source",
    "--decode-context-parallel-size": "the cache is planned as tensor parallelism splits it",
    "--prefill-context-parallel-size": "the cache is planned as tensor parallelism splits it",
    "--no-enable-chunked-prefill": "prompts are planned in chunks",
    "--num-redundant-experts": "copies of experts are not planned",
    "--eplb-config": "copies of experts are not planned",
    "--mamba-cache-dtype": "states are planned as the config.json has them",
    "--mamba-ssm-cache-dtype": "states are planned as the config.json has them",
}


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Effect of arguments on memory.

    memory_share: share of each GPU's memory for the engine; 0: not set. kv_bits: bits of one number
    in the KV cache; 0: as in the checkpoint. kv_cache_bytes: size of each GPU's KV cache; 0: not
    set. quantization: weight format after loading; "": as in the checkpoint. method: value of
    --quantization. float32: whether weights and KV cache take 32 bits. expert_parallel: whether
    experts stay whole. batched_tokens, max_seqs: most tokens and sequences of an iteration; 0: not
    set. eager: whether there are no CUDA graphs. state_copies: blocks per sequence in a group of
    recurrent layers; 0: as without arguments. whole_windows: whether layers with a window keep the
    whole sequence. pooling: whether the engine answers without generating tokens. text_only:
    whether the engine loads no encoders of images and audio.
    """

    memory_share: float = 0.0
    kv_bits: float = 0.0
    kv_cache_bytes: float = 0.0
    float32: bool = False
    quantization: str = ""
    method: str = ""
    expert_parallel: bool = False
    batched_tokens: int = 0
    max_seqs: int = 0
    eager: bool = False
    state_copies: int = 0
    whole_windows: bool = False
    pooling: bool = False
    text_only: bool = False

    def apply_to(self, spec: ModelSpec) -> ModelSpec:
        """`spec` as an engine with these arguments loads it. Raises InvalidValue if the engine
        cannot load the checkpoint."""
        if self.quantization and spec.weight_dtype not in ("bf16", self.quantization):
            stored = f"a source that is not quantised; this one is in {spec.weight_dtype}"
            raise InvalidValue(_QUANTIZATION, self.method, stored)
        if self.method and not self.quantization and spec.weight_dtype == "bf16":
            raise InvalidValue(_QUANTIZATION, self.method, "a source with such weights")
        if self.text_only:
            rest = spec.weight_bytes - spec.tower_bytes
            spec = replace(spec, weight_bytes=rest, tower_bytes=0.0)
        if self.quantization and spec.weight_dtype == "bf16":
            spec = quantized(spec, self.quantization)
        if self.float32:
            spec = _in_float32(spec)
        if self.memory_share:
            spec = replace(spec, memory_share=self.memory_share)
        if self.kv_cache_bytes:
            spec = replace(spec, kv_cache_bytes=self.kv_cache_bytes)
        kv_bits = self.kv_bits or (32.0 if self.float32 else 0.0)
        if kv_bits:
            now = spec.kv_bytes_per_token * kv_bits / spec.kv_bits
            spec = replace(spec, kv_bytes_per_token=now, kv_bits=kv_bits)
        if self.expert_parallel and spec.experts:
            kept = tuple(one for one in spec.splits if not one.expert)
            spec = replace(spec, splits=kept)
        if self.whole_windows:
            whole = (replace(one, window=0) for one in spec.layers_by_cache)
            spec = replace(spec, cache_layers=tuple(whole))
        return replace(
            spec,
            max_seqs=self.max_seqs or spec.max_seqs,
            batched_tokens=self.batched_tokens or spec.batched_tokens,
            eager=self.eager or spec.eager,
            pooling=self.pooling or spec.pooling,
            state_copies=self.state_copies or spec.state_copies,
        )


def _in_float32(spec: ModelSpec) -> ModelSpec:
    """`spec` with weights of 32 bits. Raises InvalidValue for a quantised checkpoint."""
    if spec.weight_dtype != "bf16":
        stored = f"a source that is not quantised; this one is in {spec.weight_dtype}"
        raise InvalidValue(_DTYPE, "float32", stored)
    experts = 4.0 if spec.experts else 0.0
    return replace(
        spec, weight_bytes=2.0 * spec.weight_bytes, dense_bytes=4.0, expert_bytes=experts
    )


AS_LOADED = EngineMemory()
"""The effect if no argument changes the memory."""


def engine_memory(args: Sequence[str]) -> EngineMemory:
    """The memory effect of `args`. An argument and its value are one word (--dtype=half) or two.

    Raises InvalidValue for a refused argument; its `field` is the argument.
    """
    found = AS_LOADED
    for flag, value in _pairs(args):
        if flag == _SHARE:
            found = replace(found, memory_share=_share(value))
        elif flag == _KV:
            if value not in _KV_BITS:
                raise InvalidValue(flag, value, ", ".join(_KV_BITS))
            found = replace(found, kv_bits=_KV_BITS[value])
        elif flag == _QUANTIZATION:
            if value not in _IN_FLIGHT and value not in _CHECKPOINT_METHODS:
                allowed = ", ".join((*_IN_FLIGHT, *_CHECKPOINT_METHODS))
                raise InvalidValue(flag, value, allowed)
            found = replace(found, quantization=_IN_FLIGHT.get(value, ""), method=value)
        elif flag == _KV_BYTES:
            found = replace(found, kv_cache_bytes=_bytes(value))
        elif flag == _DTYPE:
            if value not in _DTYPES:
                raise InvalidValue(flag, value, ", ".join(_DTYPES))
            found = replace(found, float32=value in _FLOAT32)
        elif flag == _BATCHED:
            found = replace(found, batched_tokens=_count(flag, value))
        elif flag == _SEQS:
            found = replace(found, max_seqs=_count(flag, value))
        elif flag == _EXPERTS:
            found = replace(found, expert_parallel=True)
        elif flag in (_RUNNER, _TASK, _CONVERT):
            found = replace(found, pooling=found.pooling or value not in _GENERATES)
        elif flag == _EAGER or (flag == _COMPILATION and _NO_GRAPHS.match(value)):
            found = replace(found, eager=True)
        elif flag == _TEXT_ONLY:
            found = replace(found, text_only=True)
        elif flag in (_PREFIXES, _NO_PREFIXES):
            found = replace(found, state_copies=_STATE_COPIES[flag])
        elif flag == _WHOLE:
            found = replace(found, whole_windows=True)
    return found


def _pairs(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each argument that changes memory, with its value. Raises InvalidValue for a refused
    argument."""
    for arg, following in zip(args, (*args[1:], ""), strict=False):
        written, equals, value = arg.partition("=")
        name = written.replace("_", "-").partition(".")[0]
        if not name.startswith("-"):
            continue
        name = _SHORT.get(name, name)
        if name in _REFUSED:
            raise InvalidValue(
                written, value if equals else following, f"not set: {_REFUSED[name]}"
            )
        if name == _COMPILATION:
            # The option is written in many ways: -O0, -cc.KEY=VALUE, or with a JSON value.
            yield name, following if written in (_COMPILATION, "-cc") and not equals else arg
        elif name in _COUNTED:
            yield name, value if equals else following
        elif name.startswith("--"):
            longer = [one for one in (*_COUNTED, *_REFUSED) if one.startswith(name)]
            if longer:
                raise InvalidValue(written, "shortened", f"the argument in full: {longer[0]}")


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0.05 <= share <= 1.0:
        raise InvalidValue(_SHARE, value, "a share from 0.05 to 1")
    return share


def _count(flag: str, value: str) -> int:
    """A whole number in a form that vLLM accepts: 8192, 8k, 8K."""
    unit = value[-1:] if value[-1:] in _UNITS else ""
    try:
        number = float(value.removesuffix(unit) if unit else value) * _UNITS[unit]
    except ValueError:
        number = 0.0
    if not 1.0 <= number <= _MOST_TOKENS or not number.is_integer():
        raise InvalidValue(flag, value, f"a whole number from 1 to {_MOST_TOKENS}")
    return int(number)


def _bytes(value: str) -> float:
    """A number of bytes in a form that vLLM accepts: 67108864, 64M, 1.5g."""
    unit = value[-1:] if value[-1:] in _UNITS else ""
    try:
        amount = float(value.removesuffix(unit) if unit else value) * _UNITS[unit]
    except ValueError:
        amount = 0.0
    if not 1.0 <= amount <= 1e15:
        raise InvalidValue(_KV_BYTES, value, "a number of bytes, such as 67108864 or 25G")
    return amount
