"""Model architectures: the facts that determine compute, memory and KV traffic.

`domain.cluster.Service` adds SLOs, regions and floors.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cache_layers import CacheLayers
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.splits import Split
from autoscaler.domain.validation import finite, whole


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model architecture, with sizes as in its Hugging Face config.

    `layers`, `hidden`, `heads`, `kv_heads`, `head_dim`, `intermediate`, `vocab` are counts. Mixture
    of experts: `experts` (0 = dense), `experts_per_token`, `moe_intermediate`. `sliding_window` in
    tokens (0 = full attention); `sliding_share`: fraction of layers with a sliding window.
    `weight_bytes`: memory of one copy of the weights. `params` and `active_params` are counts.
    `kv_bytes_per_token`: sum over all layers, in the KV cache's dtype. `weight_dtype` is one of
    "bf16", "fp8", "int8", "mxfp4", "fp4", "int4".

    For a quantised checkpoint: `dense_bytes`: bytes per weight of layers that every token passes;
    `expert_bytes`: bytes per weight of routed experts (0: as the dtype implies). `expert_params`:
    weights of one routed expert, as a mean over all layers (0: the weights of a gated MLP).
    `state_bytes`: memory per sequence that does not depend on its length (state-space layers and
    similar). `tower_bytes`: weights outside of the language model, such as a vision tower.
    `splits`: the widths that tensor parallelism divides. `undivided`: the reason why tensor
    parallelism cannot divide the model; "" if it can. `integer_activations`: whether matrix
    products are computed in INT8. `memory_share`: share of each GPU's memory that the engine may
    use for weights, KV cache and activations. `kv_bits`: bits of one number in the KV cache.
    `kv_cache_bytes`: limit of the KV cache per GPU, 0 = all remaining memory. `adapter_bytes`,
    `adapter_copied_bytes`: memory for LoRA adapters, the part that tensor parallelism divides and
    the part that each GPU holds. `compressed_attention`: whether attention needs kernels that
    exist from Hopper on. `cache_layers`: layers grouped by their cache; empty: as
    `layers_by_cache` derives them. `max_seqs`: most sequences in a batch. `batched_tokens`: most
    tokens in an iteration, 0 = the engine's default. `eager`: whether the engine captures no CUDA
    graphs. `state_copies`: blocks that hold the state of one sequence. `pooling`: whether the
    model answers after one pass over its input, without generating tokens. `rooms`: measured KV
    caches, which replace the predicted ones, at most one per GPU type and number of GPUs.
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
    dense_bytes: float = 0.0
    expert_bytes: float = 0.0
    expert_params: float = 0.0
    state_bytes: float = 0.0
    tower_bytes: float = 0.0
    splits: tuple[Split, ...] = ()
    undivided: str = ""
    integer_activations: bool = False
    memory_share: float = 0.9
    kv_bits: float = 16.0
    kv_cache_bytes: float = 0.0
    adapter_bytes: float = 0.0
    adapter_copied_bytes: float = 0.0
    compressed_attention: bool = False
    cache_layers: tuple[CacheLayers, ...] = ()
    max_seqs: int = 256
    batched_tokens: int = 0
    eager: bool = False
    state_copies: int = 2
    pooling: bool = False
    rooms: tuple[MeasuredRoom, ...] = ()

    def __post_init__(self) -> None:
        who = f"model {self.name}"
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            whole(f"{who}: {field}", getattr(self, field), 1, 10**8)
        for field in ("params", "active_params", "weight_bytes", "kv_bytes_per_token"):
            finite(f"{who}: {field}", getattr(self, field), 1.0, 1e15)
        for field in (
            "dense_bytes", "expert_bytes", "expert_params", "state_bytes", "tower_bytes",
            "kv_cache_bytes", "adapter_bytes", "adapter_copied_bytes",
        ):  # fmt: skip
            finite(f"{who}: {field}", getattr(self, field), 0.0, 1e15)
        finite(f"{who}: memory_share", self.memory_share, 0.01, 1.0)
        finite(f"{who}: sliding_share", self.sliding_share, 0.0, 1.0)
        whole(f"{who}: max_seqs", self.max_seqs, 1, 10**6)
        whole(f"{who}: batched_tokens", self.batched_tokens, 0, 10**8)
        whole(f"{who}: state_copies", self.state_copies, 1, 100)

    @property
    def is_moe(self) -> bool:
        """Whether the model routes tokens to experts."""
        return self.experts > 0

    @property
    def layers_by_cache(self) -> tuple[CacheLayers, ...]:
        """The layers, grouped by their cache. Without `cache_layers`, all layers store equally
        much, and `sliding_share` of them keep a window."""
        if self.cache_layers:
            return self.cache_layers
        sliding = round(self.sliding_share * self.layers) if self.sliding_window else 0
        kinds = (self.layers - sliding, 0), (sliding, self.sliding_window)
        state = self.state_bytes / self.layers
        return tuple(
            CacheLayers(count, 1.0 / self.layers, self.kv_heads, window, state)
            for count, window in kinds
            if count
        )

    def room(self, gpu: str, gpus: int) -> MeasuredRoom | None:
        """The measured KV cache on `gpus` GPUs of type `gpu`; None if it is predicted."""
        return next((one for one in self.rooms if (one.gpu, one.gpus) == (gpu, gpus)), None)

    def split_refusal(self, gpus: int) -> str:
        """The reason why no engine can split the model over `gpus` GPUs by tensor parallelism; ""
        if an engine can."""
        if gpus == 1:
            return ""
        if self.undivided:
            return self.undivided
        if self.heads % gpus:
            return f"{self.heads} attention heads do not divide by {gpus}"
        if self.kv_heads % gpus and gpus % self.kv_heads:
            return f"{self.kv_heads} KV heads neither divide by {gpus} nor into it"
        refusals = (split.refusal(gpus) for split in self.splits)
        return next((one for one in refusals if one), "")
