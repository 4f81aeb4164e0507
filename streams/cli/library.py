"""`shoal library build | show`: build and list the serving templates of plans.

The planner itself builds the templates that it needs, so these commands only show them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.templates.engine_filter import ENGINES, VLLM
from autoscaler.templates.library import Library, Template
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.required_libraries import required_library_requests
from streams.cli.json_output import show_json
from streams.files.library_store import cache_folder, load_or_build, read_library_header
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError


def add_parser(subparsers: Any) -> None:
    """Add `library` with its two actions to the command line."""
    parser = subparsers.add_parser(
        "library",
        help="build or show the library of serving templates",
        description="Serving templates are combinations of nodes, with the best placement of a "
        "model and its requests/s. Shoal builds them at first use; this command shows them.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="build missing libraries and list all of them")
    show = actions.add_parser("show", help="list the best templates of each library")
    for action in (build, show):
        what = action.add_argument_group("models of a file, or one model")
        what.add_argument("--config", type=Path, help="all services of this shoal.yaml")
        what.add_argument("--model", help='for example "Qwen/Qwen3-32B"')
        what.add_argument("--phase", choices=[p.value for p in Phase], help="default: all")
        what.add_argument("--ttft-ms", type=float, default=2000.0, metavar="MS")
        what.add_argument("--tpot-ms", type=float, default=60.0, metavar="MS")
        what.add_argument("--input-tokens", type=float, default=1024.0, metavar="N")
        what.add_argument("--output-tokens", type=float, default=256.0, metavar="N")
        what.add_argument("--utilization", type=float, default=0.85, metavar="SHARE")
        what.add_argument(
            "--gpus", default="L4,L40S,A100,H100", metavar="NAMES", help="comma separated"
        )
        action.add_argument(
            "--engine",
            choices=list(ENGINES),
            help="possible instances: one node (vllm), uneven pipelines, or Coral's full library "
            "(default: as the engines of the file declare; with --model, one node)",
        )
        action.add_argument("--cache", type=Path, metavar="DIR", help=f"default: {cache_folder()}")
        action.add_argument("--json", action="store_true")
    show.add_argument("--top", type=int, default=10, metavar="N", help="templates per library")
    show.add_argument("--file", type=Path, help="show the inputs of a library file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the action. UserError and InvalidValue become one line and exit code 2."""
    if args.action == "show" and args.file is not None:
        return _show_file(args.file, args.json)
    profile = default_profile()
    requests, prices = _library_requests(args, profile)
    loaded = load_or_build(requests, profile, args.cache)
    for notice in loaded.notices:
        sys.stderr.write(f"shoal: {notice}\n")
    top = args.top if args.action == "show" else 0
    if top < 0:
        raise InvalidValue("--top", top, "0 or more")
    if args.json:
        rows = [_as_json(library, prices, top) for library in loaded.libraries]
        show_json(rows)
        return 0
    print(f"{'library':44} {'templates':>9} {'of':>7}  content")
    for library in loaded.libraries:
        print(
            f"{library.request.name:44} {len(library):9d} {library.visited:7d}  "
            f"{library.content_hash[:12]}"
        )
        for line in _lines(library, prices, top):
            print(line)
    count = len(loaded.libraries)
    print(f"{loaded.built} built, {count - loaded.built} loaded; in {args.cache or cache_folder()}")
    return 0


def _library_requests(
    args: argparse.Namespace, profile: Profile
) -> tuple[tuple[LibraryRequest, ...], Mapping[str, float]]:
    """The library requests, and the lowest USD/h of each slice (empty if no prices are known)."""
    declared = ENGINES[args.engine] if args.engine else None
    if (args.config is None) == (args.model is None):
        raise UserError("library: give either --config FILE or --model NAME")
    if args.config is not None:
        cluster = load_config(args.config).cluster
        prices: dict[str, float] = {}
        for pool in cluster.pools:
            for gpus in SLICE_SIZES:
                if gpus <= pool.per_node and pool.price_usd_per_h > 0:
                    name = NodeSlice(pool.gpu, gpus).name
                    price = pool.price_usd_per_h * gpus / pool.per_node
                    prices[name] = min(price, prices.get(name, price))
        requests = required_library_requests(cluster, profile.content_hash, declared)
        phases = {args.phase} if args.phase else set(Phase)
        return tuple(r for r in requests if r.phase in phases), prices
    engine = declared or VLLM
    model = catalog.model(args.model, "--model")
    gpus_named = [catalog.gpu(name.strip(), "--gpus") for name in args.gpus.split(",")]
    configs = tuple(NodeSlice(gpu, n) for gpu in gpus_named for n in SLICE_SIZES)
    offered = list(Phase) if engine.single_node else [Phase.PREFILL, Phase.DECODE]
    return tuple(
        LibraryRequest(
            model,
            phase,
            Slo(args.ttft_ms, args.tpot_ms),
            Lengths(args.input_tokens, args.output_tokens),
            configs,
            engine,
            profile.content_hash,
            utilisation=args.utilization,
        )
        for phase in ([Phase(args.phase)] if args.phase else offered)
    ), {}


def _best(
    library: Library, prices: Mapping[str, float], top: int
) -> tuple[str, list[tuple[float, Template]]]:
    """The `top` templates by requests/s per USD/h, or per GPU if no prices are known."""
    names = [node.name for node in library.configs]
    priced = bool(prices) and all(name in prices for name in names)
    weights = [
        prices[n] if priced else float(c.gpus) for n, c in zip(names, library.configs, strict=True)
    ]
    size = library.node_counts.astype(float) @ weights
    worth = library.throughput_req_per_s / size
    order = sorted(range(len(library)), key=lambda i: (-worth[i], i))[:top]
    return ("USD/h" if priced else "GPU"), [(float(worth[i]), library.template(i)) for i in order]


def _lines(library: Library, prices: Mapping[str, float], top: int) -> list[str]:
    unit, rows = _best(library, prices, top)
    return [
        f"  {template.throughput_req_per_s:9.2f} req/s  {worth:8.3f} per {unit}  "
        f"{_placement(library, template)}{'  (estimated)' if template.uncertain else ''}"
        for worth, template in rows
    ]


def _placement(library: Library, template: Template) -> str:
    """The layers of each stage, as "1xL4 + 2xL40S: 24 layers | 1xH100-SXM: 40 layers"."""
    names = [node.name for node in library.configs]
    return " | ".join(
        f"{' + '.join(names[c] for c in stage.nodes)}: {stage.layers} layers"
        for stage in template.stages
    )


def _as_json(library: Library, prices: Mapping[str, float], top: int) -> dict[str, Any]:
    unit, rows = _best(library, prices, top)
    names = [node.name for node in library.configs]
    return {
        "model": library.request.model.name,
        "phase": library.request.phase,
        "engine": library.request.engine.name,
        "content_hash": library.content_hash,
        "templates": len(library),
        "multisets": library.visited,
        "best": [
            {
                "req_per_s": template.throughput_req_per_s,
                f"req_per_s_per_{'usd_per_h' if unit == 'USD/h' else 'gpu'}": worth,
                "uncertain": template.uncertain,
                "stages": [
                    {"nodes": [names[c] for c in stage.nodes], "layers": stage.layers}
                    for stage in template.stages
                ],
            }
            for worth, template in rows
        ],
    }


def _show_file(path: Path, as_json: bool) -> int:
    header = read_library_header(path)
    asked = header.request
    if as_json:
        show_json(header)
        return 0
    print(f"{path}: {header.templates} templates of {header.visited} multisets")
    print(f"  content {header.content_hash}")
    for name, value in asked.items():
        if isinstance(value, dict) and "name" in value:
            value = value["name"]
        elif name == "configs":
            value = ", ".join(f"{c['gpus']}x{c['gpu']['name']}" for c in value)
        print(f"  {name}: {value}")
    return 0
