"""Dual ascent: the best Lagrangian bound, by column generation with smoothed multipliers.

The loop alternates between the knapsacks and the master LP. Every set of multipliers gives a valid
bound, so the loop may end early. The LP relaxation of these problems is far below the optimum;
mixes of whole covers (Dantzig and Wolfe) are close to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.decomposition.groups import Decomposed, Group
from autoscaler.optimizer.decomposition.knapsack import UNITS
from autoscaler.optimizer.decomposition.master_lp import Master
from autoscaler.optimizer.decomposition.work_limits import SearchLimits

SMOOTHING = 0.6
"""Weight of the best multipliers so far in the next trial. Smoothed multipliers need fewer rounds
than the raw duals."""

_PHASE_ONE_ROUNDS = 400


@dataclass(frozen=True, slots=True)
class DualResult:
    """The result of a dual ascent: multipliers (k,), their bound, the master's value, and the
    number of rounds. Three flags tell whether a mix of covers fits, whether the cheapest covers fit
    together without a mix, and whether the time ran out before the bound reached the value of the
    mix."""

    mu: Floats
    bound: float
    mix_value: float
    artificial: float
    fits: bool
    rounds: int
    cut: bool
    columns: int = 0


def use_of(group: Group, codes: Ints, features: int) -> Floats:
    """Use of each resource (R * F,) by the cover with these `codes`."""
    places = group.allowed.shape[1]
    use = np.zeros(places * features)
    for code in codes:
        item, place = divmod(int(code), places)
        entries = slice(int(group.indptr[item]), int(group.indptr[item + 1]))
        np.add.at(use, place * features + group.feature[entries], group.amount[entries])
    return use


def ascend(
    problem: Decomposed,
    mu: Floats,
    rounds: int,
    tolerance: float = 1e-6,
    money: bool = True,
    stop_above: float = np.inf,
    limits: SearchLimits | None = None,
) -> DualResult | None:
    """Raise the bound, beginning at the multipliers `mu` (k,), until it is within `tolerance`
    (relative) of the cost of the best mix.

    With `money=False` covers are free and only artificial covers cost anything: a positive bound
    proves that no mix of covers fits the capacities. The loop also ends if the bound exceeds
    `stop_above` or the time of `limits` is up. None: a group has no cover, whatever the capacities.
    """
    features = problem.money.shape[0]
    capacity = problem.capacity
    prices = problem.money if money else np.zeros_like(problem.money)
    seen: list[set[tuple[int, ...]]] = [set() for _ in problem.groups]
    master: Master | None = None
    best, best_mu, value, artificial, fits = -np.inf, mu, np.inf, 0.0, False
    spent, cut = 0, False
    for spent in range(1, rounds + 1):
        weight = np.ascontiguousarray(prices + mu.reshape(-1, features).T)
        bound = -float(mu @ capacity)
        solutions = []
        for group in problem.groups:
            priced = group if money else replace(group, base=np.zeros_like(group.base))
            least, codes = priced.cheapest(weight)
            if not np.isfinite(least[UNITS]):
                return None
            bound += float(least[UNITS])
            solutions.append((float(least[UNITS]), codes))
        if bound > best:
            best, best_mu = bound, mu
        if bound < 0.0 and spent == 1 and mu.any():
            # Multipliers from another demand can be worse than zeros.
            mu = np.zeros(len(capacity))
            continue
        if master is None:
            start = np.array([50.0 * s[0] + 1.0 for s in solutions]) if money else None
            master = Master(capacity, np.ones(len(seen)) if start is None else start)
        total = np.zeros(len(capacity))
        owner, cost, use = [], [], []
        for k, (_, codes) in enumerate(solutions):
            row = use_of(problem.groups[k], codes, features)
            total += row
            key = tuple(sorted(int(c) for c in codes))
            if key not in seen[k]:
                seen[k].add(key)
                owner.append(k)
                use.append(row)
                base = problem.groups[k].base[codes // problem.money.shape[1]].sum()
                cost.append(float(base + row @ problem.money.T.ravel()) if money else 0.0)
        fits = spent == 1 and not mu.any() and bool((total <= capacity + 1e-9).all())
        if fits:
            return DualResult(mu, best, best, 0.0, True, spent, False)
        if owner:
            master.add_covers(owner, np.array(cost), np.array(use))
        solved = master.solve(np.inf if limits is None else limits.left_s())
        if solved is None:
            cut = True
            break
        value, duals, artificial = solved
        if best > stop_above or value - best <= tolerance * max(1e-9, abs(best)):
            break
        cut = limits is not None and limits.out_of_time()
        if cut:
            break
        mu = SMOOTHING * best_mu + (1.0 - SMOOTHING) * duals if owner else duals
    columns = sum(len(one) for one in seen)
    return DualResult(best_mu, best, value, artificial, False, spent, cut, columns)


def proven_infeasible(problem: Decomposed, limits: SearchLimits | None = None) -> bool:
    """Whether it is proven that no mix of covers fits: every mix needs artificial covers."""
    nothing = np.zeros(len(problem.capacity))
    dual = ascend(problem, nothing, _PHASE_ONE_ROUNDS, money=False, stop_above=1e-7, limits=limits)
    return dual is None or dual.bound > 1e-7
