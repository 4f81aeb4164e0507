"""Layers of a model that store the same for each token and for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import finite, whole


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """Some layers of a model with equal caches.

    count: number of layers. share: share of the model's KV cache per token that one of these layers
    stores; 0: these layers store only a state. kv_heads: number of parts into which tensor
    parallelism divides the cache of one layer. window: number of most recent tokens that a layer
    keeps; 0: all. state_bytes: bytes of the state of one sequence in one layer, independent of its
    length.
    """

    count: int
    share: float
    kv_heads: int = 1
    window: int = 0
    state_bytes: float = 0.0

    def __post_init__(self) -> None:
        whole("cache layers: count", self.count, 1, 10_000)
        whole("cache layers: kv_heads", self.kv_heads, 1, 10**6)
        whole("cache layers: window", self.window, 0, 10**8)
        finite("cache layers: share", self.share, 0.0, 1.0)
        finite("cache layers: state_bytes", self.state_bytes, 0.0, 1e15)

    @property
    def recurrent(self) -> bool:
        """Whether these layers have a state and no cache that grows with the sequence."""
        return self.share == 0.0
