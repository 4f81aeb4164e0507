"""Demystifying Cost-Efficiency (ICML '25), sec. 5: gain of each decision in budget mode.

    python -m loadtests.experiments.demystifying [--budgets 15,30,60] [--json OUT]
    python -m loadtests.experiments.demystifying --scale

The first command runs the availabilities of Table 4, the mixes of Table 5 and each budget. It
prints requests/s of our plan for Llama-3-70B, and of plans without one of its decisions. Those use
the best single GPU type; the same spending on each GPU type; the best single tensor-parallel size;
round robin over the replicas; or weights by speed, which ignore request types. Rates for the
paper's nine request types come from our performance model (the paper measured on rented GPUs).
Prices are those of Table 1. As in the paper, availability does not limit homogeneous fleets. The
paper has no SLO, so the limits here are too loose to have an effect. The second command compares
our single MIP with the paper's bisection on makespans.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Market, Objective, Policy, Pool, Service
from autoscaler.domain.workload import Demand, Lengths, Slo, WorkloadType
from autoscaler.modes.budget.budget_program import budget_arrays
from autoscaler.optimizer.activity_lp import Mix, MixProblem, Unfound, most_work, work_of
from autoscaler.optimizer.array_types import Ints
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import Profile
from autoscaler.planning.planning_problem import make_problem
from loadtests.experiments.mixes import even_fractions, makespan_by_bisection, restricted

# Table 1 (USD per GPU-hour) and Table 4 (available GPUs), in the order of Table 4.
GPUS = ("RTX4090", "A40", "A6000", "L40", "A100", "H100")
PRICES = (0.53, 0.55, 0.83, 0.83, 1.75, 2.99)
AVAILABLE = (
    (16, 12, 8, 12, 6, 8),
    (32, 8, 16, 16, 7, 12),
    (32, 16, 8, 8, 32, 8),
    (24, 24, 24, 16, 4, 8),
)
# Table 5: shares of the nine request types in per cent, ordered by input, then by output (Figure
# 4).
MIXES = (
    (33, 7, 8, 7, 27, 6, 6, 3, 3),
    (22, 5, 5, 21, 5, 5, 19, 6, 12),
    (4, 1, 4, 3, 20, 27, 1, 25, 15),
)
TYPES = tuple((i, o) for i in (2455, 824, 496) for o in (18, 253, 510))
PAPER = {
    "one GPU type": "25% on average, up to 41%",
    "even composition": "20% on average, up to 27%",
    "one parallelism": "33% on average, up to 34%",
    "round robin": "29% on average, up to 32%",
    "weighted by speed": "not in the paper",
}
MODELS = {"70b": "meta-llama/Llama-3.3-70B-Instruct", "8b": "meta-llama/Llama-3.1-8B-Instruct"}


def cluster_of(available: tuple[int, ...], mix: tuple[int, ...], *models: str) -> Cluster:
    """One region with `available` GPUs of each type. A node is one machine of up to eight GPUs."""
    pools = tuple(
        Pool("cloud", name.lower(), catalog.gpu(name), 1, 0, Market.ON_DEMAND, price)
        for name, price in zip(GPUS, PRICES, strict=True)
    )
    pools = tuple(
        replace(pool, per_node=8, max_nodes=-(-count // 8), price_usd_per_h=8 * price)
        for pool, count, price in zip(pools, available, PRICES, strict=True)
    )
    total = sum(mix)
    types = tuple(
        WorkloadType(f"{i}-{o}", share / total, Lengths(i, o))
        for (i, o), share in zip(TYPES, mix, strict=True)
    )
    services = tuple(
        Service(
            model=model,
            architecture=catalog.model(MODELS[model]),
            slo=Slo(60_000.0, 500.0),
            max_len_tokens=4096,
            types=types,
            utilization=1.0,
        )
        for model in models
    )
    return Cluster(pools, services, Policy(budget_usd_per_h=1e9, objective=Objective.MAKESPAN))


def arrays_of(cluster: Cluster, rates: Mapping[str, float], profile: Profile) -> MixProblem:
    """The optimization problem for `rates` in requests/s by model, as arrays."""
    demands = {m: Demand(m, rate, cluster.service(m).lengths) for m, rate in rates.items()}
    return budget_arrays(make_problem(cluster, demands, profile)).mix


def per_gpu(arrays: MixProblem, available: tuple[int, ...], budget: float) -> MixProblem:
    """`arrays` for clouds that rent single GPUs, as in the paper.

    Each type has `available` GPUs at its price.
    """
    return replace(
        arrays,
        node_gpus=np.ones(len(GPUS)),
        node_usd_per_h=np.array(PRICES),
        node_max=np.array(available, dtype=float),
        budget_usd_per_h=budget,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Requests/s of one case: with our plan, and without each of its decisions."""

    available: int
    mix: int
    budget: float
    ours: float
    without: dict[str, float]


def case(
    cluster: Cluster, available: tuple[int, ...], budget: float, profile: Profile
) -> tuple[float, dict[str, float]]:
    """Requests/s of our plan, and without each decision (0 if no request can be served)."""
    rates = {s.model: 1.0 for s in cluster.services}
    arrays = per_gpu(arrays_of(cluster, rates, profile), available, budget)
    ours = most_work(arrays, seconds=20.0, gap=1e-3)
    if isinstance(ours, Unfound):
        return 0.0, {}
    return ours.multiple, {
        "one GPU type": max(_on(arrays, k, budget) for k in range(len(GPUS))),
        "even composition": _even_composition(arrays, available, budget),
        "one parallelism": max(_sized(arrays, gpus) for gpus in (1, 2, 4, 8)),
        "round robin": _multiple(work_of(arrays, ours.copies, even_fractions(arrays, ours.copies))),
        "weighted by speed": _blind(arrays, ours.copies),
    }


def _multiple(mix: Mix | Unfound | None) -> float:
    return mix.multiple if isinstance(mix, Mix) else 0.0


def _on(arrays: MixProblem, kind: int, budget: float) -> float:
    """Plan with one GPU type, with as many GPUs as the budget buys."""
    most = np.zeros(len(GPUS))
    most[kind] = np.floor(budget / PRICES[kind])
    return _multiple(most_work(replace(arrays, node_max=most), seconds=20.0, gap=1e-3))


def _blind(arrays: MixProblem, copies: Ints) -> float:
    """Distribute every request type by the same weights, the speed of each replica on the whole
    mix.
    """
    rates = np.zeros((len(arrays.busy), len(arrays.work)))
    config = arrays.busy.argmax(axis=0)
    rates[config, arrays.type_of] = 1.0 / arrays.busy.max(axis=0)
    able = np.all(rates > 0.0, axis=1) & (copies > 0)
    if not np.any(able):
        return 0.0
    busy = (arrays.work / np.where(rates > 0.0, rates, np.inf)).sum(axis=1)
    weight = np.where(able, copies / np.maximum(busy, 1e-12), 0.0)
    return _multiple(work_of(arrays, copies, (weight / weight.sum())[config]))


def _even_composition(arrays: MixProblem, available: tuple[int, ...], budget: float) -> float:
    """Plan with the same spending on each GPU type, as far as GPUs are available."""
    share = budget / len(GPUS)
    most = np.minimum(np.floor(share / np.array(PRICES)), available)
    return _multiple(most_work(replace(arrays, node_max=most.astype(float)), 20.0, 1e-3))


def _sized(arrays: MixProblem, gpus: int) -> float:
    """Plan with every replica on `gpus` GPUs."""
    size = arrays.usage.sum(axis=0)[arrays.busy.argmax(axis=0)]
    fewer = restricted(arrays, np.flatnonzero(size == gpus))
    return _multiple(most_work(fewer, seconds=20.0, gap=1e-3))


def ablation(budgets: list[float], json_to: str) -> None:
    """Print the table and the mean loss of each decision; write them to `json_to` as well."""
    profile = default_profile()
    rows = []
    print(f"Llama-3-70B, performance model, {platform.machine()}; requests/s")
    print("avail mix budget   ours  " + "  ".join(f"{name:>16}" for name in PAPER))
    for a, available in enumerate(AVAILABLE, start=1):
        for m, mix in enumerate(MIXES, start=1):
            cluster = cluster_of(available, mix, "70b")
            for budget in budgets:
                ours, without = case(cluster, available, budget, profile)
                rows.append(Row(a, m, budget, ours, without))
                shown = "  ".join(
                    f"{without[name]:8.3f} ({without[name] / ours - 1.0:+4.0%})" for name in PAPER
                )
                print(f"{a:5d} {m:3d} {budget:6.0f} {ours:6.3f}  {shown}", flush=True)
    for name, paper in PAPER.items():
        losses = [1.0 - row.without[name] / row.ours for row in rows if row.ours > 0.0]
        gains = [row.ours / row.without[name] - 1.0 for row in rows if row.without[name] > 0.0]
        print(
            f"without it, {name}: {_more_or_less(-statistics.mean(losses))} on average, at worst "
            f"{_more_or_less(-max(losses))}; ours does {_more_or_less(statistics.mean(gains))} "
            f"(paper: {paper})"
        )
    if json_to:
        shown_rows = [{name: getattr(row, name) for name in Row.__slots__} for row in rows]
        Path(json_to).write_text(json.dumps(shown_rows, indent=1), encoding="utf-8")


def _more_or_less(change: float) -> str:
    return f"{abs(change):.0%} {'more' if change > 0.0 else 'less'}"


def scale(json_to: str) -> None:
    """Compare CPU seconds of our MIP and of the bisection: 6 GPU types, 64 GPUs, 9 request types, 2
    models."""
    profile = default_profile()
    available = (12, 12, 10, 10, 10, 10)
    cluster = cluster_of(available, MIXES[1], "8b", "70b")
    started = time.process_time()
    arrays = arrays_of(cluster, {"8b": 0.8, "70b": 0.2}, profile)
    built = time.process_time() - started
    arrays = per_gpu(arrays, available, 60.0)
    started = time.process_time()
    ours = most_work(arrays, seconds=120.0, gap=1e-3)
    mip = time.process_time() - started
    assert isinstance(ours, Mix)
    started = time.process_time()
    search = makespan_by_bisection(arrays, 1e-3 / ours.multiple, seconds=120.0)
    bisection = time.process_time() - started
    n, w = len(arrays.busy), len(arrays.work)
    print(f"{n} configurations, {w} types, {sum(available)} GPUs of {len(GPUS)} types, 60 USD/h")
    print(f"candidates and rates {built:.1f} CPU s")
    print(f"one MIP    {mip:.2f} CPU s: {ours.multiple:.4f} req/s, bound {ours.bound:.4f}")
    found = f"{1.0 / search[0]:.4f} req/s" if search else "a limit struck"
    print(f"bisection  {bisection:.2f} CPU s: {found}")
    if json_to:
        value = {"mip_cpu_s": mip, "bisection_cpu_s": bisection, "req_per_s": ours.multiple}
        Path(json_to).write_text(json.dumps(value), encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--budgets", default="15,30,60", help="USD/h, comma-separated")
    parser.add_argument("--scale", action="store_true", help="time the solvers instead")
    parser.add_argument("--json", default="", help="write the figures here")
    args = parser.parse_args()
    if args.scale:
        scale(args.json)
    else:
        ablation([float(text) for text in args.budgets.split(",")], args.json)


if __name__ == "__main__":
    main()
