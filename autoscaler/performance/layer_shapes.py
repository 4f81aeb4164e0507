"""Sizes of one transformer layer, as the roofline needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from autoscaler.domain.model_spec import ModelSpec

# Bytes per weight, including block scales: MXFP4 has a scale byte per 32 weights, NVFP4 per 16.
_EXPERT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 4.25 / 8,
    "fp4": 4.5 / 8,
    "int4": 4.25 / 8,
}
_BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one layer and of the head, before tensor parallelism divides them.

    dense_params: weights that every token passes (attention, norms, dense or shared MLP).
    expert_params: weights of ONE routed expert, 0 for a dense model. *_bytes: bytes in memory of
    these weights. kv_bytes: KV cache of one token in one layer. head_params: output head
    (vocabulary x hidden).
    """

    dense_params: float
    dense_bytes: float
    expert_params: float
    expert_bytes: float
    kv_bytes: float
    head_params: float
    head_bytes: float


@lru_cache(maxsize=256)
def layer_shape(model: ModelSpec) -> LayerShape:
    """Per-layer sizes of `model`, as means over its layers.

    The dense part is the active parameters minus embeddings and routed experts. So the published
    counts cover gated and plain MLPs, shared experts and latent attention, whereas Cauchy eq. 2 and
    6 hold only for a gated MLP with full attention heads.
    """
    head = float(model.vocab * model.hidden)
    embeddings = _embedding_copies(model) * head
    expert = 3.0 * model.hidden * model.moe_intermediate if model.is_moe else 0.0
    expert = model.expert_params or expert
    routed = expert * model.experts_per_token
    dense = max((model.active_params - embeddings) / model.layers - routed, 0.0)
    per_expert_byte = _EXPERT_BYTES.get(model.weight_dtype, _BF16_BYTES)
    if model.is_moe and model.weight_dtype in ("mxfp4", "int4"):
        # These formats quantise only the experts; attention, embeddings and head stay in BF16.
        dense_byte = _BF16_BYTES
    else:
        dense_byte = per_expert_byte
    return LayerShape(
        dense_params=dense,
        dense_bytes=dense * (model.dense_bytes or dense_byte),
        expert_params=expert,
        expert_bytes=expert * (model.expert_bytes or per_expert_byte),
        kv_bytes=model.kv_bytes_per_token / model.layers,
        head_params=head,
        head_bytes=head * _BF16_BYTES,
    )


def _embedding_copies(model: ModelSpec) -> float:
    """Copies of the vocabulary matrix: one if input and output share it, else two.

    The published parameter count decides: the number after which the remaining parameters come
    closest to layers with a gated MLP and grouped-query attention. Always two for mixtures of
    experts, which are large and never share the matrix.
    """
    if model.is_moe:
        return 2.0
    head = float(model.vocab * model.hidden)
    attention = 2 * model.hidden * (model.heads + model.kv_heads) * model.head_dim
    expected = attention + 3.0 * model.hidden * model.intermediate
    left = {n: (model.active_params - n * head) / model.layers for n in (1.0, 2.0)}
    return min(left, key=lambda n: abs(left[n] - expected))


def experts_touched(model: ModelSpec, tokens: float) -> float:
    """Expected number of distinct experts in a layer to which `tokens` tokens are routed.

    E (1 - (1 - k/E)^B) for uniform routing of B tokens to k of E experts; 0 for a dense model.
    """
    if not model.is_moe:
        return 0.0
    share = min(1.0, model.experts_per_token / model.experts)
    return model.experts * (1.0 - math.pow(1.0 - share, max(tokens, 0.0)))
