"""Coral, sec. 6.6: many small pipelines, and Helix's one pipeline over the whole cluster.

    python -m loadtests.experiments.coral_helix

Helix's "High GPU-Heterogeneity Cluster" (4 A100 40G, 6 V100, 16 L4, 38 T4) serves Llama 2 70B on
requests of 763 tokens in, 232 out (Azure conversation). Our plan uses the exact templates of at
most six nodes within 2090 ms to the first token and 730 ms per token. It is the cheapest allocation
among those that serve the most requests. Coral does not print Helix's own throughput, so Helix's
plan is modelled: all nodes form one pipeline without a latency limit, with the best number of
stages. Prompts and tokens share every stage. Nodes are assigned to stages by their strength, and
layers by an exact search. Both plans use our performance model.

The paper gives no node sizes and prices, so these are assumptions. Nodes are 4 x 1 A100, 6 x 1
V100, 8 x 1 and 4 x 2 L4, 10 x 1, 6 x 2 and 4 x 4 T4. Prices are AWS on-demand prices. A node size
that AWS does not sell costs its share of the next larger size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.result import SolveOptions
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.throughput import stage_table
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.throughput_table import throughput_table
from loadtests.experiments.page import rows_of
from loadtests.template_problem import TemplateProblem, solve_templates

MODEL = catalog.model("meta-llama/Llama-2-70b-hf")
LENGTHS = Lengths(763.0, 232.0)
SLO = Slo(2090.0, 730.0)
NODES = (
    ("A100-40GB", 1, 4, 4.096), ("V100", 1, 6, 3.06), ("L4", 1, 8, 0.8048), ("L4", 2, 4, 2.3008),
    ("T4", 1, 10, 0.526), ("T4", 2, 6, 1.956), ("T4", 4, 4, 3.912),
)  # fmt: skip
"""GPU type, GPUs of a node, number of nodes, USD/h of a node."""
SLICES = tuple(NodeSlice(catalog.gpu(gpu), n) for gpu, n, _, _ in NODES)
COUNTS = np.array([count for _, _, count, _ in NODES])
PRICES = np.array([usd for _, _, _, usd in NODES])
MOST_STAGES = 24
_NO_LIMIT = Slo(1e8, 1e8)
PAPER = "cost -21%, throughput +26%"


@dataclass(frozen=True, slots=True)
class Row:
    """One use of the cluster. used: number of nodes of each kind."""

    name: str
    req_per_s: float
    usd_per_h: float
    used: Ints


def instance(req_per_s: float) -> TemplateProblem:
    """Our templates of both phases on the cluster's nodes."""
    profile = default_profile()
    nodes, rates = [], []
    for phase in (Phase.PREFILL, Phase.DECODE):
        request = LibraryRequest(MODEL, phase, SLO, LENGTHS, SLICES, CORAL, profile.content_hash,
                                 utilisation=0.0)  # fmt: skip
        library = build_library(request, throughput_table(request, profile))
        nodes.append(library.node_counts.astype(np.int64))
        rates.append(library.throughput_req_per_s)
    return TemplateProblem(
        PRICES[None, :], COUNTS[None, :], np.full(2, req_per_s), tuple(nodes), tuple(rates), 0.0
    )


def allocated(problem: TemplateProblem, name: str) -> Row:
    """The cheapest placements for the demand, or for as much of the demand as the nodes can
    serve."""
    plan = solve_templates(problem, SolveOptions(gap=0.005))
    if not len(plan.rows):
        raise InvalidValue("demand", float(problem.demand_req_per_s[0]), plan.result.reason)
    used = np.zeros(len(NODES), np.int64)
    for group, _, template, count in plan.rows.tolist():
        used += count * problem.nodes[group][template]
    rate = float((plan.result.served_fraction * problem.demand_req_per_s).min())
    return Row(name, rate, plan.result.cost_usd_per_h, used)


def one_pipeline(name: str, slo: Slo) -> Row:
    """All nodes in one pipeline, with the best number of stages and each phase within its limit."""
    profile = default_profile()
    limits = ((Phase.PREFILL, slo.ttft_ms), (Phase.DECODE, slo.tpot_ms))
    tables = [
        stage_table(MODEL, SLICES, phase, limit_ms, LENGTHS, MOST_STAGES, profile)
        for phase, limit_ms in limits
    ]
    both = tables[0] * tables[1] / np.maximum(tables[0] + tables[1], 1e-12)
    rates = [pipeline_req_per_s(both[s - 1], s, COUNTS) for s in range(2, MOST_STAGES + 1)]
    best = int(np.argmax(rates))
    title = f"one pipeline{name}, {best + 2} stages"
    return Row(title, rates[best], float(COUNTS @ PRICES), COUNTS)


def pipeline_req_per_s(table: Floats, stages: int, counts: Ints) -> float:
    """Requests/s of a pipeline of `stages` stages.

    Each of the `counts` nodes joins the stage that is the weakest so far. table: requests/s by
    (configuration, layers); it never rises with the layers.
    """
    layers = table.shape[1]
    strength = (table * np.arange(1, layers + 1)).max(axis=1)
    kinds = np.repeat(np.arange(len(counts)), counts)
    held = np.zeros((stages, layers))
    power = np.zeros(stages)
    for kind in sorted(kinds.tolist(), key=lambda k: -strength[k]):
        at = int(power.argmin())
        held[at] += table[kind]
        power[at] += strength[kind]
    low, high = 0.0, float(held.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        fits = (held >= middle).sum(axis=1)  # the most layers with which a stage serves `middle`
        low, high = (middle, high) if fits.min() > 0 and fits.sum() >= layers else (low, middle)
    return low


def compared() -> list[Row]:
    """The rows of the comparison.

    One pipeline without a limit, one within our limit, our plan for the most requests, and our plan
    for four requests/s.
    """
    plenty = instance(100.0)
    four = replace(plenty, demand_req_per_s=np.full(2, 4.0))
    return [
        one_pipeline("", _NO_LIMIT),
        one_pipeline(" within the SLO", SLO),
        allocated(plenty, "ours within the SLO, the most"),
        allocated(four, "ours within the SLO, 4 req/s"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 no plan."""
    argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_helix").parse_args(argv)
    try:
        rows = compared()
    except InvalidValue as error:
        print(f"coral_helix: {error}", file=sys.stderr)
        return 2
    base = rows[0]
    heads = ["plan", "req/s", "against one pipeline", "USD/h", "against one pipeline",
             "nodes left unused", "paper"]  # fmt: skip
    names = [f"{n} x {gpu}" for gpu, n, _, _ in NODES]
    cells = []
    for row in rows:
        left = (f"{n} of {name}" for n, name in zip(COUNTS - row.used, names, strict=True) if n)
        cells.append([
            row.name, f"{row.req_per_s:.2f}",
            f"{row.req_per_s / base.req_per_s - 1:+.0%}", f"{row.usd_per_h:.2f}",
            f"{row.usd_per_h / base.usd_per_h - 1:+.0%}", ", ".join(left) or "none",
            "Helix" if row is base else PAPER if row is rows[2] else "",
        ])  # fmt: skip
    print("\n".join(rows_of(heads, cells)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
