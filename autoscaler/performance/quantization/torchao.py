"""torchao: a type name for all matrices, or a type name for each module."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.grouped_integers import unquantised_rules
from autoscaler.performance.quantization.naming import names_of
from autoscaler.performance.quantization.scheme import EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import (
    FP8,
    FP16_BITS,
    INT8,
    INT8_COMPUTED,
    MXFP8,
    NVFP4,
    Storage,
)

_INT4_GROUP = 128
# Storage by type name, without "Config" and underscores. Types that store each weight in a byte
# count 8 bits, even for smaller integers.
_TYPES: Mapping[str, Storage] = {
    "int8weightonly": INT8,
    "int8dynamicactivationint8weight": INT8_COMPUTED,
    "int8dynamicactivationint4weight": INT8,
    "int8dynamicactivationintxweight": INT8,
    "intxweightonly": INT8,
    "float8weightonly": FP8,
    "float8dynamicactivationfloat8weight": FP8,
    "float8staticactivationfloat8weight": FP8,
    "nvfp4weightonly": NVFP4,
    "nvfp4inference": NVFP4,
    "nvfp4dynamicactivationnvfp4weight": NVFP4,
    "mxfpinference": MXFP8,
    "mxdynamicactivationmxweight": MXFP8,
}
_INT4 = ("int4weightonly", "float8dynamicactivationint4weight")
_BY_MODULE = ("modulefqntoconfig", "fqntoconfig")


def read(how: Keys) -> Scheme:
    """The rules that `quant_type` gives."""
    value = how.value("quant_type")
    own = unquantised_rules(how, "modules_to_not_convert")
    if isinstance(value, str):
        arguments = how.section("quant_type_kwargs") or Keys({}, how.field, {})
        return Scheme((*own, Rule(EVERY, _stored(how, "quant_type", value, arguments))))
    kinds = how.section("quant_type")
    default = kinds.section("default") if kinds is not None else None
    if default is None:
        raise how.error("quant_type", value, "a name, or a default with _type and _data")
    return Scheme((*own, *_rules(default)), head=how.flag("include_input_output_embeddings"))


def _rules(how: Keys) -> tuple[Rule, ...]:
    name, data = how.text("_type"), how.section("_data") or Keys({}, how.field, {})
    if _short(name) not in _BY_MODULE:
        return (Rule(EVERY, _stored(how, "_type", name, data)),)
    modules = data.section("module_fqn_to_config") or data.section("fqn_to_config")
    if modules is None:
        raise data.error("module_fqn_to_config", None, "modules and their types")
    rules: list[Rule] = []
    last: tuple[Rule, ...] = ()
    for module in modules.config:
        each = modules.section(str(module))
        inner = each.section("_data") if each is not None else None
        stored = None
        if each is not None:
            stored = _stored(each, "_type", each.text("_type"), inner or Keys({}, each.field, {}))
        if module == "_default":
            last = (Rule(EVERY, stored),)
        else:
            rules.append(Rule(names_of(modules.field, (str(module),)), stored))
    return (*rules, *last)


def _stored(where: Keys, key: str, name: str, data: Keys) -> Storage:
    short = _short(name)
    if short in _INT4:
        size = data.number("group_size", otherwise=_INT4_GROUP, low=1)
        return Storage("int4", 4.0, size, 2 * FP16_BITS, size, 1, "group_size")
    if short not in _TYPES:
        known = ", ".join(sorted((*_TYPES, *_INT4)))
        raise where.error(key, name, f"one of {known}, in torchao's spelling")
    return _TYPES[short]


def _short(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("config")
