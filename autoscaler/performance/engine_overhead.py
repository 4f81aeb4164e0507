"""GPU memory that an engine takes besides weights and KV cache.

vLLM runs one iteration of the largest batch before it allocates the KV cache, and measures the peak
of its activations. That peak depends on the tokens and sequences of the batch. Further memory goes
to CUDA graphs, to the communication between GPUs, and to libraries. The factors are fitted to
public start-up logs (`loadtests/data/start_logs.json`).
"""

from __future__ import annotations

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec

_GIB = 2.0**30
_BATCHES = (160.0, 16384), (70.0, 8192), (0.0, 2048)
"""vLLM's default of tokens per iteration, by GPU memory in GiB from which on it holds."""
_SMALL_BATCH_ON, _AMD = ("A100", "A800"), "MI"
_BYTES = 2.0
BYTES_PER_LOGIT = 14.0
"""The logits in 2 bytes and in 4, the probabilities, and the noise of the sampler."""
_MXFP4_PADDING = 0.055
"""Share by which experts in MXFP4 grow on GPUs without FP4 units, whose kernels pad their sides."""
_BASE_GIB, _EXPERTS_GIB, _STATES_GIB, _ENCODER_GIB = 0.25, 0.5, 0.8, 0.25
_EMULATED_GIB, _EMULATED_EXPERTS_GIB = 0.5, 1.2
"""For weights in a format without units on the GPU: kernels that widen them need workspaces."""
_GRAPHS_GIB, _GRAPHS_GIB_BY_SEQUENCE = 0.2, 0.3 / 256
_LINKED_GIB, _UNLINKED_GIB = 1.0, 0.5


def batched_tokens(model: ModelSpec, gpu: GpuSpec) -> int:
    """Maximal tokens per iteration: as declared, otherwise vLLM's default for `vllm serve` on
    `gpu`, but at least one token per sequence."""
    gib = gpu.mem_gb * 1e9 / _GIB
    gib = 0.0 if gpu.name.startswith(_SMALL_BATCH_ON) else gib
    gib = min(gib, 100.0) if gpu.name.startswith(_AMD) else gib
    default = next(tokens for least, tokens in _BATCHES if gib >= least)
    return max(model.batched_tokens or default, model.max_seqs)


def overhead_bytes(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    """Bytes per GPU besides weights and KV cache, if `tp` GPUs share each layer of `model`."""
    gib = _BASE_GIB
    if tp > 1:
        gib += _LINKED_GIB if gpu.interconnect_gb_s > gpu.pcie_gb_s else _UNLINKED_GIB
    if not model.eager:
        gib += _GRAPHS_GIB + _GRAPHS_GIB_BY_SEQUENCE * min(model.max_seqs, 512)
    # The sampler runs after the layers, so the larger of both determines the peak.
    logits = BYTES_PER_LOGIT * float(model.max_seqs) * model.vocab
    peak = max(_layers_peak(model, gpu, tp), logits)
    return gib * _GIB + peak + _padding(model, gpu, tp)


def _layers_peak(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    """Bytes of the intermediate results and workspaces of one iteration before the sampler."""
    gib = _EXPERTS_GIB if model.is_moe else 0.0
    if not _has_units(model, gpu):
        gib += _EMULATED_EXPERTS_GIB if model.is_moe else _EMULATED_GIB
    # Encoders and recurrent layers are split like the others.
    split = _STATES_GIB if model.state_bytes else 0.0
    split += _ENCODER_GIB if model.tower_bytes else 0.0
    gib += split / tp
    return gib * _GIB + _activations(model, batched_tokens(model, gpu), tp)


def _activations(model: ModelSpec, tokens: int, tp: int) -> float:
    """Bytes of the largest layer's intermediate results for `tokens` tokens."""
    wide = 3.0 * model.intermediate / tp
    if model.is_moe:
        # Each of a token's experts has its own results, and its part of the output.
        routed = 3.0 * (model.moe_intermediate or model.intermediate) / tp + model.hidden
        wide = max(wide, model.experts_per_token * routed)
    return _BYTES * tokens * (wide + 3.0 * model.hidden)


def _has_units(model: ModelSpec, gpu: GpuSpec) -> bool:
    """Whether `gpu` multiplies weights of the model's format without widening them."""
    units = {"fp8": gpu.fp8_tflops, "fp4": gpu.fp4_tflops, "mxfp4": gpu.fp4_tflops, "int4": 0.0}
    return units.get(model.weight_dtype, 1.0) > 0.0


def _padding(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    if model.weight_dtype != "mxfp4" or _has_units(model, gpu):
        return 0.0
    return _MXFP4_PADDING * model.weight_bytes / tp
