"""The packaged facts: model architectures and GPU data sheets.

Owns reading `autoscaler/data/models.json` and `gpus.json`, which ship with the package and are
constants of a release (that is why a pure package may read them). Pure Python: simulated engines
import this, and they must start fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from typing import Any

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.models import ModelSpec

_SHORT_GPU_NAMES = {
    "H100": "H100-SXM",
    "H200": "H200-SXM",
    "H800": "H800-SXM",
    "A100": "A100-SXM-80GB",
    "A800": "A800-SXM-80GB",
    "B200": "B200-SXM",
    "B300": "B300-SXM",
    "V100": "V100-SXM2-16GB",
}
_MODEL_SUFFIXES = ("-Instruct", "-Chat", "-FP8", "-Base")
_FP8_BYTES_PER_PARAM = 1.0
_BF16_BYTES_PER_PARAM = 2.0


def _read(name: str) -> dict[str, Any]:
    text = resources.files("autoscaler").joinpath("data", name).read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text)
    return value


@lru_cache(maxsize=1)
def gpus() -> Mapping[str, GpuSpec]:
    """Every packaged GPU by its full name."""
    return {
        name: GpuSpec(
            name=name,
            bf16_tflops=float(row["bf16_dense_tflops"]),
            fp8_tflops=float(row.get("fp8_dense_tflops", 0.0)),
            mem_bw_gb_s=float(row["mem_bw_gb_s"]),
            mem_gb=float(row["mem_gb"]),
            interconnect_gb_s=float(row["interconnect_gb_s_per_dir"]),
            pcie_gb_s=float(row["pcie_gb_s_per_dir"]),
        )
        for name, row in _read("gpus.json")["gpus"].items()
    }


@lru_cache(maxsize=1)
def models() -> Mapping[str, ModelSpec]:
    """Every packaged language model by its full name (components of omni models left out)."""
    found = {}
    for name, row in _read("models.json").items():
        if "#" in name:
            continue
        dtype = str(row["weight_dtype"])
        found[name] = ModelSpec(
            name=name,
            layers=row["layers"],
            hidden=row["hidden"],
            heads=row["heads"],
            kv_heads=row["kv_heads"],
            head_dim=row["head_dim"],
            intermediate=row["intermediate"],
            vocab=row["vocab"],
            params=float(row["params"]),
            active_params=float(row["active_params"]),
            weight_bytes=float(row["weight_bytes"]),
            kv_bytes_per_token=float(row["kv_bytes_per_token_bf16"]),
            weight_dtype="mxfp4" if "mxfp4" in dtype else "bf16",
            experts=row["experts"] or 0,
            experts_per_token=row["experts_per_token"] or 0,
            moe_intermediate=row["moe_intermediate"] or 0,
            sliding_window=row["sliding_window"] or 0,
            sliding_share=0.5 if row["sliding_window"] else 0.0,
            max_position=row["max_position"],
        )
    return found


def gpu(name: str, field: str = "gpu") -> GpuSpec:
    """The GPU called `name` (full or the usual short form, any case), else InvalidValue."""
    known = gpus()
    wanted = _SHORT_GPU_NAMES.get(name.upper(), name)
    for full, spec in known.items():
        if full.lower() == wanted.lower():
            return spec
    names = sorted({*known, *_SHORT_GPU_NAMES})
    raise InvalidValue(field, name, _nearest(name, names))


def model(name: str, field: str = "source") -> ModelSpec:
    """The architecture of `name`; a fine-tune suffix such as -Instruct is looked through."""
    known = models()
    for candidate in _candidates(name):
        for full, spec in known.items():
            if candidate.lower() == full.lower():
                return replace(spec, name=name)
    raise InvalidValue(field, name, _nearest(name, sorted(known)))


def quantized(spec: ModelSpec, dtype: str) -> ModelSpec:
    """`spec` with its weights in `dtype` ("bf16" or "fp8"); the KV cache stays as it is."""
    if dtype == spec.weight_dtype:
        return spec
    if dtype not in ("bf16", "fp8"):
        raise InvalidValue("quantization", dtype, "bf16 or fp8")
    per_param = _FP8_BYTES_PER_PARAM if dtype == "fp8" else _BF16_BYTES_PER_PARAM
    return replace(spec, weight_dtype=dtype, weight_bytes=spec.params * per_param)


def _candidates(name: str) -> list[str]:
    stems = [name]
    for suffix in _MODEL_SUFFIXES:
        stems += [stem.removesuffix(suffix) for stem in stems if stem.endswith(suffix)]
    spellings = []
    for stem in stems:
        spellings += [
            stem,
            stem.replace("Meta-Llama", "Llama"),
            stem.replace("Llama-3.3", "Llama-3.1"),
        ]
    return spellings


def _nearest(name: str, names: list[str]) -> str:
    lowered = {n.lower(): n for n in names}
    near = get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    listing = ", ".join(names)
    return f"{lowered[near[0]]} (the nearest) or one of {listing}" if near else f"one of {listing}"
