"""The matrices of a model, with their number of weights, their storage and the side that tensor
parallelism divides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.splits import Split

OTHERS = "other experts"
"""The part of experts that tokens of text never use."""


class Divided(StrEnum):
    """The side of a matrix that tensor parallelism divides."""

    OUTPUTS = "outputs"
    INPUTS = "inputs"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a layer, or of the model.

    names: the publisher's names below the layer. key: configuration key of the divided width.
    copies: number in a layer (experts). part: "mixer", "mlp", "shared", "expert", `OTHERS`,
    "router", "small", "embedding" or "head". most_parts: number of KV heads; if there are more
    GPUs, parts are copied. merged: whether the matrix is stored together with others as one, so
    that quantisation blocks may cross its borders.
    """

    names: tuple[str, ...]
    outputs: int
    inputs: int
    part: str = "mixer"
    divided: Divided = Divided.NEITHER
    key: str = ""
    copies: int = 1
    most_parts: int = 0
    merged: bool = False

    @property
    def weights(self) -> float:
        """Number of weights, over all copies."""
        return float(self.outputs) * self.inputs * self.copies

    @property
    def width(self) -> int:
        """Width of the divided side; 0 if none is divided."""
        if self.divided is Divided.NEITHER:
            return 0
        return self.outputs if self.divided is Divided.OUTPUTS else self.inputs


def column(
    names: tuple[str, ...], outputs: int, inputs: int, key: str, part: str = "mixer",
    copies: int = 1, most_parts: int = 0, merged: bool = False,
) -> Matrix:  # fmt: skip
    """A matrix whose outputs are divided."""
    return Matrix(names, outputs, inputs, part, Divided.OUTPUTS, key, copies, most_parts, merged)


def row(
    names: tuple[str, ...], outputs: int, inputs: int, key: str, part: str = "mixer",
    copies: int = 1,
) -> Matrix:  # fmt: skip
    """A matrix whose inputs are divided."""
    return Matrix(names, outputs, inputs, part, Divided.INPUTS, key, copies)


@dataclass(frozen=True, slots=True)
class Mixer:
    """The token-mixing part of a layer: attention, linear attention, or a state-space layer.

    kind: "full", "sliding", "recurrent" or "none". cached: how many numbers one token adds to the
    KV cache. more_bytes: further bytes per token in that cache, independent of its dtype.
    state_bytes: size of the state of one sequence, independent of its length. splits: divided
    widths that do not follow from the matrices. kv_heads: number of parts into which tensor
    parallelism divides the cache.
    """

    kind: str
    matrices: tuple[Matrix, ...] = ()
    cached: int = 0
    more_bytes: float = 0.0
    state_bytes: float = 0.0
    splits: tuple[Split, ...] = ()
    kv_heads: int = 1


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The feed-forward part of a layer: matrices that each token passes, and those of routed
    experts.

    experts: number of routed experts. chosen: experts per token.
    """

    matrices: tuple[Matrix, ...] = ()
    experts: int = 0
    chosen: int = 0


NO_MIXER = Mixer("none")
NO_FEED_FORWARD = FeedForward()
