"""The GPU memory that vLLM reserves for LoRA adapters when it starts.

vLLM allocates two matrices of the highest rank per linear layer and slot, whether an adapter uses
the layer or not (vLLM 0.32, `lora/layers`). The number of slots is the number of different adapters
in a batch.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue

_MOST_VOCAB = 258_048  # vLLM refuses adapters of models with a larger vocabulary
_FLOAT32_BYTES = 4.0


def with_adapters(spec: ModelSpec, slots: int, rank: int) -> ModelSpec:
    """`spec` with the memory of `slots` adapters of at most `rank`.

    Tensor parallelism divides one matrix of each pair; each GPU holds a copy of the other one.
    Raises InvalidValue for a model whose adapters vLLM refuses, or whose layers are not known here.
    """
    if not slots:
        return spec
    if spec.vocab > _MOST_VOCAB:
        allowed = f"a model with a vocabulary of at most {_MOST_VOCAB}; this one has {spec.vocab}"
        raise InvalidValue("adapters", spec.name, allowed)
    if spec.state_bytes:
        allowed = "a model with attention layers only; memory for others is not known"
        raise InvalidValue("adapters", spec.name, allowed)
    hidden, layers = spec.hidden, spec.layers
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    # Attention: A of q, k, v and B of the output are copied; their counterparts are divided.
    copied, divided = 4.0 * hidden, 2.0 * queries + 2.0 * keys
    if spec.experts:
        wide = spec.moe_intermediate or spec.intermediate
        copied += 3.0 * hidden * spec.experts
        divided += 3.0 * wide * spec.experts
    else:
        copied += 3.0 * hidden
        divided += 3.0 * spec.intermediate
    outer = 2.0 * (spec.vocab + hidden)  # embedding and output, whole on each GPU
    number_bytes = _FLOAT32_BYTES if spec.dense_bytes == _FLOAT32_BYTES else 2.0
    per_value = slots * rank * number_bytes
    return replace(
        spec,
        adapter_bytes=per_value * layers * divided,
        adapter_copied_bytes=per_value * (layers * copied + outer),
    )
