"""Model architectures: the facts that decide compute, memory and KV traffic.

Owns `ModelSpec`. Knows nothing of services (SLOs, regions, floors): see `domain.service`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import finite, whole


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model architecture, with sizes as in its Hugging Face config.

    `layers`, `hidden`, `heads`, `kv_heads`, `head_dim`, `intermediate`, `vocab` are counts.
    Mixture of experts: `experts` (0 = dense), `experts_per_token`, `moe_intermediate`.
    `sliding_window` in tokens (0 = full attention); `sliding_share` is the fraction of layers
    that use it. `weight_bytes` is what one copy of the weights takes in memory, `params` and
    `active_params` are counts, `kv_bytes_per_token` is for all layers, in the KV cache's dtype.
    `weight_dtype` is one of "bf16", "fp8", "mxfp4", "fp4", "int4".
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    params: float
    active_params: float
    weight_bytes: float
    kv_bytes_per_token: float
    weight_dtype: str = "bf16"
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    sliding_window: int = 0
    sliding_share: float = 0.0
    max_position: int = 131072

    def __post_init__(self) -> None:
        who = f"model {self.name}"
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            whole(f"{who}: {field}", getattr(self, field), 1, 10**8)
        for field in ("params", "active_params", "weight_bytes", "kv_bytes_per_token"):
            finite(f"{who}: {field}", getattr(self, field), 1.0, 1e15)
        finite(f"{who}: sliding_share", self.sliding_share, 0.0, 1.0)

    @property
    def is_moe(self) -> bool:
        """Whether the model routes tokens to experts."""
        return self.experts > 0
