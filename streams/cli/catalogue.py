"""`shoal models` and `shoal gpus`: list the known models and GPUs with the source of each fact.

The facts are in `autoscaler.performance.catalog`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import instance_type
from autoscaler.performance.mig_profiles import is_slice, whole_gpu
from autoscaler.performance.packaged_profile import default_profile
from streams.cli.json_output import show_json
from streams.files.model_source import architecture, is_file
from streams.plain_text import several
from streams.terminal_console import SafeConsole

_PIPE_WIDTH = 200
_WIDE, _NAME = 140, 16
_COLUMNS = (
    "params B", "active B", "layers", "experts", "KV kB/token", "weights", "context", "window",
)  # fmt: skip
_FEW_COLUMNS = ("params B", "weights")


def add_parser(subparsers: Any) -> None:
    """Add `models` and `gpus` to the command line."""
    models = subparsers.add_parser(
        "models",
        help="list the known models, with the source of each fact",
        description="Lists the packaged models, or shows which entry stands for each given name "
        "or config.json.",
    )
    models.add_argument("names", nargs="*", metavar="NAME", help="a model, or a config.json")
    models.add_argument("--json", action="store_true", help="print JSON")
    models.set_defaults(run=_models)
    gpus = subparsers.add_parser(
        "gpus",
        help="list the known GPUs, with the source of each fact",
        description="Lists the packaged GPUs, or shows which entry stands for each given name: "
        "names that drivers and device plugins print, instance types of AWS, GCP, Azure, "
        "OCI, Lambda and "
        "CoreWeave, and MIG slices (H100/1g.10gb).",
    )
    gpus.add_argument("names", nargs="*", metavar="NAME", help="a GPU, or an instance type")
    gpus.add_argument("--json", action="store_true", help="print JSON")
    gpus.set_defaults(run=_gpus)


def _models(args: argparse.Namespace) -> int:
    names = args.names or sorted(catalog.models(), key=str.lower)
    rows = [_model(name) for name in names]
    if args.json:
        show_json(rows)
        return 0
    table = _table("model", "entry", least=_NAME)
    console = _console()
    shown = _COLUMNS if console.width >= _WIDE else _FEW_COLUMNS
    for column in (*shown, "from"):
        table.add_column(column, justify="right", no_wrap=True)
    notes: dict[str, int] = {}
    for row in rows:
        own = _words(row)
        table.add_row(
            row["model"],
            "" if row["entry"] == row["model"] else row["entry"],
            *(own[column] for column in shown),
            _note(notes, row["source"]),
        )
    said = "" if shown is _COLUMNS else "; a wider terminal or --json shows more"
    _print(console, table, notes, f"{several(len(rows), 'model')}{said}")
    return 0


def _words(row: dict[str, Any]) -> dict[str, str]:
    """The cells of a model, by column."""
    sparse = row["active_params"] != row["params"]
    return {
        "params B": f"{row['params'] / 1e9:.3g}",
        "active B": f"{row['active_params'] / 1e9:.3g}" if sparse else "",
        "layers": str(row["layers"]),
        "experts": f"{row['experts']}/{row['experts_per_token']}" if row["experts"] else "",
        "KV kB/token": f"{row['kv_bytes_per_token'] / 1000:.0f}",
        "weights": f"{row['weight_bytes'] / 1e9:.3g} GB {row['weight_dtype']}",
        "context": str(row["max_position"]),
        "window": str(row["sliding_window"] or ""),
    }


def _model(name: str) -> dict[str, Any]:
    if is_file(name):
        spec, entry, source, published = architecture(name, Path(), "NAME"), name, "this file", 0.0
    else:
        entry = catalog.entry_name(name, "NAME")
        spec, known = catalog.model(name, "NAME"), catalog.entry(entry)
        source, published = known.source, known.published_params
    return {"model": name, "entry": entry, **_facts(spec), "source": source,
            "published_params": published}  # fmt: skip


def _facts(spec: ModelSpec) -> dict[str, Any]:
    return {
        "params": spec.params,
        "active_params": spec.active_params,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "experts": spec.experts,
        "experts_per_token": spec.experts_per_token,
        "kv_bytes_per_token": spec.kv_bytes_per_token,
        "weight_bytes": spec.weight_bytes,
        "weight_dtype": spec.weight_dtype,
        "max_position": spec.max_position,
        "sliding_window": spec.sliding_window,
        "sliding_share": spec.sliding_share,
    }


def _gpus(args: argparse.Namespace) -> int:
    names = args.names or sorted(catalog.gpus())
    rows = [_gpu(name) for name in names]
    if args.json:
        show_json(rows)
        return 0
    table = _table("GPU", "entry", least=10)
    for column in ("BF16 TFLOPS", "FP8", "FP4", "GB", "GB/s", "link GB/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("kernels", overflow="fold")
    table.add_column("from", justify="right", no_wrap=True)
    notes: dict[str, int] = {}
    for row in rows:
        entry = "" if row["entry"] == row["gpu"] else row["entry"]
        table.add_row(
            row["gpu"],
            f"{row['gpus']}x{row['entry']}" if row["gpus"] > 1 else entry,
            f"{row['bf16_tflops']:g}",
            f"{row['fp8_tflops']:g}" if row["fp8_tflops"] else "",
            f"{row['fp4_tflops']:g}" if row["fp4_tflops"] else "",
            f"{row['mem_gb']:g}",
            f"{row['mem_bw_gb_s']:g}",
            f"{row['interconnect_gb_s']:g}",
            row["kernels"],
            _note(notes, row["source"]),
        )
    _print(
        _console(),
        table,
        notes,
        f"{several(len(rows), 'GPU')}; column kernels: times measured on this GPU, or taken from a "
        "similar GPU or from its class; column from: number of the source above",
    )
    return 0


def _gpu(name: str) -> dict[str, Any]:
    spec, profile = catalog.gpu(name, "NAME"), default_profile()
    carried = instance_type(name)
    whole = whole_gpu(spec.name)
    other = profile.like.get(whole, whole if is_slice(spec.name) else "")
    kernels = "measured" if profile.is_measured(spec) else f"like {other}"
    return {
        "gpu": name,
        "entry": spec.name,
        "gpus": carried[1] if carried else 1,
        "bf16_tflops": spec.bf16_tflops,
        "fp8_tflops": spec.fp8_tflops,
        "fp4_tflops": spec.fp4_tflops,
        "mem_gb": spec.mem_gb,
        "mem_bw_gb_s": spec.mem_bw_gb_s,
        "interconnect_gb_s": spec.interconnect_gb_s,
        "kernels": "its class" if kernels == "like " else kernels,
        "source": catalog.gpu_source(spec.name),
    }


def _table(*names: str, least: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in names:
        table.add_column(name, overflow="fold", min_width=least)
    return table


def _note(notes: dict[str, int], source: str) -> str:
    """The number of `source` in `notes`, which is the list below the table."""
    return str(notes.setdefault(source, len(notes) + 1))


def _console() -> Console:
    return SafeConsole(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def _print(console: Console, table: Table, notes: dict[str, int], said: str) -> None:
    console.print(table)
    for source, number in notes.items():
        console.print(Text(f"{number}  {source}"))
    console.print(said)
