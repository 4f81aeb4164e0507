"""AMD Quark: one configuration for all matrices, with overrides by layer type and by name."""

from __future__ import annotations

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization.naming import MatrixNames, names_of
from autoscaler.performance.quantization.scheme import EVERY, Rule, Scheme
from autoscaler.performance.quantization.storage import (
    FP8,
    INT8,
    INT8_COMPUTED,
    MXFP4,
    Storage,
    integers,
)

_ALLOWED = "fp8_e4m3, int8, int4, uint4, fp4, fp6_e2m3 or fp6_e3m2"


def read(how: Keys) -> Scheme:
    """The rules. Rules by name come first, then rules by layer type, then the general rule."""
    excluded = names_of(f"{how.field}: exclude", how.texts("exclude"))
    rules = [Rule(MatrixNames(excluded.runs, excluded.expressions, every=False), None)]
    for key in ("layer_quant_config", "layer_type_quant_config"):
        section = how.section(key)
        for name in section.config if section is not None else ():
            assert section is not None  # noqa: S101
            own = section.section(str(name))
            names = names_of(section.field, (str(name),))
            if own is not None and (names.every or key == "layer_quant_config"):
                rules.append(Rule(names, _stored(own)))
    whole = how.section("global_quant_config")
    if whole is None:
        raise how.error("global_quant_config", None, "weight with its dtype")
    rules.append(Rule(EVERY, _stored(whole)))
    return Scheme(tuple(rules))


def _stored(how: Keys) -> Storage | None:
    weight = how.value("weight")
    if weight is None:
        return None
    if isinstance(weight, list) and weight:
        # A quantisation may have several steps; the last step determines the storage.
        how = Keys({**how.config, "weight": weight[-1]}, how.field, {})
    keys = how.section("weight")
    assert keys is not None  # noqa: S101  the value is set
    dtype, size = keys.text("dtype"), keys.number("group_size", low=-1)
    if dtype in ("fp8_e4m3", "fp8_e4m3fn"):
        return FP8
    if dtype == "int8":
        return INT8_COMPUTED if how.value("input_tensors") is not None else INT8
    if dtype in ("int4", "uint4"):
        return integers(4, size, dtype == "uint4", "group_size")
    if dtype == "fp4":
        return MXFP4
    if dtype in ("fp6_e2m3", "fp6_e3m2"):
        return Storage("fp8", 6.0, 32, 8.0, 32, 1, "groups of 32")
    raise keys.error("dtype", dtype, _ALLOWED)
