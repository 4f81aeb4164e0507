"""Template libraries of Coral's core and extended setup: templates, CPU seconds, memory.

`python -m loadtests.library_bench [--setup core|extended|both] [--engine coral] [--json FILE]`.
Models, latency limits (Coral Table 3), GPUs (sec. 6.1), N_max = 6 and rho = 12 are the paper's.
Lengths are the means of the paper's dataset for a model (Azure conversation). If they are not
available, they are round figures, which the output shows. Throughput comes from this release's
performance model, not from the paper's profiling. CPU seconds exclude imports and compilation,
which a small library triggers beforehand.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import ENGINES, EngineCapabilities
from autoscaler.templates.library_codec import decode, encode
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs

_AZURE_CONV = Lengths(1155.0, 211.0)
_AZURE_CODE = Lengths(2048.0, 28.0)
_BURST_GPT = Lengths(768.0, 256.0)

# (model, prefill ms, decode ms, bucket): Coral Table 3. Llama 3.0 and 3.1 70B share their shape.
_CORE = (
    ("Qwen/Qwen3-32B", 1600.0, 100.0, _BURST_GPT),
    ("openai/gpt-oss-20b", 900.0, 30.0, _AZURE_CODE),
    ("microsoft/phi-4", 1200.0, 60.0, _AZURE_CONV),
)
_EXTENDED = (
    *_CORE,
    ("Qwen/Qwen3-235B-A22B", 1800.0, 120.0, _AZURE_CODE),
    ("openai/gpt-oss-120b", 1000.0, 40.0, _AZURE_CONV),
    ("meta-llama/Llama-3.1-70B", 1500.0, 80.0, _BURST_GPT),
)
_SETUPS = {
    "core": (_CORE, ("L40S", "L4", "A10G")),
    "extended": (_EXTENDED, ("L40S", "L4", "A10G", "H100-SXM", "A100-SXM-80GB")),
}


_HEADINGS = f"{'library':32} {'visited':>8} {'templates':>9} {'build s':>8} {'load s':>7} {'MB':>6}"


@dataclass(frozen=True, slots=True)
class Row:
    """Measurements of one library."""

    setup: str
    library: str
    visited: int
    templates: int
    build_cpu_s: float
    load_cpu_s: float
    file_bytes: int


def requests_of(setup: str, engine: EngineCapabilities, profile: Profile) -> list[LibraryRequest]:
    """The library requests of one of Coral's setups."""
    models, gpus = _SETUPS[setup]
    configs = tuple(NodeSlice(catalog.gpu(name), n) for name in gpus for n in SLICE_SIZES)
    return [
        LibraryRequest(
            catalog.model(name),
            phase,
            Slo(prefill_ms, decode_ms),
            bucket,
            configs,
            engine,
            profile.content_hash,
            utilisation=0.0,
        )
        for name, prefill_ms, decode_ms, bucket in models
        for phase in (Phase.PREFILL, Phase.DECODE)
    ]


def measure(setup: str, request: LibraryRequest, profile: Profile) -> Row:
    """Build one library, encode it and load it again."""
    started = time.process_time()
    table = throughput_table(request, profile)
    library = build_library(request, table, uncertain_configs(request, profile))
    built = time.process_time()
    data = encode(library)
    encoded = time.process_time()
    loaded = decode(data, request, library.content_hash)
    ended = time.process_time()
    if len(loaded) != len(library):
        raise RuntimeError(f"{request.name}: {len(loaded)} of {len(library)} templates came back")
    return Row(
        setup,
        request.name,
        library.visited,
        len(library),
        built - started,
        ended - encoded,
        len(data),
    )


def _total(setup: str, rows: list[Row]) -> Row:
    return Row(
        setup,
        "total",
        sum(row.visited for row in rows),
        sum(row.templates for row in rows),
        sum(row.build_cpu_s for row in rows),
        sum(row.load_cpu_s for row in rows),
        sum(row.file_bytes for row in rows),
    )


def _line(row: Row) -> str:
    return (
        f"{row.library:32} {row.visited:8d} {row.templates:9d} {row.build_cpu_s:8.2f} "
        f"{row.load_cpu_s:7.3f} {row.file_bytes / 1e6:6.2f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.library_bench")
    parser.add_argument("--setup", choices=(*_SETUPS, "both"), default="both")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="coral")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    engine, profile = ENGINES[args.engine], default_profile()
    try:
        small = requests_of("core", engine, profile)[2]
        compiling = time.process_time()
        measure("core", small, profile)
        compiling = time.process_time() - compiling
        rows = []
        for setup in _SETUPS if args.setup == "both" else (args.setup,):
            models, gpus = _SETUPS[setup]
            print(f"\n{setup}: {len(models)} models x 2 phases, {4 * len(gpus)} configurations")
            print(_HEADINGS)
            found = [
                measure(setup, request, profile) for request in requests_of(setup, engine, profile)
            ]
            for row in [*found, _total(setup, found)]:
                print(_line(row))
            rows += found
    except InvalidValue as error:
        print(f"library_bench: {error}", file=sys.stderr)
        return 2
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\nCPU seconds on one thread of {platform.machine()}; peak memory of the process "
        f"{peak_mib:.0f} MiB; first call with compilation or its cache {compiling:.2f} s; engine "
        f"{engine.name}, profile {profile.content_hash[:12]}; input/output tokens: AzureConv "
        f"1155/211, AzureCode 2048/28, BurstGPT 768/256 (the last two are round figures)"
    )
    if args.json:
        body = {"rows": rows, "peak_mib": peak_mib, "first_call_cpu_s": compiling}
        args.json.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
