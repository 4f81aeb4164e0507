"""`shoal workload types`: the workload types of a trace, as YAML for a shoal.yaml."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from autoscaler.domain.workload import MOST_PREFIX_HIT
from autoscaler.estimate.workload_clustering import workload_types
from streams.files.workload_section import types_as_yaml
from streams.tools.replay.trace_blocks import endless_hit_rate
from streams.tools.replay.traces import COLUMNS_HELP, load_trace, parse_columns


def add_parser(subparsers: Any) -> None:
    """Add `workload` to the command line."""
    parser = subparsers.add_parser("workload", help="describe the requests of a recorded trace")
    inner = parser.add_subparsers(dest="workload", metavar="WHAT", required=True)
    types = inner.add_parser(
        "types",
        help="the kinds of requests in a trace, by input and output length",
        description="Groups the requests of a trace by input and output length and prints the "
        "types for the `workload` of a model: `shoal plan --budget` decides which of them goes "
        "to which instances. With block hashes in the trace, it also prints the hit rate of an "
        "endless prefix cache.",
    )
    types.add_argument("--trace", type=Path, required=True, help="a trace as `shoal up` reads it")
    types.add_argument("--columns", metavar="FIELD=COLUMN,...", help=COLUMNS_HELP)
    types.add_argument("--inputs", type=int, default=3, metavar="N", help="input classes (3)")
    types.add_argument("--outputs", type=int, default=3, metavar="N", help="output classes (3)")
    types.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the YAML."""
    trace = load_trace(args.trace, parse_columns(args.columns))
    found = workload_types(trace.input_tokens, trace.output_tokens, args.inputs, args.outputs)
    rate = len(trace.arrivals_ms) / max(trace.duration_s, 1e-3)
    print(f"# {len(trace.arrivals_ms)} requests in {trace.duration_s:.0f} s: {rate:.3g} req/s")
    print(f"# read as {trace.form}; {trace.clock}")
    if trace.blocks:
        share = endless_hit_rate(trace.input_tokens, trace.blocks, trace.block_tokens)
        print("# the share of prompt tokens that one endless prefix cache would hold;")
        print("# engines with less room, and prompts spread over them, hit less")
        print(f"prefix_hit: {math.floor(100 * min(share, MOST_PREFIX_HIT))}%")
    print(types_as_yaml(found))
    return 0
