"""Floating-point weights of 8 and 4 bits: FP8 (also FBGEMM's), MXFP4, MXFP8, and INT8 for
experts."""

from __future__ import annotations

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.compressed_tensors import block_shape
from autoscaler.performance.quantization.grouped_integers import unquantised_rules
from autoscaler.performance.quantization.scheme import EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import FP8, INT8, MXFP8, Storage, fp8_blocks

_MXFP4_PADDED = Storage("mxfp4", 4.0, 32, 8.0)
"""The engine pads the experts of such a checkpoint, so they can be divided in any way."""


def fp8(how: Keys) -> Scheme:
    """FP8 with one scale per matrix, or per block of `weight_block_size`."""
    stored = FP8
    fmt = how.text("fmt").lower()
    if fmt and "e4m3" not in fmt:
        raise how.error("fmt", fmt, "e4m3")
    if "weight_block_size" in how:
        stored = fp8_blocks(*block_shape(how, "weight_block_size"))
    return Scheme((*_own(how), Rule(EVERY, stored)))


def fbgemm(how: Keys) -> Scheme:
    """FBGEMM's FP8: one scale per row."""
    return Scheme((*_own(how), Rule(EVERY, FP8)))


def mxfp8(how: Keys) -> Scheme:
    """FP8 with a scale byte per 32 inputs."""
    return Scheme((*_own(how), Rule(EVERY, MXFP8)))


def mxfp4(how: Keys) -> Scheme:
    """MXFP4 of gpt-oss, in routed experts only."""
    return Scheme((*_own(how), Rule(EVERY, _MXFP4_PADDED)), experts_alone=True)


def experts_int8(how: Keys) -> Scheme:
    """Routed experts in INT8; other matrices are unchanged."""
    return Scheme((*_own(how), Rule(EVERY, INT8)), experts_alone=True)


def _own(how: Keys) -> tuple[Rule, ...]:
    return (
        *unquantised_rules(how, "modules_to_not_convert"),
        *unquantised_rules(how, "ignored_layers"),
    )
