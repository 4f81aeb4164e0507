"""Read files of measured points.

The columns of a CSV file (plain or .gz) identify its kind: end-to-end benchmark points (silicon_*),
batches of one run (prompt_time, token_time), or grids of iteration times (phase, latency_ms). All
become `MeasuredPoint` values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.memory import fits
from autoscaler.performance.plausibility import peak_share, waits_for_slots
from streams.files.csv_rows import Row, count, number, numbered_rows, whole_number
from streams.files.user_errors import UserError

_SYSTEMS = {
    "a100_sxm": "A100-SXM-80GB",
    "a100_pcie": "A100-PCIe-80GB",
    "rtx_pro_6000": "RTXPRO6000-Blackwell-Server",
    "a100-80gb": "A100-SXM-80GB",
    "h100-80gb": "H100-SXM",
    "rtx_pro_6000_server": "RTXPRO6000-Blackwell-Server",
    # In these points, GPUs of Grace boards equal the SXM GPUs.
    "gb200": "B200-SXM",
    "gb300": "B300-SXM",
}
_QUANTISATION = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_static": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "fp4": "fp4",
    "int4": "int4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
_POWER_CAPPED = "h100-80gb-pcap"
_NODE_GPUS = 8
# Engine of Splitwise's measurements (2023), slower than current engines.
_BATCH_RUNNER = "splitwise"
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")


@dataclass(frozen=True, slots=True)
class PointsFile:
    """Points of one file, and the number of skipped rows for each reason."""

    points: tuple[MeasuredPoint, ...]
    skipped: Mapping[str, int]


class _Skip(Exception):
    """Raised for a row that cannot be compared with a prediction. Rows are
    counted by this reason.
    """


def read_points(path: Path) -> PointsFile:
    """Every usable point of `path`. UserError: the file is invalid."""
    rows = numbered_rows(path)
    columns = rows[0][1].keys()
    parse, needed = _kind(path, columns)
    missing = sorted(needed - columns)
    if missing:
        raise UserError(f"{path}: column {', '.join(missing)} is missing")
    points: list[MeasuredPoint] = []
    skipped: Counter[str] = Counter()
    for line, row in rows:
        try:
            points.append(parse(row))
        except _Skip as reason:
            skipped[str(reason)] += 1
        except InvalidValue as error:
            raise UserError(f"{path}:{line}: {error}") from None
    return PointsFile(tuple(points), dict(sorted(skipped.items())))


def _kind(path: Path, columns: object) -> tuple[Callable[[Row], MeasuredPoint], set[str]]:
    names = set(columns)  # type: ignore[call-overload]
    if names & {"silicon_ttft_ms", "silicon_tpot_ms"}:
        return _benchmark, {
            "model_path",
            "system",
            "backend",
            "mode",
            "isl",
            "osl",
            "precision",
            "batch_size",
            "tp_size",
            "silicon_ttft_ms",
            "silicon_tpot_ms",
        }
    if names & {"prompt_time", "token_time"}:
        return _batch, {
            "model",
            "hardware",
            "prompt_size",
            "batch_size",
            "token_size",
            "prompt_time",
            "token_time",
            "tensor_parallel",
        }
    if "latency_ms" in names or "phase" in names:
        return _pass, {
            "phase",
            "system",
            "model",
            "tp",
            "batch",
            "isl_or_ctx",
            "latency_ms",
            "gemm_quant",
        }
    raise UserError(
        f"{path}: not a file of measured points; expected columns silicon_ttft_ms and "
        "silicon_tpot_ms, or prompt_time and token_time, or phase and latency_ms"
    )


def _benchmark(row: Row) -> MeasuredPoint:
    spec = _model(row["model_path"])
    weights = row.get("moe_quant_mode") if spec.is_moe else ""
    stored = weights or row.get("gemm_quant_mode") or row["precision"]
    if not stored:
        raise _Skip("precision of the weights not given")
    dtype = _dtype(stored)
    kv = "bf16" if dtype in ("bf16", "int4") else "fp8"
    if dtype == "fp4" and spec.weight_dtype == "mxfp4":
        # GPT-OSS has MXFP4 weights. The source lists it as FP4, with its cache in BF16.
        dtype, kv = "mxfp4", "bf16"
    spec = _stored(spec, dtype, kv)
    found = _CONCURRENCY.search(row.get("silicon_data_source", ""))
    split = row["mode"] == "disagg"
    if not split and row["mode"] != "agg":
        raise InvalidValue("mode", row["mode"], "agg or disagg")
    tp, replicas = _width(row, "prefill_" if split else "")
    # batch_size counts per attention replica, but silicon_concurrency may span instances.
    if not split and row["batch_size"]:
        load = number(row, "batch_size") * replicas
    elif found:
        load = float(found.group(1))
    else:
        raise _Skip("no concurrency")
    isl, osl = number(row, "isl"), number(row, "osl")
    ttft, tpot = number(row, "silicon_ttft_ms"), number(row, "silicon_tpot_ms")
    decode_tp = tp
    prefill_load = decode_load = load
    if split:
        if not row.get("decode_num_workers"):
            raise _Skip("disaggregated, numbers of workers not given")
        decode_tp, _ = _width(row, "decode_")
        prefill_load = max(1.0, load / count(row, "prefill_num_workers"))
        decode_load = max(1.0, load / count(row, "decode_num_workers"))
    elif count(row, "pp_size") > 1:
        raise _Skip("pipeline parallel")
    gpu = _gpu(row["system"])
    if not (fits(spec, gpu, tp) and fits(spec, gpu, decode_tp)):
        raise _Skip("weights as described do not fit in memory")
    point = MeasuredPoint(
        row["model_path"],
        row["system"],
        spec,
        gpu,
        PointKind.SPLIT if split else PointKind.CLOSED_LOOP,
        row["backend"],
        tp,
        decode_tp,
        isl,
        osl,
        prefill_load,
        decode_load,
        ttft,
        tpot,
    )
    return _possible(point)


def _width(row: Row, prefix: str) -> tuple[int, int]:
    """(GPUs of an instance, its attention replicas).

    Data parallel attention with expert parallelism has several replicas.
    """
    tp = whole_number(row, f"{prefix}tp_size")
    experts = count(row, f"{prefix}moe_tp_size") * count(row, f"{prefix}moe_ep_size")
    replicas = max(count(row, f"{prefix}attention_dp_size"), experts // tp)
    if tp * replicas > _NODE_GPUS:
        raise _Skip(f"more than {_NODE_GPUS} GPUs in one instance")
    return tp * replicas, replicas


def _batch(row: Row) -> MeasuredPoint:
    tp = whole_number(row, "tensor_parallel")
    point = MeasuredPoint(
        row["model"],
        row["hardware"],
        _model(row["model"]),
        _gpu(row["hardware"]),
        PointKind.BATCH,
        _BATCH_RUNNER,
        tp,
        tp,
        number(row, "prompt_size"),
        number(row, "token_size"),
        number(row, "batch_size"),
        0.0,
        number(row, "prompt_time"),
        number(row, "token_time"),
    )
    return _possible(point)


def _possible(point: MeasuredPoint) -> MeasuredPoint:
    if peak_share(point) > 1.0:
        raise _Skip("faster than the data sheet's peak allows")
    if waits_for_slots(point):
        raise _Skip("requests waited for a slot, and the server's limit is not given")
    return point


def _pass(row: Row) -> MeasuredPoint:
    tp, length, took = whole_number(row, "tp"), number(row, "isl_or_ctx"), number(row, "latency_ms")
    batch = number(row, "batch")
    spec = _model(row["model"])
    weights = row.get("moe_quant") if spec.is_moe else row["gemm_quant"]
    kv = "fp8" if row.get("kv_quant") == "fp8" else "bf16"
    spec = _stored(spec, _dtype(weights or row["gemm_quant"]), kv)
    if row.get("fits") == "0":
        raise _Skip("does not fit in memory")
    if row["phase"] not in ("prefill", "decode"):
        raise InvalidValue("phase", row["phase"], "prefill or decode")
    first = row["phase"] == "prefill"
    # A decode row gives the context of one iteration, so the output length is 0.
    return MeasuredPoint(
        row["model"],
        row["system"],
        spec,
        _gpu(row["system"]),
        PointKind.STEPS,
        "",
        tp,
        tp,
        length,
        0.0,
        batch,
        0.0,
        took if first else None,
        None if first else took,
        # For block-scaled FP8 the grid measured a fallback kernel that is slower than engines.
        typical=row["gemm_quant"] != "fp8_block",
    )


@lru_cache(maxsize=256)
def _model(name: str) -> ModelSpec:
    try:
        return catalog.model(name, "model")
    except InvalidValue:
        raise _Skip(f"architecture of {name} unknown") from None


@lru_cache(maxsize=256)
def _gpu(system: str) -> GpuSpec:
    if system == _POWER_CAPPED:
        # The chip is the same, but points under a power limit are not those of the full GPU.
        return replace(catalog.gpu("H100-SXM"), name=_POWER_CAPPED)
    name = _SYSTEMS.get(system, system)
    for candidate in (name, name.removesuffix("_sxm"), name.replace("_", "-")):
        try:
            return catalog.gpu(candidate, "system")
        except InvalidValue:
            continue
    raise _Skip(f"GPU of system {system} unknown")


@lru_cache(maxsize=256)
def _stored(spec: ModelSpec, dtype: str, kv: str) -> ModelSpec:
    if dtype != "mxfp4":
        spec = catalog.quantized(spec, dtype)
    return catalog.with_kv_cache(spec, kv)


def _dtype(text: str) -> str:
    found = _QUANTISATION.get(text)
    if found is None:
        raise _Skip(f"weights in {text} unknown")
    return found
