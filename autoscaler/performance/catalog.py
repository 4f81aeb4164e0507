"""The packaged facts: model architectures and GPU data sheets.

Reads `models.json`, `architectures.json` and `gpus.json` of `autoscaler/data`. The files are
constants of a release, so even a package without I/O may read them. Pure Python, because simulated
engines import this module and must start fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.splits import Split
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_config
from autoscaler.performance.catalog_names import (
    block_size_of,
    gpu_product,
    has_integer_activations,
    instance_type,
    is_undivided,
    states_pooling,
    storage_of,
    unloadable_format,
    variant_of,
)
from autoscaler.performance.mig_profiles import profiles, slice_of, split_name, whole_gpu

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
# FP4 has a scale byte per 16 weights (NVFP4), INT4 a scale of two bytes per 64 weights.
_BYTES_PER_PARAM = {
    "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 4.5 / 8, "int4": 4.25 / 8, "mxfp4": 4.25 / 8,
}  # fmt: skip
_KV_BYTES = {"bf16": 2.0, "fp8": 1.0}
_UNDIVIDED = "weights that bitsandbytes saved have no tensor parallelism"


_GPU_SHORT_OF: dict[str, str] = {}
for _short, _full in _SHORT_GPU_NAMES.items():
    _GPU_SHORT_OF.setdefault(_full, _short)


def short_gpu_name(name: str) -> str:
    """The usual short form of a GPU's full name, e.g. "H100" for "H100-SXM"; the full name if there
    is no short form."""
    whole, slash, profile = name.partition("/")
    return f"{_GPU_SHORT_OF.get(whole, whole)}{slash}{profile}"


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
            fp4_tflops=float(row.get("fp4_dense_tflops", 0.0)),
            mem_bw_gb_s=float(row["mem_bw_gb_s"]),
            mem_gb=float(row["mem_gb"]),
            label_gb=float(row.get("label_gb", 0.0)),
            interconnect_gb_s=float(row["interconnect_gb_s_per_dir"]),
            pcie_gb_s=float(row["pcie_gb_s_per_dir"]),
        )
        for name, row in _read("gpus.json")["gpus"].items()
    }


def gpu_source(full_name: str) -> str:
    """The source of the facts of the packaged GPU `full_name`."""
    return str(_read("gpus.json")["gpus"][whole_gpu(full_name)]["source"])


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model of the catalogue.

    source: source of the facts. published_params: number of parameters that the publisher states, 0
    if unknown.
    """

    spec: ModelSpec
    source: str
    published_params: float = 0.0


@lru_cache(maxsize=1)
def _packaged() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Content of `models.json` and `architectures.json`, the former without components of omni
    models."""
    sizes = {name: row for name, row in _read("models.json").items() if "#" not in name}
    return sizes, _read("architectures.json")


@lru_cache(maxsize=1)
def models() -> tuple[str, ...]:
    """The full name of every packaged language model."""
    sizes, packaged = _packaged()
    return tuple({**sizes, **packaged["models"]})


@cache
def entry(full_name: str) -> CatalogEntry:
    """The packaged language model `full_name`."""
    sizes, packaged = _packaged()
    row = packaged["models"].get(full_name)
    if row is None:
        row = sizes[full_name]
        return CatalogEntry(_spec_from_sizes(full_name, row), str(row["source"]))
    return CatalogEntry(
        from_config(full_name, row["config"]),
        str(packaged["sources"][row["source"]]),
        float(row.get("published_params", 0.0)),
    )


def _spec_from_sizes(name: str, row: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(
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
        weight_dtype=_weight_dtype(str(row["weight_dtype"])),
        experts=row["experts"] or 0,
        experts_per_token=row["experts_per_token"] or 0,
        moe_intermediate=row["moe_intermediate"] or 0,
        sliding_window=row["sliding_window"] or 0,
        sliding_share=0.5 if row["sliding_window"] else 0.0,
        max_position=row["max_position"],
        splits=_splits(row),
    )


def _splits(row: Mapping[str, Any]) -> tuple[Split, ...]:
    """Widths that tensor parallelism divides, for a model whose sizes are in
    `architectures.json`."""
    found = [Split("num_attention_heads x head_dim", row["heads"] * row["head_dim"])]
    if expert := row["moe_intermediate"]:
        found.append(Split("moe_intermediate_size", expert, expert=True))
    else:
        found.append(Split("intermediate_size", row["intermediate"]))
    return tuple(found)


def gpu(name: str, field: str = "gpu") -> GpuSpec:
    """The GPU called `name`. Raises InvalidValue if it is unknown.

    Accepts in any case: the full or usual short name, the name that a driver or device plugin uses
    (NVIDIA-H100-80GB-HBM3), a cloud's instance type (p5.48xlarge), or a slice (H100/1g.10gb).
    """
    sliced = split_name(name)
    if sliced:
        whole = gpu(sliced[0], field)
        found = slice_of(whole, sliced[1])
        if found is None:
            known = ", ".join(f"{sliced[0]}/{one.name}" for one in profiles(whole))
            raise InvalidValue(field, name, known or f"{whole.name}, which has no MIG slices")
        return found
    entries = gpus()
    carried = instance_type(name)
    wanted = carried[0] if carried else _SHORT_GPU_NAMES.get(name.upper(), name)
    for candidate in (wanted, gpu_product(name) or ""):
        for full, spec in entries.items():
            if full.lower() == candidate.lower():
                return spec
    names = sorted({*entries, *_SHORT_GPU_NAMES})
    raise InvalidValue(field, name, _suggestion(name, names, "gpus"))


def entry_name(name: str, field: str = "source") -> str:
    """Full name of the catalogue entry for the model `name`. Raises InvalidValue if there is none.

    The name may differ in upper and lower case or in its organisation. A variant or fine-tune has
    the entry of its architecture, see `catalog_names.variant_of`.
    """
    known = models()
    for full in known:
        if full.lower() == name.lower():
            return full
    last = name.rpartition("/")[2].lower()
    for full in known:
        if full.rpartition("/")[2].lower() == last:
            return full
    found = variant_of(name, known)
    if found is None:
        raise InvalidValue(
            field, name, f"{_suggestion(name, sorted(known), 'models')}, or a ./config.json"
        )
    return found


def model(name: str, field: str = "source") -> ModelSpec:
    """The architecture of `name`, by `entry_name`, with weights in the format that the name states.

    A variant in FP8, FP4, INT8 or INT4 has its entry's sizes with smaller weights, and blocks that
    a split must keep whole. Raises InvalidValue for a format that vLLM does not load.
    """
    found = entry_name(name, field)
    spec = replace(entry(found).spec, name=name)
    spec = replace(spec, pooling=spec.pooling or states_pooling(name))
    if word := unloadable_format(name):
        raise InvalidValue(field, name, f"no {word.upper()}; declare the model's own ./config.json")
    stored = storage_of(name)
    if not stored or storage_of(found) or stored == spec.weight_dtype:
        return spec
    small = quantized(spec, stored)
    multiple = block_size_of(name, stored)
    why = f"assumed blocks of {multiple}, see docs/reference/checkpoints.md" if multiple > 1 else ""
    return replace(
        small,
        splits=tuple(
            one if one.most_parts else replace(one, multiple=multiple, why=why)
            for one in small.splits
        ),
        undivided=_UNDIVIDED if is_undivided(name) else "",
        integer_activations=has_integer_activations(name),
    )


def quantized(spec: ModelSpec, dtype: str) -> ModelSpec:
    """`spec` with its weights in `dtype` ("bf16", "fp8", "int8", "fp4", ...). The KV cache does not
    change.

    Embeddings and output head stay in BF16, as in engines.
    """
    if dtype == spec.weight_dtype:
        return spec
    per_param = _BYTES_PER_PARAM.get(dtype)
    if per_param is None:
        raise InvalidValue("quantization", dtype, ", ".join(_BYTES_PER_PARAM))
    embeddings = min(2.0 * spec.vocab * spec.hidden, 0.5 * spec.params)
    body = spec.params - embeddings
    weight_bytes = body * per_param + embeddings * _BYTES_PER_PARAM["bf16"] + spec.tower_bytes
    return replace(
        spec,
        weight_dtype=dtype,
        weight_bytes=weight_bytes,
        dense_bytes=0.0,
        expert_bytes=0.0,
        splits=tuple(replace(one, multiple=1, why="") for one in spec.splits),
        undivided="",
        integer_activations=False,
    )


def with_kv_cache(spec: ModelSpec, dtype: str) -> ModelSpec:
    """`spec` with the KV cache in `dtype` ("bf16", "fp8"). The packaged KV cache is BF16."""
    if dtype not in _KV_BYTES:
        raise InvalidValue("kv_cache_dtype", dtype, ", ".join(_KV_BYTES))
    factor = _KV_BYTES[dtype] / _KV_BYTES["bf16"]
    return replace(spec, kv_bytes_per_token=spec.kv_bytes_per_token * factor)


def _weight_dtype(text: str) -> str:
    for sign, dtype in (("mxfp4", "mxfp4"), ("int4", "int4"), ("float8", "fp8")):
        if sign in text:
            return dtype
    return "bf16"


def _suggestion(name: str, names: list[str], command: str) -> str:
    lowered = {n.lower(): n for n in names}
    near = get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    if near:
        return f"one of {len(names)} known names (did you mean {lowered[near[0]]}?)"
    some = get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.0)
    such = ", ".join(lowered[one] for one in some)
    return f"one of {len(names)} known names, such as {such} (shoal {command} lists them)"
