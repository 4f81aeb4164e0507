"""Demystifying Cost-Efficiency (ICML '25), sec. 5: gain of each decision in budget mode.

For the availabilities of Table 4, the mixes of Table 5 and each budget, it compares our plan for
Llama-3-70B with plans without one of its decisions. Those use
the best single GPU type; the same spending on each GPU type; the best single tensor-parallel size;
round robin over the replicas; or weights by speed, which ignore request types. Rates for the
paper's nine request types come from our performance model (the paper measured on rented GPUs).
Prices are those of Table 1. As in the paper, availability does not limit homogeneous fleets. The
paper has no SLO, so the limits here are too loose to have an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

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
from loadtests.experiments.mixes import even_fractions, restricted
from loadtests.results.entry import Figures

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
BUDGETS = (15.0, 30.0, 60.0)
"""USD/h."""
MODELS = {"70b": "meta-llama/Llama-3.3-70B-Instruct"}


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


def measure(seed: int) -> Figures:
    """Means over all cases: by which share the throughput changes without each decision."""
    del seed
    profile = default_profile()
    found: dict[str, dict[str, list[float]]] = {}
    for available in AVAILABLE:
        for mix in MIXES:
            cluster = cluster_of(available, mix, "70b")
            for budget in BUDGETS:
                ours, without = case(cluster, available, budget, profile)
                for name, rate in without.items():
                    changes = found.setdefault(name, {}).setdefault(f"{budget:g}", [])
                    changes.append(rate / ours - 1.0)
    return {name: {b: fmean(changes) for b, changes in by.items()} for name, by in found.items()}
