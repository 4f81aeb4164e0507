"""Coral's two baselines on allocation instances: Homo, and Cauchy with its combos.

Both follow the rules in Coral's section 6.1. Homo takes, model by model, the homogeneous template
with the most goodput per USD, and continues with the next template if nodes run out. Cauchy builds
combos of homogeneous prefill and decode replicas and solves its ILP (eq. 16). Plans have rows as in
`loadtests.template_problem`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pulp

from autoscaler.optimizer.array_types import Floats, Ints
from loadtests.template_problem import TemplateProblem

RATIOS = tuple((p, d) for p in (1, 2) for d in range(1, 7))


@dataclass(frozen=True, slots=True)
class Replica:
    """The best homogeneous template of one configuration: `nodes` nodes of `config`."""

    template: int
    config: int
    nodes: int
    req_per_s: float


def replicas(instance: TemplateProblem, group: int, most_nodes: int = 1) -> list[Replica]:
    """For each configuration, the homogeneous template with the most goodput per node.

    Templates have at most `most_nodes` nodes (0 = any number).
    """
    nodes, rates = instance.nodes[group], instance.throughput_req_per_s[group]
    found = []
    for config in range(nodes.shape[1]):
        pure = (nodes[:, config] > 0) & (np.count_nonzero(nodes, axis=1) == 1)
        if most_nodes:
            pure &= nodes[:, config] <= most_nodes
        if pure.any():
            each = np.where(pure, rates / np.maximum(nodes[:, config], 1), -1.0)
            best = int(np.argmax(each))
            count = int(nodes[best, config])
            found.append(Replica(best, config, count, float(rates[best])))
    return found


def homo(instance: TemplateProblem, most_nodes: int = 1) -> Ints:
    """Homo's plan as rows (group, region, template, count).

    It is greedy: one model after another, highest demand first.
    """
    left = instance.available_nodes.astype(np.int64).copy()
    rows = []
    for group in np.argsort(-instance.demand_req_per_s, kind="stable"):
        missing = float(instance.demand_req_per_s[group])
        offers = [
            (
                one.req_per_s / (one.nodes * instance.price_usd_per_h[region, one.config]),
                region,
                one,
            )
            for one in replicas(instance, int(group), most_nodes)
            for region in range(len(left))
        ]
        for _, region, one in sorted(offers, key=lambda o: (-o[0], o[1], o[2].config)):
            count = min(
                math.ceil(missing / one.req_per_s - 1e-9),
                int(left[region, one.config]) // one.nodes,
            )
            if missing > 1e-9 and count > 0:
                rows.append((int(group), region, one.template, count))
                left[region, one.config] -= count * one.nodes
                missing -= count * one.req_per_s
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


@dataclass(frozen=True, slots=True)
class Combo:
    """`p` prefill and `d` decode replicas of one model in one region."""

    pair: int
    region: int
    prefill: Replica
    decode: Replica
    p: int
    d: int
    req_per_s: float
    usd_per_h: float
    weight: float


def combos(
    instance: TemplateProblem, pairs: list[tuple[int, int]], most_nodes: int = 1
) -> list[Combo]:
    """Return every pair of a prefill and a decode replica at two ratios of their numbers.

    One is the ratio with the lowest cost per request. The other is the best ratio with a single
    prefill replica, because scarce nodes may not be enough for two. weight: P / C, with C in
    requests per USD of each phase (eq. 14-15, without lengths, which an instance does not have).
    """
    return [
        combo
        for index, (first, second) in enumerate(pairs)
        for region in range(len(instance.price_usd_per_h))
        for prefill in replicas(instance, first, most_nodes)
        for decode in replicas(instance, second, most_nodes)
        for combo in _matched(instance, index, region, prefill, decode)
    ]


def _matched(
    instance: TemplateProblem, pair: int, region: int, prefill: Replica, decode: Replica
) -> tuple[Combo, ...]:
    price = instance.price_usd_per_h[region]
    made = []
    for p, d in RATIOS:
        rate = min(p * prefill.req_per_s, d * decode.req_per_s)
        usd_p = p * prefill.nodes * float(price[prefill.config])
        usd_d = d * decode.nodes * float(price[decode.config])
        efficiency = rate / usd_p + rate / usd_d
        usd = usd_p + usd_d
        made.append(Combo(pair, region, prefill, decode, p, d, rate, usd, usd / efficiency))

    def dearness(combo: Combo) -> tuple[float, int, int]:
        return combo.usd_per_h / combo.req_per_s, combo.p, combo.d

    best, single = min(made, key=dearness), min((c for c in made if c.p == 1), key=dearness)
    return (best,) if best is single else (best, single)


def cauchy(
    instance: TemplateProblem,
    pairs: list[tuple[int, int]],
    time_limit_s: float = 60.0,
    most_nodes: int = 1,
) -> Ints:
    """Cauchy's plan as rows, with the least sum of P / C. If the demand cannot be met, the plan
    maximises goodput first."""
    every = combos(instance, pairs, most_nodes)
    wanted = np.array([float(instance.demand_req_per_s[first]) for first, _ in pairs])
    counts = _solve(instance, every, wanted, time_limit_s, None)
    if counts is None:
        best = _solve(instance, every, wanted, time_limit_s, "goodput")
        if best is None:
            return np.zeros((0, 4), dtype=np.int64)
        reached = np.zeros(len(pairs))
        for combo, count in zip(every, best, strict=True):
            reached[combo.pair] += count * combo.req_per_s
        reached = np.minimum(reached, wanted) * (1.0 - 1e-6)
        counts = _solve(instance, every, reached, time_limit_s, None) or best
    rows: dict[tuple[int, int, int], int] = {}
    for combo, count in zip(every, counts, strict=True):
        if count:
            first, second = pairs[combo.pair]
            for group, one, each in (
                (first, combo.prefill, combo.p),
                (second, combo.decode, combo.d),
            ):
                key = group, combo.region, one.template
                rows[key] = rows.get(key, 0) + count * each
    return np.array([(*key, n) for key, n in sorted(rows.items())], dtype=np.int64).reshape(-1, 4)


def _solve(
    instance: TemplateProblem,
    every: list[Combo],
    wanted: Floats,
    time_limit_s: float,
    first: str | None,
) -> list[int] | None:
    """Counts of combos; None if the demand cannot be met.

    first: "goodput" maximises the sum of served shares instead of requiring that all demand is met.
    """
    model = pulp.LpProblem("cauchy", pulp.LpMinimize)
    x = [model.add_variable(f"x{i}", 0, None, cat="Integer") for i in range(len(every))]
    used: dict[tuple[int, int], list[pulp.LpAffineExpression]] = {}
    for combo, variable in zip(every, x, strict=True):
        for one, each in ((combo.prefill, combo.p), (combo.decode, combo.d)):
            used.setdefault((combo.region, one.config), []).append(each * one.nodes * variable)
    for (region, config), terms in used.items():
        model += pulp.lpSum(terms) <= int(instance.available_nodes[region, config])
    shares = []
    for pair, rate in enumerate(wanted):
        if rate <= 0.0:
            continue
        served = pulp.lpSum(
            c.req_per_s / rate * v for c, v in zip(every, x, strict=True) if c.pair == pair
        )
        if first is None:
            model += served >= 1.0
        else:
            share = model.add_variable(f"s{pair}", 0, 1)
            model += served >= share
            shares.append(share)
    scale = max(combo.weight for combo in every)
    cost = pulp.lpSum(c.weight / scale * v for c, v in zip(every, x, strict=True))
    model.setObjective(cost if first is None else -pulp.lpSum(shares))
    solver = pulp.HiGHS(msg=False, threads=1, gapRel=1e-3, timeLimit=time_limit_s, random_seed=1)
    try:
        model.solve(solver)
    except (pulp.PulpSolverError, KeyError):
        return None
    if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    return [round(v.value() or 0.0) for v in x]
