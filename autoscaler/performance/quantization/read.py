"""Read the `quantization_config` of a checkpoint into its scheme. Each method has a reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.quantization import (
    bitsandbytes,
    compressed_tensors,
    floats,
    grouped_integers,
    modelopt,
    quark,
    torchao,
)
from autoscaler.performance.quantization.scheme import UNQUANTISED, Scheme

METHODS: Mapping[str, Callable[[Keys], Scheme]] = {
    "auto-round": grouped_integers.auto_round,
    "awq": grouped_integers.awq,
    "bitsandbytes": bitsandbytes.read,
    "compressed-tensors": compressed_tensors.read,
    "experts_int8": floats.experts_int8,
    "fbgemm_fp8": floats.fbgemm,
    "fp8": floats.fp8,
    "gptq": grouped_integers.gptq,
    "hqq": grouped_integers.hqq,
    "modelopt": modelopt.read,
    "mxfp4": floats.mxfp4,
    "mxfp8": floats.mxfp8,
    "quark": quark.read,
    "torchao": torchao.read,
}
"""Readers by `quant_method`. Missing are methods with unknown sizes and methods that vLLM does not
load: EETQ, AQLM, GGUF, SpQR, VPTQ, HIGGS and Quanto."""

_SAME = {
    "awq_marlin": "awq", "gptq_marlin": "gptq", "auto_gptq": "gptq", "auto_awq": "awq",
    "autoround": "auto-round", "intel/auto-round": "auto-round", "auto_round": "auto-round",
    "inc": "auto-round", "modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt", "compressed_tensors": "compressed-tensors",
    "bnb": "bitsandbytes", "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip


def scheme_of(how: Keys | None) -> Scheme:
    """The scheme of `how`, a `quantization_config`; None without quantisation.

    Raises InvalidValue, which names key and value, for an unknown value; there is no default for
    it.
    """
    if how is None or not how.config:
        return UNQUANTISED
    method = how.text("quant_method").lower()
    if not method:
        method = _unnamed(how)
    method = _SAME.get(method, method)
    reader = METHODS.get(method)
    if reader is None:
        raise how.error("quant_method", method, f"{', '.join(METHODS)}, which vLLM loads")
    return reader(how)


def _unnamed(how: Keys) -> str:
    """The method of a configuration that does not name it. Old versions of ModelOpt and AWQ wrote
    no name."""
    if "quant_algo" in how or "quantization" in how:
        return "modelopt"
    if "w_bit" in how and "q_group_size" in how:
        return "awq"
    raise how.error("quant_method", None, ", ".join(METHODS))
