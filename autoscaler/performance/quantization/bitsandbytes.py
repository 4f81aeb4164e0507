"""bitsandbytes: NF4 and FP4 with a scale per 64 weights, or INT8 with a scale per row."""

from __future__ import annotations

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.grouped_integers import unquantised_rules
from autoscaler.performance.quantization.scheme import EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import FP32_BITS, INT8, Storage

_BLOCK = 64
# Double quantisation: a scale takes one byte, plus an FP32 value per 256 scales.
_DOUBLE_BITS = 8.0 + FP32_BITS / 256
NF4 = Storage("int4", 4.0, _BLOCK, _DOUBLE_BITS)
_NF4_PLAIN = Storage("int4", 4.0, _BLOCK, FP32_BITS)


def read(how: Keys) -> Scheme:
    """The scheme of a checkpoint that was saved in quantised form. Its scales cannot be split with
    the matrices."""
    if how.flag("load_in_4bit", "_load_in_4bit"):
        stored = NF4 if how.flag("bnb_4bit_use_double_quant") else _NF4_PLAIN
    elif how.flag("load_in_8bit", "_load_in_8bit"):
        stored = INT8
    else:
        raise how.error("load_in_4bit", False, "true here or in load_in_8bit")
    rules = (*unquantised_rules(how, "llm_int8_skip_modules"), Rule(EVERY, stored))
    return Scheme(rules, whole="weights that bitsandbytes saved have no tensor parallelism")
