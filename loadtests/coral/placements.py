"""Solve a template instance and say what to run where: counts by group, region and template.

Owns the way from the paper's form to a checked answer in that form, best effort included. Knows
nothing of files or of the general column form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.result import Status
from loadtests.coral.best_effort import largest_fraction
from loadtests.coral.decomposition import Outcome, solve_decomposed
from loadtests.coral.groups import Decomposed
from loadtests.coral.incumbent import Incumbent
from loadtests.coral.instance import TemplateInstance, lower
from loadtests.coral.limits import SearchOptions, Work

TOLERANCE = 2e-9
"""Relative shortfall that floating point may leave in a plan that serves all."""


@dataclass(frozen=True, slots=True)
class Placements:
    """A checked answer. `rows` (n, 4): group, region, template, count. `mu_usd_per_h` (R, C) proves
    `lower_bound_usd_per_h` for `served_target` (a share of every group's demand)."""

    status: Status
    rows: Ints
    cost_usd_per_h: float
    lower_bound_usd_per_h: float
    mu_usd_per_h: Floats
    served_fraction: Floats
    served_fraction_bound: float
    served_target: float
    shortfall_req_per_s: Floats
    limits_hit: tuple[str, ...]
    work: Work
    reason: str = ""

    @property
    def gap(self) -> float:
        """Proven relative gap; 0 for a plan that costs nothing."""
        if self.cost_usd_per_h <= 0:
            return 0.0
        return max(0.0, 1.0 - self.lower_bound_usd_per_h / self.cost_usd_per_h)


def solve_instance(
    instance: TemplateInstance, options: SearchOptions, mu_usd_per_h: Floats | None = None
) -> Placements:
    """Cheapest placements that serve every group, or best effort where that cannot be."""
    start = None if mu_usd_per_h is None else mu_usd_per_h.ravel()
    problem = lower(instance)
    outcome = solve_decomposed(problem, options, start)
    if outcome.plan is not None:
        return read_back(instance, problem, outcome, options)
    # The plan at that fraction wants a bound of its own.
    share = options.within(0.6)
    fraction = largest_fraction(problem, share, mu=outcome.mu, nearest=outcome.nearest)
    work, limits = outcome.work + fraction.work, (*outcome.limits, *fraction.limits)
    if fraction.served <= 0 or fraction.plan is None:
        return _nothing(instance, fraction.bound, limits, work)
    reduced = replace(instance, demand_req_per_s=instance.demand_req_per_s * fraction.served)
    problem = lower(reduced)
    outcome = solve_decomposed(problem, options, outcome.mu, fraction.plan)
    done = read_back(instance, problem, outcome, options, fraction.served, fraction.bound)
    return replace(done, limits_hit=(*limits, *outcome.limits), work=work + outcome.work)


def read_back(
    instance: TemplateInstance,
    problem: Decomposed,
    outcome: Outcome,
    options: SearchOptions,
    target: float = 1.0,
    fraction_bound: float = 1.0,
    running: Ints | None = None,
) -> Placements:
    """The plan as rows, checked anew in floating point against the instance itself.

    With `running` (n, 4) the cost is that of the transition from those rows.
    """
    if outcome.plan is None:
        return _nothing(instance, fraction_bound, outcome.limits, outcome.work)
    rows = rows_of(outcome.plan, instance.price_usd_per_h.shape[0])
    cost, served, excess = account(instance, rows)
    demand = instance.demand_req_per_s
    short = served < demand * target * (1.0 - TOLERANCE)
    if excess or short.any():
        why = f"the plan failed its check: capacity exceeded {excess}, rows short {short.sum()}"
        return replace(_nothing(instance, fraction_bound, outcome.limits, outcome.work), reason=why)
    if running is not None:
        cost = transition_cost(instance, rows, running)
    bound = min(outcome.bound, cost)
    gap = 0.0 if cost <= 0 else 1.0 - bound / cost
    if target < 1.0:
        status = Status.BEST_EFFORT
    elif gap <= 1e-9:
        status = Status.OPTIMAL
    else:
        status = Status.WITHIN_GAP if gap <= options.gap else Status.LIMIT
    missing = np.where(served < demand * (1.0 - TOLERANCE), demand - served, 0.0)
    return Placements(
        status=status,
        rows=rows,
        cost_usd_per_h=cost,
        lower_bound_usd_per_h=bound,
        mu_usd_per_h=_node_prices(instance, outcome.mu),
        served_fraction=np.minimum(1.0, served / demand),
        served_fraction_bound=fraction_bound,
        served_target=target,
        shortfall_req_per_s=missing,
        limits_hit=outcome.limits,
        work=outcome.work,
    )


def rows_of(plan: Incumbent, regions: int) -> Ints:
    """(group, region, template, count) of every pair that the plan runs, in order."""
    counts: Counter[tuple[int, int, int]] = Counter()
    for k, pairs in enumerate(plan.pairs):
        for code in pairs:
            template, region = divmod(int(code), regions)
            counts[k, region, template] += 1
    rows = [(*key, count) for key, count in sorted(counts.items())]
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def account(instance: TemplateInstance, rows: Ints) -> tuple[float, Floats, bool]:
    """Cost in USD/h, requests/s served by group, and whether any capacity is exceeded."""
    price = instance.price_usd_per_h
    used = np.zeros(price.shape)
    served = np.zeros(len(instance.demand_req_per_s))
    cost = 0.0
    for k, region, template, count in rows.tolist():
        nodes = instance.nodes[k][template].astype(np.float64)
        used[region] += count * nodes
        served[k] += count * float(instance.throughput_req_per_s[k][template])
        cost += count * float(nodes @ price[region]) * (1.0 + instance.start_penalty)
    return cost, served, bool((used > instance.available_nodes + 1e-9).any())


def transition_cost(instance: TemplateInstance, rows: Ints, running: Ints) -> float:
    """USD/h of `rows` with the start penalty only on what does not run yet (Coral 4.3)."""
    before = {(k, r, i): n for k, r, i, n in running.tolist()}
    cost = 0.0
    for k, region, template, count in rows.tolist():
        nodes = instance.nodes[k][template].astype(np.float64)
        price = float(nodes @ instance.price_usd_per_h[region])
        new = max(0, count - before.get((k, region, template), 0))
        cost += price * (count + instance.start_penalty * new)
    return cost


def _node_prices(instance: TemplateInstance, mu: Floats) -> Floats:
    """Multipliers of the nodes (R, C); those of a running fleet's tokens lie behind them."""
    regions, configs = instance.price_usd_per_h.shape
    return np.ascontiguousarray(mu.reshape(regions, -1)[:, :configs])


def _nothing(
    instance: TemplateInstance, fraction_bound: float, limits: tuple[str, ...], work: Work
) -> Placements:
    groups = len(instance.demand_req_per_s)
    return Placements(
        status=Status.FAILED,
        rows=np.zeros((0, 4), dtype=np.int64),
        cost_usd_per_h=0.0,
        lower_bound_usd_per_h=0.0,
        mu_usd_per_h=np.zeros(instance.price_usd_per_h.shape),
        served_fraction=np.zeros(groups),
        served_fraction_bound=fraction_bound,
        served_target=0.0,
        shortfall_req_per_s=instance.demand_req_per_s.copy(),
        limits_hit=limits,
        work=work,
        reason="no plan was found within the limits",
    )
