"""Storage of quantised weights: bits, scales and the blocks that must stay whole."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

FP16_BITS = 16.0
FP32_BITS = 32.0
# The Marlin kernel computes tiles of this many inputs and outputs, and no smaller parts.
_MARLIN_INPUTS, _MARLIN_OUTPUTS = 128, 64


@dataclass(frozen=True, slots=True)
class Storage:
    """Storage of one matrix.

    dtype: "fp8", "int8", "int4", "fp4" or "mxfp4"; selects arithmetic rates and measurements. bits:
    bits of one weight. group: number of inputs that share scales (0: a whole row or matrix, whose
    scale is not counted); group_bits: bits of the scale and zero point of one group. inputs,
    outputs: each GPU's part of a matrix must be a multiple of these sizes; why: the configuration
    key that requires it. integer_activations: whether products are computed in INT8.
    """

    dtype: str
    bits: float
    group: int = 0
    group_bits: float = 0.0
    inputs: int = 1
    outputs: int = 1
    why: str = ""
    integer_activations: bool = False

    @property
    def bytes_per_weight(self) -> float:
        """Bytes per weight, including its share of the scales."""
        scales = self.group_bits / self.group if self.group else 0.0
        return (self.bits + scales) / 8.0


def integers(bits: int, group: int, zero_points: bool, why: str) -> Storage:
    """Weights of `bits` bits that are widened to BF16 in use (GPTQ, AWQ, w4a16 and similar).

    group: number of inputs that share one FP16 scale; 0 or below: a whole row. zero_points: whether
    each scale has a zero point of `bits` bits.
    """
    each = FP16_BITS + (bits if zero_points else 0.0)
    of = group if group > 0 else 0
    dtype = "int8" if bits > 4 else "int4"
    # Marlin needs whole tiles. Bit widths that it does not support need whole groups only.
    if bits in (4, 8):
        return Storage(dtype, bits, of, each, lcm(of or 1, _MARLIN_INPUTS), _MARLIN_OUTPUTS, why)
    return Storage(dtype, bits, of, each, of or 1, 32, why)


def fp8_blocks(outputs: int, inputs: int, why: str) -> Storage:
    """FP8 with one scale per block of `outputs` x `inputs` weights."""
    return Storage("fp8", 8.0, inputs=inputs, outputs=outputs, why=why)


FP8 = Storage("fp8", 8.0)
MXFP8 = Storage("fp8", 8.0, 32, 8.0, 32, 1, "groups of 32")
NVFP4 = Storage("fp4", 4.0, 16, 8.0, 16, 1, "groups of 16")
MXFP4 = Storage("mxfp4", 4.0, 32, 8.0, 32, 1, "groups of 32")
INT8_COMPUTED = Storage("int8", 8.0, integer_activations=True)
INT8 = Storage("int8", 8.0)
