"""Weight-only integers with scales per group of inputs: GPTQ, AWQ, AutoRound and HQQ."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.naming import MatrixNames, names_of
from autoscaler.performance.quantization.scheme import EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import (
    FP16_BITS,
    MXFP4,
    MXFP8,
    NVFP4,
    Storage,
    integers,
)

_UNQUANTISED_BITS = 16


def gptq(how: Keys) -> Scheme:
    """GPTQ, which stores zero points even if it is symmetric. `dynamic` sets other bits for some
    names."""
    bits, size = _bits(how, (2, 3, 4, 8)), how.number("group_size", otherwise=128, low=-1)
    rules = [*unquantised_rules(how, "modules_to_not_convert")]
    dynamic = how.section("dynamic")
    for pattern in dynamic.config if dynamic is not None else ():
        assert dynamic is not None  # noqa: S101
        text = str(pattern)
        names = names_of(f"{dynamic.field}", (f"re:{text.removeprefix('+:').removeprefix('-:')}",))
        own = dynamic.section(text)
        if text.startswith("-:") or own is None:
            rules.append(Rule(names, None))
            continue
        other = _bits(own, (2, 3, 4, 8)) if "bits" in own else bits
        of = own.number("group_size", otherwise=size, low=-1)
        rules.append(Rule(names, integers(other, of, True, "group_size")))
    rules.append(Rule(EVERY, integers(bits, size, True, "group_size")))
    return Scheme(tuple(rules), head=how.flag("lm_head"))


def awq(how: Keys) -> Scheme:
    """AWQ, with the key names of either of two forms of its configuration."""
    bits, size = _bits(how, (4, 8)), how.number("group_size", "q_group_size", otherwise=128, low=-1)
    zeros = how.flag("zero_point", otherwise=True)
    stored = integers(bits, size, zeros, "group_size")
    return Scheme((*unquantised_rules(how, "modules_to_not_convert"), Rule(EVERY, stored)))


def auto_round(how: Keys) -> Scheme:
    """AutoRound: integers, or MXFP and NVFP by `data_type`. `extra_config` has the settings of
    single layers."""
    packing = how.text("packing_format")
    if "gguf" in packing:
        raise how.error("packing_format", packing, "auto_round:auto_gptq, auto_awq, llm_compressor")
    rules = []
    extra = how.section("extra_config")
    for name in extra.config if extra is not None else ():
        assert extra is not None  # noqa: S101
        own = extra.section(str(name))
        if own is not None:
            merged = Keys({**how.config, **own.config}, own.field, {})
            rules.append(Rule(names_of(extra.field, (str(name),)), _rounded(merged)))
    rules.append(Rule(EVERY, _rounded(how)))
    return Scheme(tuple(rules))


def _rounded(how: Keys) -> Storage | None:
    bits = how.number_of("bits", low=1, high=64)
    if bits >= _UNQUANTISED_BITS:
        return None
    kind = how.text("data_type") or "int"
    if kind.startswith("mx_fp") and bits in (4, 8):
        return MXFP4 if bits == 4 else MXFP8
    if kind.startswith("nv_fp") and bits == 4:
        return NVFP4
    if kind.startswith("int"):
        size = how.number("group_size", otherwise=128, low=-1)
        return integers(_bits(how, (2, 3, 4, 8)), size, True, "group_size")
    raise how.error("data_type", f"{kind} of {bits} bits", "int, mx_fp of 4 or 8, nv_fp of 4")


def hqq(how: Keys) -> Scheme:
    """HQQ, in which each group has a scale and a zero point in FP16."""
    inner = how.section("quant_config") or how
    weights = inner.section("weight_quant_params")
    if weights is None:
        raise inner.error("weight_quant_params", None, "nbits and group_size")
    bits = weights.number_of("nbits", low=1, high=8)
    if bits not in (4, 8):
        raise weights.error("nbits", bits, "4 or 8")
    size = weights.number("group_size", otherwise=64, low=1)
    plain = integers(bits, size, False, "group_size")
    stored = Storage(plain.dtype, bits, size, 2 * FP16_BITS, plain.inputs, plain.outputs, plain.why)
    return Scheme((*unquantised_rules(how, "skip_modules"), Rule(EVERY, stored)))


def unquantised_rules(how: Keys, name: str) -> tuple[Rule, ...]:
    """Rules for matrices that keep the model's own dtype."""
    if how.value(name) is None or isinstance(how.value(name), Mapping):
        return ()
    names = names_of(f"{how.field}: {name}", how.texts(name))
    return (Rule(MatrixNames(names.runs, names.expressions, every=False), None),)


def _bits(how: Keys, allowed: tuple[int, ...]) -> int:
    bits = how.number_of("bits", "w_bit", low=1, high=64)
    if bits not in allowed:
        raise how.error("bits", bits, ", ".join(map(str, allowed)))
    return bits
