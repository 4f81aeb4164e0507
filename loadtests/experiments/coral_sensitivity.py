"""Coral, sec. 6.7: templates and CPU time for N_max and rho, and the gain of larger values.

    python -m loadtests.experiments.coral_sensitivity [--model NAME]

The paper's test bed: the prefill phase of GPT-OSS 120B on the extended setup's 20 node
configurations. N_max is the number of nodes of a template, and rho is its memory relative to the
model's size. For each pair it prints the searched multisets, the kept templates, CPU seconds on one
thread, and requests per USD of the best template. Our search uses at most 6 nodes; the paper's
curve is flat from 6 nodes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.throughput_table import throughput_table
from loadtests.experiments.coral_setup import MODELS, PRICES
from loadtests.experiments.page import rows_of

PAIRS = ((1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0), (5, 10.0), (6, 12.0), (6, 24.0))
"""Pairs (N_max, rho). Both rise together, as in the paper's Figure 13; the last one doubles rho."""


@dataclass(frozen=True, slots=True)
class Row:
    """One library. best: requests per USD of its best template; nodes: number of nodes of that
    template."""

    most_nodes: int
    rho: float
    visited: int
    templates: int
    cpu_s: float
    best: float
    nodes: str


def measure(name: str, most_nodes: int, rho: float) -> Row:
    """Build one library and find its best template."""
    model = next((m for m in MODELS if m.name == name), None)
    if model is None:
        raise InvalidValue("--model", name, " or ".join(m.name for m in MODELS))
    profile = default_profile()
    slices = tuple(NodeSlice(catalog.gpu(gpu), n) for gpu, sizes in PRICES.items() for n in sizes)
    usd_per_h = np.array([price for sizes in PRICES.values() for price in sizes.values()])
    request = LibraryRequest(
        catalog.model(model.source), Phase.PREFILL, Slo(model.prefill_ms, model.decode_ms),
        Lengths(*model.lengths), slices, CORAL, profile.content_hash, most_nodes, rho, 0.0,
    )  # fmt: skip
    started = time.process_time()
    library = build_library(request, throughput_table(request, profile))
    cpu_s = time.process_time() - started
    per_usd = 3600.0 * library.throughput_req_per_s / (library.node_counts @ usd_per_h)
    at = int(per_usd.argmax()) if len(per_usd) else -1
    best = float(per_usd[at]) if at >= 0 else 0.0
    counts = library.node_counts[at] if at >= 0 else ()
    made = " + ".join(f"{n} x {s.name}" for n, s in zip(counts, slices, strict=False) if n)
    return Row(most_nodes, rho, library.visited, len(library), cpu_s, best, made or "none fits")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_sensitivity")
    parser.add_argument("--model", default="gpt-oss-120b", help="a name in coral_setup.MODELS")
    args = parser.parse_args(argv)
    try:
        measure(args.model, 2, 12.0)  # This compiles before the measurements.
        rows = [measure(args.model, n, rho) for n, rho in PAIRS]
        print("\n".join(_table(rows)))
    except InvalidValue as error:
        print(f"coral_sensitivity: {error}", file=sys.stderr)
        return 2
    return 0


def _table(rows: Sequence[Row]) -> list[str]:
    top = max(row.best for row in rows)
    heads = ["N_max", "rho", "node sets", "templates", "CPU s", "best, req/USD", "of the highest",
             "best template"]  # fmt: skip
    cells = [
        [f"{r.most_nodes}", f"{r.rho:g}", f"{r.visited}", f"{r.templates}", f"{r.cpu_s:.2f}",
         f"{r.best:.0f}", f"{r.best / top:.1%}", r.nodes]
        for r in rows
    ]  # fmt: skip
    return rows_of(heads, cells)


if __name__ == "__main__":
    sys.exit(main())
