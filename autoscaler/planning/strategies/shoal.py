"""Our strategy: the whole problem as arrays, solved with its proof.

Owns running the solver and reading its columns back. Knows nothing of how the arrays are solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.checks import InvalidValue
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import (
    AllocationResult,
    SolveOptions,
    Status,
    WarmStart,
)
from autoscaler.optimizer.solve import solve as solve_arrays
from autoscaler.planning.columns import Arrays, to_arrays
from autoscaler.planning.modelrows import Kind
from autoscaler.planning.plan import Binding, Plan, PlanStatus
from autoscaler.planning.problem import PlanningProblem
from autoscaler.planning.readback import failed, read_back

Solver = Callable[[AllocationProblem, SolveOptions, WarmStart | None], AllocationResult]

_STATUS = {
    Status.OPTIMAL: PlanStatus.OPTIMAL,
    Status.WITHIN_GAP: PlanStatus.WITHIN_GAP,
    Status.LIMIT: PlanStatus.LIMIT,
    Status.BEST_EFFORT: PlanStatus.BEST_EFFORT,
}
_NODE_KINDS = (Kind.KEPT_NODES, Kind.NEW_NODES)


@dataclass(frozen=True, slots=True)
class Shoal:
    """Coral's online problem with keep, start, switch and load (see `planning.columns`)."""

    solver: Solver = solve_arrays
    name: str = "shoal"

    def solve(self, problem: PlanningProblem) -> Plan:
        """The cheapest plan with its bound; best effort where demand cannot be met."""
        arrays = to_arrays(problem)
        solved = self._run(arrays, problem)
        bound = _fraction_bound(arrays, solved)
        shares = _shares(arrays, solved)
        if solved.status is Status.BEST_EFFORT and min(shares.values(), default=1.0) < 1.0:
            # The worst served model is as well off as can be; now nobody else goes without.
            more = to_arrays(problem, shares)
            again = self._run(more, problem)
            if again.status is not Status.FAILED:
                arrays, solved = more, again
        if solved.status is Status.FAILED:
            reason = solved.reason or "the solver returned no plan"
            return failed(problem, self.name, reason, solved.limits_hit)
        return _to_plan(self.name, problem, arrays, solved, bound)

    def _run(self, arrays: Arrays, problem: PlanningProblem) -> AllocationResult:
        options = problem.options
        limits = SolveOptions(
            gap=options.gap,
            seed=options.seed,
            time_limit_s=options.time_limit_s if options.elapsed_s is not None else None,
            elapsed_s=options.elapsed_s,
        )
        if not arrays.problem.demand_req_per_s.size:
            return _nothing_wanted(arrays.problem)
        return self.solver(arrays.problem, limits, _warm(arrays, problem))


def _warm(arrays: Arrays, problem: PlanningProblem) -> WarmStart:
    """Start from the running fleet, and from the multipliers of the last good plan."""
    counts = np.zeros(arrays.problem.columns, dtype=np.int64)
    for index, key in enumerate(arrays.keys):
        if key.kind is Kind.KEEP:
            counts[index] = problem.fleet[key.subject]
        elif key.kind is Kind.KEPT_NODES:
            counts[index] = int(arrays.problem.upper[index])
    last = problem.last_good.multipliers_usd_per_h if problem.last_good is not None else {}
    if not last:
        return WarmStart(counts=counts)
    mu = np.array([last.get(name, 0.0) for name in arrays.resource_names])
    return WarmStart(mu_usd_per_h=mu, counts=counts)


def _to_plan(
    name: str,
    problem: PlanningProblem,
    arrays: Arrays,
    solved: AllocationResult,
    fraction_bound: float,
) -> Plan:
    counts: dict[str, int] = {}
    penalties = 0.0
    for key, count, cost in zip(
        arrays.keys, solved.counts, arrays.problem.cost_usd_per_h, strict=True
    ):
        if key.kind in (Kind.AUXILIARY, *_NODE_KINDS) or not count:
            continue
        counts[key.subject] = counts.get(key.subject, 0) + int(count)
        penalties += float(cost) * int(count)
    try:
        return read_back(
            problem,
            name,
            counts,
            _status(solved) if not _hopeless(problem) else PlanStatus.BEST_EFFORT,
            penalties_usd_per_h=penalties,
            lower_bound_usd_per_h=solved.lower_bound_usd_per_h + arrays.fixed_usd_per_h,
            served_fraction_bound=fraction_bound,
            binding=_binding(problem, arrays, solved),
            limits_hit=solved.limits_hit,
            multipliers_usd_per_h={
                name: float(value)
                for name, value in zip(arrays.resource_names, solved.mu_usd_per_h, strict=True)
                if value > 0.0
            },
            notes=(*_hopeless(problem), *_broken_promises(arrays, solved)),
        )
    except InvalidValue as error:
        # The re-check in floating point refused the solver's answer.
        return failed(problem, name, f"the solver's plan does not hold: {error}", solved.limits_hit)


def _status(solved: AllocationResult) -> PlanStatus:
    """The plan's status. A micro-dollar per hour is the solver's tolerance, not a gap."""
    exact = solved.cost_usd_per_h - solved.lower_bound_usd_per_h <= 1e-6
    if solved.status is Status.LIMIT and exact and not solved.limits_hit:
        return PlanStatus.OPTIMAL
    return _STATUS[solved.status]


def _binding(
    problem: PlanningProblem, arrays: Arrays, solved: AllocationResult
) -> tuple[Binding, ...]:
    """Resource rows without room, in words. Pools bind when no further node can be had."""
    bound = []
    not_full = {
        key.subject
        for key, count, most in zip(arrays.keys, solved.counts, arrays.problem.upper, strict=True)
        if key.kind in _NODE_KINDS and count < most
    }
    for row in solved.binding:
        what, subject = arrays.resource_names[int(row)]
        relief = float(solved.mu_usd_per_h[int(row)])
        if what == "GPUs":
            pool = problem.cluster.pool(subject)
            if subject not in not_full and pool.max_nodes:
                nodes = problem.nodes_now(pool) + problem.nodes_to_get(pool)
                text = f"all {nodes} nodes of {pool.region}/{pool.name} ({pool.market}) in use"
                bound.append(Binding("pool", subject, text, relief))
        elif what == "spot share":
            share = problem.cluster.service(subject).spot_share
            if share > 0.0 and problem.needed_req_per_s(subject) > 0.0:
                bound.append(Binding("spot", subject, f"spot <= {share:.0%}", relief))
        elif what == "ceiling":
            most = problem.cluster.service(subject).max_instances
            bound.append(Binding("ceiling", subject, f"at most {most} instances", relief))
        elif what == "budget":
            budget = problem.cluster.policy.budget_usd_per_h
            bound.append(Binding("budget", subject, f"budget {budget:.2f} USD/h", relief))
    return tuple(bound)


def _fraction_bound(arrays: Arrays, solved: AllocationResult) -> float:
    """No plan serves a larger smallest fraction of a model's demand than this."""
    bounds = [
        float(bound)
        for (what, _), bound in zip(arrays.demand_names, solved.served_fraction_bound, strict=True)
        if what == "demand"
    ]
    return min(bounds, default=1.0)


def _shares(arrays: Arrays, solved: AllocationResult) -> dict[str, float]:
    """The share of its demand that each model is sure to get: the target of its row."""
    return {
        model: float(target) * (1.0 - 1e-7) if target < 1.0 else 1.0
        for (what, model), target in zip(arrays.demand_names, solved.served_target, strict=True)
        if what == "demand"
    }


def _hopeless(problem: PlanningProblem) -> tuple[str, ...]:
    """Models with a demand that no slice of any pool can serve."""
    return tuple(
        f"{model}: no pool it may use can hold and serve it"
        for model in problem.planned_models()
        if not problem.can_be_served(model)
        and (problem.demands[model].req_per_s > 0.0 or problem.cluster.service(model).min_instances)
    )


def _broken_promises(arrays: Arrays, solved: AllocationResult) -> tuple[str, ...]:
    """Floors, budgets and survival that could not be kept next to the demand."""
    broken = [
        f"{subject}: {what} cannot be kept"
        for (what, subject), fraction in zip(
            arrays.demand_names, solved.served_fraction, strict=True
        )
        if what not in ("demand", "share of demand") and fraction < 1.0 - 1e-6
    ]
    return tuple(dict.fromkeys(broken))


def _nothing_wanted(problem: AllocationProblem) -> AllocationResult:
    """No model has a demand or a floor: the empty plan is optimal."""
    nothing = np.zeros(0)
    return AllocationResult(
        status=Status.OPTIMAL,
        counts=np.zeros(problem.columns, dtype=np.int64),
        cost_usd_per_h=0.0,
        lower_bound_usd_per_h=0.0,
        mu_usd_per_h=np.zeros(len(problem.capacity)),
        served_fraction=nothing,
        served_fraction_bound=nothing,
        served_target=nothing,
        shortfall_req_per_s=nothing,
        binding=np.zeros(0, dtype=np.int64),
    )
