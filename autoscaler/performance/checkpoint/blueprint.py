"""All layers of a model, with sums over them: weights, bytes, KV cache, and the widths that tensor
parallelism splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoscaler.domain.cache_layers import CacheLayers
from autoscaler.domain.splits import Split
from autoscaler.performance.checkpoint.matrices import OTHERS, Divided, FeedForward, Matrix, Mixer
from autoscaler.performance.quantization.scheme import Scheme
from autoscaler.performance.quantization.storage import Storage

BF16_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The layers and matrices of a model.

    layers: the mixer and the feed-forward of each layer. outside: embeddings, head and other
    matrices outside of layers. norms: number of weights outside of matrices. shared_kv: number of
    layers at the end that have no KV cache of their own and read that of an earlier layer.
    """

    layers: tuple[tuple[Mixer, FeedForward], ...]
    outside: tuple[Matrix, ...]
    norms: float
    shared_kv: int = 0

    def cached(self, kv_bytes: float) -> float:
        """Bytes of KV cache for one token. kv_bytes: bytes of one number in the cache."""
        return sum(_token_bytes(mixer, kv_bytes) for mixer in self._caching())

    def cache_layers(self, kv_bytes: float, window: int) -> tuple[CacheLayers, ...]:
        """The layers, grouped by their cache. window: tokens that a sliding layer keeps."""
        kinds: Counter[tuple[float, int, int, float]] = Counter()
        for mixer in self._caching():
            token = _token_bytes(mixer, kv_bytes)
            # Entries of compressed attention are not divided, and their window counts as a state.
            slides = window if mixer.kind == "sliding" and mixer.cached else 0
            if token and mixer.state_bytes and mixer.cached:
                kinds[token, mixer.kv_heads, slides, 0.0] += 1
                kinds[0.0, 1, 0, mixer.state_bytes] += 1
            elif token or mixer.state_bytes:
                kinds[token, mixer.kv_heads, slides, mixer.state_bytes] += 1
        total = self.cached(kv_bytes)
        return (
            tuple(
                CacheLayers(count, min(1.0, token / total), heads, slides, state)
                for (token, heads, slides, state), count in kinds.items()
            )
            if total
            else ()
        )

    def _caching(self) -> Iterator[Mixer]:
        own = self.layers[: max(1, len(self.layers) - self.shared_kv)]
        return (mixer for mixer, _ in own)

    def matrices(self) -> Iterator[tuple[int, Matrix]]:
        """The matrices of all layers, each with the index of its layer."""
        for index, (mixer, forward) in enumerate(self.layers):
            for matrix in (*mixer.matrices, *forward.matrices):
                yield index, matrix


@dataclass(slots=True)
class StoredSizes:
    """Sums over the matrices.

    dense: weights of layers without routed experts. experts: weights of routed experts. outside:
    weights outside of layers. others: weights of experts that tokens of text never use. The fields
    *_bytes hold the bytes of the same weights.
    """

    dense: float = 0.0
    dense_bytes: float = 0.0
    experts: float = 0.0
    expert_bytes: float = 0.0
    outside: float = 0.0
    outside_bytes: float = 0.0
    others: float = 0.0
    others_bytes: float = 0.0
    dtype: str = "bf16"
    integer_activations: bool = False
    splits: tuple[Split, ...] = ()


def stored_sizes(blueprint: Blueprint, scheme: Scheme) -> StoredSizes:
    """Weights and bytes of the matrices as stored by `scheme`."""
    found = StoredSizes(dense=blueprint.norms, dense_bytes=blueprint.norms * BF16_BYTES)
    by_dtype: Counter[str] = Counter()
    splits: dict[Split, None] = {}
    for index, matrix in blueprint.matrices():
        names = matrix.names
        if scheme.rules:
            names = tuple(f"layers.{index}.{name}" for name in names)
        storage = scheme.storage_of(names, "expert" if matrix.part == OTHERS else matrix.part)
        weights = matrix.weights
        taken = weights * _bytes_each(storage)
        if matrix.part == "expert":
            found.experts += weights
            found.expert_bytes += taken
        elif matrix.part == OTHERS:
            found.others += weights
            found.others_bytes += taken
        else:
            found.dense += weights
            found.dense_bytes += taken
        by_dtype[storage.dtype if storage else "bf16"] += int(weights)
        if storage is not None and storage.integer_activations:
            found.integer_activations = True
        if (split := _split(matrix, storage)) is not None:
            splits[split] = None
    for matrix in blueprint.outside:
        storage = scheme.storage_of(matrix.names, matrix.part)
        found.outside += matrix.weights
        found.outside_bytes += matrix.weights * _bytes_each(storage)
    for mixer in {mixer: None for mixer, _ in blueprint.layers}:
        splits |= dict.fromkeys(mixer.splits)
    found.dtype = by_dtype.most_common(1)[0][0] if by_dtype else "bf16"
    found.splits = _strictest(splits)
    return found


def _token_bytes(mixer: Mixer, kv_bytes: float) -> float:
    return mixer.cached * kv_bytes + mixer.more_bytes


def _bytes_each(storage: Storage | None) -> float:
    return storage.bytes_per_weight if storage is not None else BF16_BYTES


def _split(matrix: Matrix, storage: Storage | None) -> Split | None:
    if matrix.divided is Divided.NEITHER:
        return None
    multiple = 1
    if storage is not None and not matrix.merged:
        multiple = storage.outputs if matrix.divided is Divided.OUTPUTS else storage.inputs
    return Split(
        matrix.key, matrix.width, multiple, matrix.most_parts, matrix.part in ("expert", OTHERS),
        storage.why if storage is not None and multiple > 1 else "",
    )  # fmt: skip


def _strictest(splits: dict[Split, None]) -> tuple[Split, ...]:
    """`splits` without redundant ones: their condition follows from another split of the same
    width."""
    found: list[Split] = []
    for one in sorted(splits, key=lambda s: (s.name, s.width, -s.multiple)):
        if not any(
            other.multiple % one.multiple == 0
            and replace(other, multiple=1, why="") == replace(one, multiple=1, why="")
            for other in found
        ):
            found.append(one)
    return tuple(found)
