"""The roofline: time of one forward pass from FLOPs, bytes, links and fixed overheads.

Pure Python, because simulated engines import this module and must start fast. Source: Cauchy sec.
3.2 eq. 1-11 for the compute and traffic terms; the tensor-parallel, pipeline and overhead terms
follow the simulators of Coral (sec. 5.2) and others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import finite, whole
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY, Efficiency
from autoscaler.performance.layer_shapes import LayerShape, experts_touched, layer_shape
from autoscaler.performance.memory import fits, kv_capacity_tokens

__all__ = [
    "Roofline",
    "fits",
    "kv_capacity_tokens",
    "kv_transfer_ms",
    "matmul_tflops",
    "roofline",
]

_MS = 1e3
_ACTIVATION_BYTES = 2.0
_ALLREDUCES_PER_LAYER = 2


@dataclass(frozen=True, slots=True)
class Roofline:
    """Formulas for one model on `tp` GPUs of one type; create it with `roofline`. All times are in
    ms, for the whole tensor-parallel group.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    eff: Efficiency
    shape: LayerShape
    matmul_flops_per_ms: float
    head_flops_per_ms: float
    attention_flops_per_ms: float
    bytes_per_ms: float
    kv_shards: int
    link_bytes_per_ms: float

    def layer_ms(self, tokens: float, sequences: float, context: float) -> float:
        """Time of one layer for `tokens` new tokens of `sequences` sequences with `context` cached
        tokens each."""
        eff, shape = self.eff, self.shape
        tokens = max(tokens, 1e-9)
        experts = 0.0
        if shape.expert_params:
            active = 2.0 * tokens * self.model.experts_per_token * shape.expert_params
            read = experts_touched(self.model, tokens) * shape.expert_bytes
            experts = _blend(
                active / (self.matmul_flops_per_ms * eff.expert_gemm),
                read / (self.bytes_per_ms * eff.experts),
                eff.blend,
            )
            experts += eff.expert_layer_us / _MS
        dense = _blend(
            2.0 * tokens * shape.dense_params / self.matmul_flops_per_ms,
            shape.dense_bytes / (self.bytes_per_ms * eff.weights),
            eff.blend,
        )
        hidden = tokens * self.model.hidden * _ACTIVATION_BYTES
        rest = hidden * eff.elementwise / (self.gpu.mem_bw_gb_s * 1e6 * eff.weights)
        attention = self.attention_ms(tokens / sequences, sequences, context)
        return dense + experts + attention + rest + self._allreduces_ms(hidden) + eff.layer_us / _MS

    def head_ms(self, sequences: float) -> float:
        """Time of the output head for one token of each sequence."""
        return _blend(
            2.0 * sequences * self.shape.head_params / self.head_flops_per_ms,
            self.shape.head_bytes / (self.bytes_per_ms * self.eff.weights),
            self.eff.blend,
        )

    def prefill_ms(
        self, tokens: float, context: float = 0.0, batch: float = 1.0, layers: int | None = None
    ) -> float:
        """Time of one pass over `batch` prompts of `tokens` new tokens after `context` cached
        tokens."""
        held = self.model.layers if layers is None else layers
        share = held / self.model.layers
        per_layer = self.layer_ms(tokens * batch, batch, context)
        return held * per_layer + share * self.head_ms(batch) + self.eff.step_ms

    def decode_ms(self, batch: float, context: float, layers: int | None = None) -> float:
        """Time of one decode iteration: one token for each of `batch` sequences of mean length
        `context`."""
        held = self.model.layers if layers is None else layers
        share = held / self.model.layers
        fixed = self.eff.step_ms + batch * self.eff.sequence_us / _MS
        per_layer = self.layer_ms(batch, batch, context)
        return held * per_layer + share * self.head_ms(batch) + fixed

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context: float
    ) -> float:
        """Time of one iteration with a prompt chunk and `decodes` decoding sequences together.

        The weights are read once. So the time is that of the larger part alone, plus the smaller
        part's attention and FLOPs.
        """
        if prompt_tokens <= 0:
            return self.decode_ms(decodes, context)
        if decodes <= 0:
            return self.prefill_ms(prompt_tokens, prompt_context)
        layers = self.model.layers
        together = self.layer_ms(prompt_tokens + decodes, 1.0, 0.0)
        together -= self.attention_ms(prompt_tokens + decodes, 1.0, 0.0)
        together += self.attention_ms(prompt_tokens, 1.0, prompt_context)
        together += self.attention_ms(1.0, decodes, context)
        fixed = self.eff.step_ms + decodes * self.eff.sequence_us / _MS
        return layers * together + self.head_ms(decodes + 1.0) + fixed

    def hop_ms(self, tokens: float, gb_s: float) -> float:
        """Time to send the hidden states of `tokens` tokens to the next pipeline stage."""
        return tokens * self.model.hidden * _ACTIVATION_BYTES / (gb_s * 1e6)

    def attention_ms(self, tokens: float, sequences: float, context: float) -> float:
        """Time for scores and values of `tokens` new tokens per sequence, and for reading the
        cached tokens."""
        model = self.model
        seen = context + 0.5 * tokens
        cached = context + tokens
        if model.sliding_window:
            window = float(model.sliding_window)
            share = model.sliding_share
            seen = (1.0 - share) * seen + share * min(seen, window)
            cached = (1.0 - share) * cached + share * min(cached, window + tokens)
        flops = 4.0 * sequences * tokens * seen * model.heads * model.head_dim
        compute = flops / self.attention_flops_per_ms
        read = sequences * cached * self.shape.kv_bytes
        traffic = read / (self.gpu.mem_bw_gb_s * 1e6 * self.kv_shards * self.eff.kv)
        return _blend(compute, traffic, self.eff.blend)

    def _allreduces_ms(self, payload_bytes: float) -> float:
        if self.tp == 1:
            return 0.0
        latency = self.eff.allreduce_us / _MS * math.log2(self.tp)
        moved = 2.0 * (self.tp - 1) / self.tp * payload_bytes
        return _ALLREDUCES_PER_LAYER * (latency + moved / self.link_bytes_per_ms)


@lru_cache(maxsize=1024)
def roofline(
    model: ModelSpec, gpu: GpuSpec, tp: int, eff: Efficiency = DEFAULT_EFFICIENCY
) -> Roofline:
    """The formulas for `model` on `tp` GPUs of type `gpu`."""
    whole("tp", tp, 1, 1024)
    return Roofline(
        model=model,
        gpu=gpu,
        tp=tp,
        eff=eff,
        shape=layer_shape(model),
        matmul_flops_per_ms=matmul_tflops(model, gpu, eff) * 1e9 * tp,
        head_flops_per_ms=gpu.bf16_tflops * eff.gemm * 1e9 * tp,
        attention_flops_per_ms=gpu.bf16_tflops * eff.attention * 1e9 * tp,
        bytes_per_ms=gpu.mem_bw_gb_s * 1e6 * tp,
        # With more GPUs than KV heads the cache is copied, not split (grouped-query attention).
        kv_shards=min(tp, model.kv_heads),
        link_bytes_per_ms=gpu.interconnect_gb_s
        * 1e6
        * eff.link
        * (eff.link_wide if tp > 2 else 1.0),
    )


def matmul_tflops(model: ModelSpec, gpu: GpuSpec, eff: Efficiency) -> float:
    """Achieved rate of `model`'s matrix products on `gpu`, in 1e12 per second.

    Weights in FP8 or FP4 are faster only on a GPU with units for them; otherwise they are widened
    to BF16.
    """
    native = {
        "fp8": gpu.fp8_tflops,
        "fp4": gpu.fp4_tflops or gpu.fp8_tflops,
        "mxfp4": gpu.fp4_tflops,
    }
    peak = native.get(model.weight_dtype, 0.0)
    return peak * eff.gemm_low if peak > 0 else gpu.bf16_tflops * eff.gemm


def _blend(compute_ms: float, traffic_ms: float, exponent: float) -> float:
    """Total time of compute and traffic, which overlap in part. With a growing exponent it
    approaches the maximum."""
    if compute_ms <= 0.0:
        return traffic_ms
    ratio = traffic_ms / compute_ms
    return compute_ms * math.pow(1.0 + math.pow(ratio, exponent), 1.0 / exponent)


def kv_transfer_ms(model: ModelSpec, tokens: float, gb_s: float) -> float:
    """Time in ms to move the KV cache of `tokens` tokens over a link of `gb_s` (1e9 bytes/s)."""
    finite("gb_s", gb_s, 1e-6, 1e9)
    return tokens * model.kv_bytes_per_token / (gb_s * 1e6)
