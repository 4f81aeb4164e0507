"""The scheme of a compressed-tensors checkpoint (llm-compressor): each group lists its target
modules and their storage."""

from __future__ import annotations

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.naming import MatrixNames, names_of
from autoscaler.performance.quantization.scheme import BF16_BITS, EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import (
    FP8,
    INT8_COMPUTED,
    MXFP4,
    MXFP8,
    NVFP4,
    Storage,
    fp8_blocks,
    integers,
)

_DENSE = ("", "dense")
_FORMATS = (
    "", "dense", "pack-quantized", "int-quantized", "naive-quantized", "float-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision",
)  # fmt: skip


def read(how: Keys) -> Scheme:
    """The rules in the order of the groups. Rules for ignored modules come first."""
    _known_format(how)
    sparse = how.section("sparsity_config")
    if sparse is not None and sparse.config and sparse.text("format") not in _DENSE:
        raise sparse.error("format", sparse.text("format"), "dense")
    groups = how.section("config_groups")
    if groups is None or not groups.config:
        raise how.error(
            "config_groups", how.value("config_groups"), "groups of targets and weights"
        )
    ignored = names_of(f"{how.field}: ignore", how.texts("ignore"))
    rules = [Rule(MatrixNames(ignored.runs, ignored.expressions, every=False), None)]
    for name in groups.config:
        group = groups.section(str(name))
        if group is None:
            continue
        _known_format(group)
        targets = group.texts("targets")
        names = names_of(f"{group.field}: targets", targets) if targets else EVERY
        rules.append(Rule(names, weights_of(group)))
    return Scheme(tuple(rules), kv_bits=kv_bits_of(how))


def _known_format(where: Keys) -> None:
    if where.text("format") not in _FORMATS:
        raise where.error("format", where.text("format"), ", ".join(_FORMATS[1:]))


def weights_of(group: Keys) -> Storage | None:
    """Storage of the weights of a group; None if it quantises only activations."""
    weights = group.section("weights")
    if weights is None:
        return None
    bits = weights.number_of("num_bits", low=1, high=64)
    kind = weights.text("type") or "int"
    strategy = weights.text("strategy")
    size = weights.number("group_size", low=-1)
    if kind == "int" and 2 <= bits <= 8:
        inputs = group.section("input_activations")
        if bits == 8 and inputs is not None and inputs.number("num_bits", otherwise=8) == 8:
            return INT8_COMPUTED
        return integers(bits, size, not weights.flag("symmetric", otherwise=True), "group_size")
    if kind == "float" and bits == 8:
        block = weights.listed("block_structure")
        if strategy == "block" or block:
            shape = Keys({"block_structure": block or (128, 128)}, weights.field, {})
            return fp8_blocks(*block_shape(shape, "block_structure"))
        return MXFP8 if size == 32 else FP8
    if kind == "float" and bits == 4:
        mx = size == 32 or group.text("format").startswith("mxfp4")
        return MXFP4 if mx else NVFP4
    raise weights.error("num_bits", f"{bits} of type {kind}", "int of 2 to 8, float of 4 or 8")


def block_shape(where: Keys, name: str) -> tuple[int, int, str]:
    """(outputs, inputs) of a block, from the pair of sizes at the key `name`, and the full name of
    the key."""
    shape = where.listed(name)
    if len(shape) != 2:
        raise where.error(name, list(shape), "two whole numbers, such as [128, 128]")
    first, second = (
        Keys({name: one}, where.field, {}).number_of(name, low=1, high=65_536) for one in shape
    )
    return first, second, name


def kv_bits_of(how: Keys) -> float:
    """Bits that `kv_cache_scheme` states. Engines use them for the KV cache instead of their
    default."""
    value = how.value("kv_cache_scheme")
    if value is None:
        return BF16_BITS
    if isinstance(value, str):
        if value.upper() == "FP8":
            return 8.0
        raise how.error("kv_cache_scheme", value, "FP8, or num_bits and type")
    scheme = how.section("kv_cache_scheme")
    assert scheme is not None  # noqa: S101  the value is set
    if scheme.number_of("num_bits") == 8 and (scheme.text("type") or "float") == "float":
        return 8.0
    raise scheme.error("num_bits", scheme.value("num_bits"), "8 of type float")
