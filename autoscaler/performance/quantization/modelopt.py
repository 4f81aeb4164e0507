"""NVIDIA ModelOpt: one algorithm for all matrices, or an algorithm for each (mixed precision)."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.compressed_tensors import kv_bits_of
from autoscaler.performance.quantization.naming import MatrixNames, names_of
from autoscaler.performance.quantization.scheme import BF16_BITS, EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import (
    FP8,
    MXFP4,
    MXFP8,
    NVFP4,
    Storage,
    fp8_blocks,
    integers,
)

_STORED: Mapping[str, Storage] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": fp8_blocks(128, 128, "FP8_PB_WO"),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP4": MXFP4,
    "MXFP8": MXFP8,
    "W4A16_AWQ": integers(4, 128, False, "group_size"),
}
_MIXED = "MIXED_PRECISION"
_KV_BITS = {"": BF16_BITS, "NONE": BF16_BITS, "FP8": 8.0, "NVFP4": 4.5, "FP8_E4M3": 8.0}


def read(how: Keys) -> Scheme:
    """The scheme of a `quantization_config`, or of the `quantization` part of an
    `hf_quant_config.json`."""
    how = how.section("quantization") or how
    rules = []
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        names = names_of(f"{how.field}: {key}", how.texts(key))
        rules.append(Rule(MatrixNames(names.runs, names.expressions, every=False), None))
    layers = how.section("quantized_layers")
    algorithm = how.text("quant_algo").upper()
    if algorithm == _MIXED:
        if layers is None:
            raise how.error("quantized_layers", None, f"layers and their quant_algo, for {_MIXED}")
        rules += _mixed(layers)
    else:
        rules.append(Rule(EVERY, _stored(how)))
    return Scheme(tuple(rules), kv_bits=_kv_bits(how))


def _mixed(layers: Keys) -> list[Rule]:
    """One rule per storage. A rule holds all its names in one set, because there are tens of
    thousands of names."""
    by_way: dict[str, tuple[Storage, set[str]]] = {}
    for name in layers.config:
        own = layers.section(str(name))
        if own is None:
            continue
        algorithm = own.text("quant_algo").upper()
        _, names = by_way.setdefault(algorithm, (_stored(own), set()))
        names.add(str(name))
    return [Rule(names_of(layers.field, names), stored) for stored, names in by_way.values()]


def _stored(how: Keys) -> Storage:
    algorithm = how.text("quant_algo").upper()
    stored = _STORED.get(algorithm)
    if stored is None:
        raise how.error("quant_algo", algorithm, ", ".join((*_STORED, _MIXED)))
    return stored


def _kv_bits(how: Keys) -> float:
    if "kv_cache_scheme" in how:
        return kv_bits_of(how)
    name = how.text("kv_cache_quant_algo").upper()
    if name not in _KV_BITS:
        raise how.error("kv_cache_quant_algo", name, "FP8, NVFP4 or none")
    return _KV_BITS[name]
