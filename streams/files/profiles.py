"""Files of measured points, and profile files.

Owns reading CSV files (plain or .gz) of three kinds, told apart by their columns, into
`MeasuredPoint` values: end-to-end benchmark points (silicon_*), batches of one run
(prompt_time, token_time) and grids of pass times (phase, latency_ms). Knows no formulas.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.models import ModelSpec
from autoscaler.performance import catalog
from autoscaler.performance.memory import fits
from autoscaler.performance.plausible import peak_share
from autoscaler.performance.points import MeasuredPoint, PointKind
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_codec import decode, encode
from streams.files.errors import UserError

Row = Mapping[str, str]

_SYSTEMS = {
    "a100_sxm": "A100-SXM-80GB",
    "a100_pcie": "A100-PCIe-80GB",
    "rtx_pro_6000": "RTXPRO6000-Blackwell-Server",
    "a100-80gb": "A100-SXM-80GB",
    "h100-80gb": "H100-SXM",
    "rtx_pro_6000_server": "RTXPRO6000-Blackwell-Server",
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
# What ran the batches of Splitwise's measurements (2023), slower than the engines of today.
_BATCH_RUNNER = "splitwise"
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")


@dataclass(frozen=True, slots=True)
class PointsFile:
    """The points of one file, and how many rows were left out for which reason."""

    points: tuple[MeasuredPoint, ...]
    skipped: Mapping[str, int]


class _Skip(Exception):
    """This row cannot be compared; the reason is counted."""


def read_points(path: Path) -> PointsFile:
    """Every usable point of `path`; UserError says in one line what is wrong."""
    rows = _rows(path)
    parse, needed = _kind(path, rows[0].keys())
    missing = sorted(needed - rows[0].keys())
    if missing:
        raise UserError(f"{path}: column {', '.join(missing)} is missing")
    points: list[MeasuredPoint] = []
    skipped: Counter[str] = Counter()
    for number, row in enumerate(rows, start=2):
        try:
            points.append(parse(row))
        except _Skip as reason:
            skipped[str(reason)] += 1
        except InvalidValue as error:
            raise UserError(f"{path}:{number}: {error}") from None
    return PointsFile(tuple(points), dict(sorted(skipped.items())))


def read_profile(path: Path) -> Profile:
    """The profile in `path`; UserError says in one line what is wrong."""
    try:
        return decode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({_cause(error)})") from None
    except InvalidValue as error:
        raise UserError(f"{path}: {error}") from None


def write_profile(path: Path, profile: Profile) -> None:
    """Write `profile` to `path`; UserError when the place cannot be written."""
    try:
        path.write_text(encode(profile), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({_cause(error)})") from None


def _cause(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "broken gzip"


def _rows(path: Path) -> Sequence[Row]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({_cause(error)})") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = [row for row in reader if any(row.values())]
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None
    if not reader.fieldnames:
        raise UserError(f"{path}: the file is empty")
    if not rows:
        raise UserError(f"{path}: the file has a header but no rows")
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"{path}:{number}: not {len(reader.fieldnames)} cells as the header")
    return rows


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
        # GPT-OSS ships in MXFP4; sources file it under FP4, with its cache in BF16.
        dtype, kv = "mxfp4", "bf16"
    spec = _stored(spec, dtype, kv)
    found = _CONCURRENCY.search(row.get("silicon_data_source", ""))
    split = row["mode"] == "disagg"
    if not split and row["mode"] != "agg":
        raise InvalidValue("mode", row["mode"], "agg or disagg")
    tp, replicas = _width(row, "prefill_" if split else "")
    # batch_size is per replica of the attention; the source's concurrency may span instances.
    if not split and row["batch_size"]:
        load = _number(row, "batch_size") * replicas
    elif found:
        load = float(found.group(1))
    else:
        raise _Skip("no concurrency")
    isl, osl = _number(row, "isl"), _number(row, "osl")
    ttft, tpot = _number(row, "silicon_ttft_ms"), _number(row, "silicon_tpot_ms")
    decode_tp = tp
    prefill_load = decode_load = load
    if split:
        if not row.get("decode_num_workers"):
            raise _Skip("disaggregated, numbers of workers not given")
        decode_tp, _ = _width(row, "decode_")
        prefill_load = max(1.0, load / _count(row, "prefill_num_workers"))
        decode_load = max(1.0, load / _count(row, "decode_num_workers"))
    elif _count(row, "pp_size") > 1:
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
    if peak_share(point) > 1.0:
        raise _Skip("faster than the data sheet's peak allows")
    return point


def _width(row: Row, prefix: str) -> tuple[int, int]:
    """GPUs of an instance, and replicas of its attention (data parallel beside the experts)."""
    tp = _whole(row, f"{prefix}tp_size")
    experts = _count(row, f"{prefix}moe_tp_size") * _count(row, f"{prefix}moe_ep_size")
    replicas = max(_count(row, f"{prefix}attention_dp_size"), experts // tp)
    if tp * replicas > _NODE_GPUS:
        raise _Skip(f"more than {_NODE_GPUS} GPUs in one instance")
    return tp * replicas, replicas


def _batch(row: Row) -> MeasuredPoint:
    tp = _whole(row, "tensor_parallel")
    return MeasuredPoint(
        row["model"],
        row["hardware"],
        _model(row["model"]),
        _gpu(row["hardware"]),
        PointKind.BATCH,
        _BATCH_RUNNER,
        tp,
        tp,
        _number(row, "prompt_size"),
        _number(row, "token_size"),
        _number(row, "batch_size"),
        0.0,
        _number(row, "prompt_time"),
        _number(row, "token_time"),
    )


def _pass(row: Row) -> MeasuredPoint:
    tp, length, took = _whole(row, "tp"), _number(row, "isl_or_ctx"), _number(row, "latency_ms")
    batch = _number(row, "batch")
    spec = _model(row["model"])
    weights = row.get("moe_quant") if spec.is_moe else row["gemm_quant"]
    kv = "fp8" if row.get("kv_quant") == "fp8" else "bf16"
    spec = _stored(spec, _dtype(weights or row["gemm_quant"]), kv)
    if row.get("fits") == "0":
        raise _Skip("does not fit in memory")
    if row["phase"] not in ("prefill", "decode"):
        raise InvalidValue("phase", row["phase"], "prefill or decode")
    first = row["phase"] == "prefill"
    # A decode row gives the context of its one iteration, so no output lengthens it further.
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
        # The grid times block-scaled FP8 in a fallback kernel, far from what engines ship.
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
        # The same chip, but what was measured under a power cap must not pass for the whole GPU.
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


def _number(row: Row, column: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise InvalidValue(column, text, "a finite number above 0")
    return value


def _whole(row: Row, column: str) -> int:
    value = _number(row, column)
    if value != int(value) or value > 1024:
        raise InvalidValue(column, row[column], "a whole number from 1 to 1024")
    return int(value)


def _count(row: Row, column: str) -> int:
    """An optional count: absent, empty and 0 all mean one."""
    text = row.get(column) or "1"
    return 1 if text in ("0", "0.0") else _whole({column: text}, column)
