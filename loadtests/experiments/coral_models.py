"""Coral, sec. 6.3 to 6.5: cost of our plans, of Cauchy's and of homogeneous ones.

    python -m loadtests.experiments.coral_models [--setup core|extended] [--mix M...] [--page FILE]

Models, SLOs, datasets and GPU types are those of the paper's Table 3 and sec. 6.1. Stated where it
does not print them: mean lengths of the datasets (Azure conversation 1155/211, Azure code 2048/28,
BurstGPT 621/235 tokens), AWS on-demand prices of the smallest instance of 1, 2, 4 or 8 GPUs (sizes
that AWS does not sell at half or a quarter of the next), the other regions 10 and 20% dearer. Each
plan is for the mean rate of one epoch, so start penalties (under 1% there) play no part.

ours      joint, over templates: mixed GPUs inside an instance, pipelines, matched pairs
cauchy    eq. 16 over pairs of single-node instances, prefill and decode on unlike GPUs allowed
homo      per model the cheapest goodput, one GPU type in an instance, single nodes

Scarce: of every node kind 25% (core) or 75% (extended) more than an even share of what our ample
plan takes. A method that falls short is asked for less of every model until it does not (sec. 6.4);
served is the share of the demand at which it ends.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.performance.profile import Profile, default_profile
from autoscaler.planning.plan import Plan
from autoscaler.planning.problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.planning.strategies.table import strategy
from loadtests.experiments.page import bar_chart, put, rows_of

CONVERSATION, CODE, BURST = (1155, 211), (2048, 28), (621, 235)


@dataclass(frozen=True, slots=True)
class Model:
    """One row of Table 3: SLOs in ms, mean lengths of its dataset."""

    name: str
    source: str
    prefill_ms: float
    decode_ms: float
    lengths: tuple[int, int]


MODELS = (
    Model("phi4-14b", "microsoft/phi-4", 1200, 60, CONVERSATION),
    Model("gpt-oss-20b", "openai/gpt-oss-20b", 900, 30, CODE),
    Model("qwen3-32b", "Qwen/Qwen3-32B", 1600, 100, BURST),
    Model("llama3-70b", "meta-llama/Llama-3.3-70B-Instruct", 1500, 80, BURST),
    Model("gpt-oss-120b", "openai/gpt-oss-120b", 1000, 40, CONVERSATION),
    Model("qwen3-235b", "Qwen/Qwen3-235B-A22B", 1800, 120, CODE),
)
PRICES = {
    "L40S": {1: 1.861, 2: 5.2463, 4: 10.4926, 8: 30.1312},
    "L4": {1: 0.8048, 2: 2.3008, 4: 4.6016, 8: 13.3504},
    "A10G": {1: 1.006, 2: 2.836, 4: 5.672, 8: 16.288},
    "H100": {1: 6.88, 2: 13.76, 4: 27.52, 8: 55.04},
    "A100": {1: 3.4309, 2: 6.8618, 4: 13.7236, 8: 27.4471},
}
REGIONS = {"us-east-2": 1.0, "ap-northeast-2": 1.2, "us-central-1": 1.1}
PAPER = {
    ("core", "balanced"): {"homo": "1.62", "cauchy": "1.60"},
    ("core", "large-heavy"): {"homo": "1.82", "cauchy": "1.78"},
    ("core", "small-heavy"): {"homo": "about 1.1", "cauchy": "about 1.1"},
    ("extended", "balanced"): {"homo": "3.14", "cauchy": "2.66"},
    ("extended", "large-heavy"): {"homo": "2.79", "cauchy": "3.47"},
    ("extended", "small-heavy"): {"homo": "2.34", "cauchy": "1.64"},
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A setup of sec. 6.1. heavy: models that get 80% of the requests where demand is uneven."""

    name: str
    models: tuple[Model, ...]
    gpus: tuple[str, ...]
    regions: tuple[str, ...]
    req_per_s: float
    slack: float
    heavy: Mapping[str, tuple[str, ...]]


SETUPS = {
    "core": Setup(
        "core", MODELS[:3], ("L40S", "L4", "A10G"), ("us-east-2", "ap-northeast-2"), 10.0, 1.25,
        {"large-heavy": ("qwen3-32b",), "small-heavy": ("phi4-14b",)},
    ),
    "extended": Setup(
        "extended", MODELS, tuple(PRICES), tuple(REGIONS), 25.0, 1.75,
        {"large-heavy": ("qwen3-235b", "gpt-oss-120b"),
         "small-heavy": ("phi4-14b", "gpt-oss-20b")},
    ),
}  # fmt: skip


def cluster_of(setup: Setup, nodes: int) -> Cluster:
    """All node kinds in all regions, `nodes` of each."""
    pools = tuple(
        Pool(
            region, f"{gpu.lower()}x{n}", catalog.gpu(gpu), n, nodes, Market.ON_DEMAND,
            price * REGIONS[region],
        )
        for region in setup.regions
        for gpu in setup.gpus
        for n, price in PRICES[gpu].items()
    )  # fmt: skip
    services = tuple(
        Service(
            model=m.name,
            architecture=catalog.model(m.source),
            slo=Slo(m.prefill_ms, m.decode_ms),
            max_len_tokens=8192,
            lengths=Lengths.expected(*m.lengths),
            utilization=1.0,
            pipelines="any",
        )
        for m in setup.models
    )
    return Cluster(pools, services, Policy(k_start=0.0, k_load=0.0, k_switch=0.0))


def rates(setup: Setup, mix: str) -> dict[str, float]:
    """Requests/s per model: equal, or 80% to the heavy ones."""
    total = setup.req_per_s * len(setup.models)
    heavy = setup.heavy.get(mix, ())
    if not heavy:
        return {m.name: setup.req_per_s for m in setup.models}
    light = 0.2 * total / (len(setup.models) - len(heavy))
    return {m.name: 0.8 * total / len(heavy) if m.name in heavy else light for m in setup.models}


def allowed(method: str, combo: Combo, gpus: Mapping[str, str]) -> bool:
    """Whether a method knows combos of this kind."""
    if method == "ours":
        return True
    single = all(member.stage == 0 for member in combo.members)
    mixed = len({gpus[member.pool] for member in combo.members}) > 1
    return single and (method == "cauchy" or not mixed)


def planned(problem: PlanningProblem, method: str) -> tuple[Plan, float]:
    """The plan of one method, and CPU seconds for it."""
    gpus = {pool.id: pool.gpu.name for pool in problem.cluster.pools}
    kept = {
        model: tuple(combo for combo in combos if allowed(method, combo, gpus))
        for model, combos in problem.candidates.items()
    }
    started = time.process_time()
    chosen = strategy("shoal" if method == "ours" else method)
    return chosen.solve(replace(problem, candidates=kept)), time.process_time() - started


def served(problem: PlanningProblem, method: str) -> tuple[float, Plan]:
    """The largest share of all demand that `method` meets in full, in steps of 2%."""
    low, high, best = 0, 50, None
    while low < high:
        middle = (low + high + 1) // 2
        made, _ = planned(asked(problem, middle / 50), method)
        if made.shortfall_req_per_s:
            high = middle - 1
        else:
            low, best = middle, made
    if best is None:
        best, _ = planned(asked(problem, 1 / 50), method)
    return low / 50, best


def asked(problem: PlanningProblem, share: float) -> PlanningProblem:
    """`problem` with this share of its demand."""
    demands = {
        model: replace(demand, req_per_s=share * demand.req_per_s)
        for model, demand in problem.demands.items()
    }
    return replace(problem, demands=demands)


def problem_of(cluster: Cluster, demand: Mapping[str, float], profile: Profile) -> PlanningProblem:
    """What is to be planned."""
    demands = {s.model: Demand(s.model, demand[s.model], s.lengths)
               for s in cluster.services}  # fmt: skip
    options = PlanOptions(gap=2e-3, time_limit_s=60.0)
    return make_problem(cluster, demands, profile, options=options)


def ample(setup: Setup, mixes: Sequence[str], profile: Profile) -> list[dict[str, Any]]:
    """Sec. 6.3 and 6.5: cost ratios with all nodes one may want."""
    rows: list[dict[str, Any]] = []
    for mix in mixes:
        problem = problem_of(cluster_of(setup, 60), rates(setup, mix), profile)
        found = {method: planned(problem, method) for method in ("ours", "cauchy", "homo")}
        ours = found["ours"][0]
        print(f"{setup.name}, {mix}: ours {ours.cost_usd_per_h:.2f} USD/h, "
              f"gap {ours.gap:.2%}, {found['ours'][1]:.2f} CPU s")  # fmt: skip
        for method, paper in PAPER[setup.name, mix].items():
            made = found[method][0]
            short = ", ".join(made.shortfall_req_per_s)
            said = f"  (short: {short})" if short else ""
            ratio = made.cost_usd_per_h / ours.cost_usd_per_h
            print(f"  {method:7} {made.cost_usd_per_h:8.2f} USD/h, {ratio:.2f} x ours; "
                  f"paper {paper}{said}", flush=True)  # fmt: skip
            rows.append({"mix": mix, "method": method, "usd_per_h": ours.cost_usd_per_h,
                         "ratio": ratio, "paper": paper})  # fmt: skip
    return rows


def scarce(setup: Setup, profile: Profile) -> None:
    """Sec. 6.4: what each method can serve where nodes are short."""
    demand = rates(setup, "balanced")
    wide = cluster_of(setup, 60)
    best, _ = planned(problem_of(wide, demand, profile), "ours")
    taken = sum(node.count for node in best.nodes)
    each = max(1, math.ceil(setup.slack * taken / len(wide.pools)))
    tight = problem_of(cluster_of(setup, each), demand, profile)
    print(f"{setup.name}, scarce: {each} of each of {len(wide.pools)} node kinds")
    for method in ("ours", "cauchy", "homo"):
        share, made = served(tight, method)
        print(f"  {method:7} serves {share:4.0%} for {made.cost_usd_per_h:8.2f} USD/h", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_models")
    mixes = ("balanced", "large-heavy", "small-heavy")
    parser.add_argument("--setup", choices=list(SETUPS), default="core")
    parser.add_argument("--mix", nargs="+", choices=(*mixes, "scarce"), default=[*mixes, "scarce"])
    parser.add_argument("--page", type=Path, help="put table and chart of sec. 6.3 and 6.5 there")
    args = parser.parse_args(argv)
    profile = default_profile()
    setup = SETUPS[args.setup]
    rows = ample(setup, [mix for mix in mixes if mix in args.mix], profile)
    if "scarce" in args.mix:
        scarce(setup, profile)
    try:
        if args.page:
            put(args.page, f"coral-{setup.name}", _table(rows), _chart(rows))
    except InvalidValue as error:
        print(f"coral_models: {error}", file=sys.stderr)
        return 2
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    by_mix = {row["mix"]: row for row in rows}
    cells = [
        [mix, f"{by_mix[mix]['usd_per_h']:.2f}"]
        + [
            text
            for row in rows
            if row["mix"] == mix
            for text in (f"x{row['ratio']:.2f}", f"x{row['paper'].removeprefix('about ')}")
        ]
        for mix in by_mix
    ]
    return rows_of(["demand", "ours USD/h", "Homo", "paper", "Cauchy", "paper"], cells)


def _chart(rows: Sequence[dict[str, Any]]) -> str:
    mixes = list(dict.fromkeys(row["mix"] for row in rows))
    series = {}
    for method in ("homo", "cauchy"):
        mine = [row for row in rows if row["method"] == method]
        series[method] = [row["ratio"] for row in mine]
        series[f"{method}, paper"] = [float(row["paper"].removeprefix("about ")) for row in mine]
    return bar_chart(mixes, series, "cost of the baseline / ours")


if __name__ == "__main__":
    sys.exit(main())
