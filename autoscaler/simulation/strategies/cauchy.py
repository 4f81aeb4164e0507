"""Cauchy's strategies: the deployment ILP of eq. 16, and the two objectives with which Cauchy
compares it. The ILP, in PuLP (used by this module alone), covers goodput per model, GPUs per pool,
spot limits, floors, ceilings and the budget. Unlike `shoal`, they ignore whole nodes and transition
costs, but their plans are billed by the same rules. Source: Cauchy sec. 3.3.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pulp

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.candidate_combos import ranking_usd_per_h
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd
from autoscaler.planning.decode_solution import decode_plan, failed_plan
from autoscaler.planning.model_constraints import (
    missing_off_spot,
    missing_req_per_s,
    spot_limit_applies,
)
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.plan_notes import with_notes
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

Objective = Callable[[float, float], float]
"""Weight of one combo in the objective, from (USD/h, tokens per USD)."""


def eq16(usd_per_h: float, tokens_per_usd: float) -> float:
    """P_n / C_n: cost and cost efficiency together (scaled by 1e6)."""
    return 1e6 * usd_per_h / tokens_per_usd


def most_efficient(usd_per_h: float, tokens_per_usd: float) -> float:
    """1 / C_n: cost efficiency alone. The price of a combo does not count, so the ILP prefers large
    combos (MCE-LP)."""
    del usd_per_h
    return 1e6 / tokens_per_usd


def cheapest(usd_per_h: float, tokens_per_usd: float) -> float:
    """P_n: cost alone (MC-LP)."""
    del tokens_per_usd
    return usd_per_h


@dataclass(frozen=True, slots=True)
class CauchyStrategy:
    """An ILP over combos with one objective, solved by PuLP and HiGHS.

    If not all demand can be served, the goodput is maximised first.
    """

    name: str
    objective: Objective

    def solve(self, problem: PlanningProblem) -> Plan:
        """Plan all models jointly, on the GPUs that fixed combos leave."""
        combos = [c for m in problem.planned_models() for c in problem.candidates.get(m, ())]
        weights = self._weights(problem, combos)
        needed = {m: missing_req_per_s(problem, m) for m in problem.planned_models()}
        needed = {m: missing for m, missing in needed.items() if missing > 0.0}
        status = PlanStatus.HEURISTIC
        solved = _cheapest(problem, combos, weights, needed, promises=True)
        if solved is None:
            status = PlanStatus.BEST_EFFORT
            reached = _most_goodput(problem, combos, needed)
            solved = _cheapest(problem, combos, weights, reached, promises=False)
        if solved is None:
            return failed_plan(problem, self.name, Reason(ReasonCode.SOLVER_FAILED), ())
        numbers, proven = solved
        limits = () if proven else ("time_limit",)
        counts = {combo.id: n for combo, n in zip(combos, numbers, strict=True)}
        try:
            made = decode_plan(
                problem,
                self.name,
                counts,
                status if proven else PlanStatus.LIMIT,
                limits_hit=limits,
            )
        except InvalidValue as error:
            why = Reason(ReasonCode.SOLVER_REFUTED, quoted=str(error))
            return failed_plan(problem, self.name, why, limits)
        return with_notes(problem, made)

    def _weights(self, problem: PlanningProblem, combos: list[Combo]) -> list[float]:
        """The weight of each combo in the objective. The largest weight is scaled to 1, because
        unscaled weights are of the order of 1e-6, near the tolerances of a solver."""
        pools = problem.pools()
        weights = []
        for combo in combos:
            usd_per_h = ranking_usd_per_h(combo, pools)
            lengths = problem.demands[combo.model].lengths
            tokens = combo_tokens_per_usd(lengths, combo.req_per_s, usd_per_h)
            weights.append(self.objective(usd_per_h, tokens))
        scale = max(weights, default=0.0) or 1.0
        return [weight / scale for weight in weights]


def _cheapest(
    problem: PlanningProblem,
    combos: list[Combo],
    weights: list[float],
    wanted: Mapping[str, float],
    promises: bool,
) -> tuple[list[int], bool] | None:
    """Counts of least weight that serve `wanted`, and whether they are proven to be optimal. None:
    infeasible."""
    model, x = _rows(problem, combos)
    for name, missing in wanted.items():
        if missing > 0.0:
            # Rows are scaled to 1 so that the solver's tolerance is relative to the demand.
            model += _goodput(combos, x, name) / missing >= 1.0
    if promises:
        for service in map(problem.cluster.service, problem.planned_models()):
            _add_promises(model, problem, combos, x, service)
    model.setObjective(pulp.lpSum(w * v for w, v in zip(weights, x, strict=True)))
    return _solved(model, x, problem)


def _most_goodput(
    problem: PlanningProblem, combos: list[Combo], needed: Mapping[str, float]
) -> dict[str, float]:
    """The part of `needed` that can be served. Higher priorities come first; within a priority, the
    smallest served fraction is maximised."""
    reached: dict[str, float] = {}
    services = [problem.cluster.service(name) for name in needed]
    for priority in sorted({service.priority for service in services}, reverse=True):
        names = [service.model for service in services if service.priority == priority]
        model, x = _rows(problem, combos)
        for name, rate in reached.items():
            model += _goodput(combos, x, name) >= rate
        least = model.add_variable("least", 0, 1)
        shares = []
        for i, name in enumerate(names):
            share = model.add_variable(f"share{i}", 0, 1)
            missing = needed[name]
            model += _goodput(combos, x, name) / missing >= share
            model += share >= least
            shares.append(share)
        model.setObjective(-(least + 0.01 / len(names) * pulp.lpSum(shares)))
        solved = _solved(model, x, problem)
        for name in names:
            served = 0.0
            for combo, n in zip(combos, solved[0] if solved else (), strict=False):
                served += n * combo.req_per_s if combo.model == name else 0.0
            # Require slightly less than was served, so that rounding cannot make the next solve
            # infeasible.
            reached[name] = min(needed[name], served) * (1.0 - 1e-9)
    return reached


def _rows(
    problem: PlanningProblem, combos: list[Combo]
) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """The ILP without an objective: counts within the GPUs of every pool, the ceilings and the
    budget.

    Slices and nodes have powers of two of GPUs, so rows that count GPUs are exact.
    """
    model = pulp.LpProblem("combos", pulp.LpMinimize)
    x = [model.add_variable(f"x{i}", 0, None, cat="Integer") for i in range(len(combos))]
    standing = problem.fixed_gpus()
    users: dict[str, list[pulp.LpAffineExpression]] = {}
    for combo, variable in zip(combos, x, strict=True):
        for pool_id, gpus in combo.gpus_by_pool().items():
            users.setdefault(pool_id, []).append(gpus * variable)
    bill = 0.0
    for pool in problem.cluster.pools:
        nodes = problem.nodes_now(pool) + problem.rentable_nodes(pool)
        taken = standing.get(pool.id, 0)
        bill += problem.fixed_nodes(pool, taken) * pool.price_usd_per_h
        if pool.id in users:
            model += pulp.lpSum(users[pool.id]) <= max(0, nodes * pool.per_node - taken)
    for pools in problem.cluster.pools_by_shared_limit().values():
        _add_ceiling_of_both(model, problem, pools, users, standing)
    for service in map(problem.cluster.service, problem.planned_models()):
        if service.max_instances:
            left = service.max_instances - _standing(problem, service)
            model += _number(combos, x, service.model) <= max(0, left)
    budget = problem.cluster.policy.budget_usd_per_h
    if budget > 0.0:
        spent = [combo.usd_per_h * variable for combo, variable in zip(combos, x, strict=True)]
        model += pulp.lpSum(spent) <= max(0.0, budget - bill)
    return model, x


def _add_ceiling_of_both(
    model: pulp.LpProblem,
    problem: PlanningProblem,
    pools: tuple[Pool, ...],
    users: Mapping[str, list[pulp.LpAffineExpression]],
    standing: Mapping[str, int],
) -> None:
    """Limit the whole nodes of both markets together to their ceiling. Each node belongs to one
    market."""
    nodes: list[pulp.LpVariable] = []
    for pool in pools:
        taken = standing.get(pool.id, 0)
        least = problem.fixed_nodes(pool, taken)
        count = model.add_variable(f"nodes_{len(nodes)}_{pool.id}", least, None, cat="Integer")
        model += pulp.lpSum(users.get(pool.id, [])) + taken <= pool.per_node * count
        nodes.append(count)
    stay = sum(problem.fixed_nodes(pool, standing.get(pool.id, 0)) for pool in pools)
    model += pulp.lpSum(nodes) <= max(pools[0].max_of_both, stay)


def _add_promises(
    model: pulp.LpProblem,
    problem: PlanningProblem,
    combos: list[Combo],
    x: list[pulp.LpVariable],
    service: Service,
) -> None:
    """Add the floor of `service`, and the capacity that must not use spot."""
    least = service.min_instances - _standing(problem, service)
    if least > 0 and problem.can_be_served(service.model):
        model += _number(combos, x, service.model) >= least
    if spot_limit_applies(problem, service):
        missing, count = missing_off_spot(problem, service)
        pairs = zip(combos, x, strict=True)
        mine = [(c, v) for c, v in pairs if c.model == service.model and not is_spot(c)]
        if missing > 0.0:
            model += pulp.lpSum(c.req_per_s / missing * v for c, v in mine) >= 1.0
        if count > 0:
            model += pulp.lpSum(v for _, v in mine) >= count


def _standing(problem: PlanningProblem, service: Service) -> int:
    return sum(count for _, count in problem.fixed_combos(service.model))


def _goodput(combos: list[Combo], x: list[pulp.LpVariable], model: str) -> pulp.LpAffineExpression:
    return pulp.lpSum(c.req_per_s * v for c, v in zip(combos, x, strict=True) if c.model == model)


def _number(combos: list[Combo], x: list[pulp.LpVariable], model: str) -> pulp.LpAffineExpression:
    return pulp.lpSum(v for c, v in zip(combos, x, strict=True) if c.model == model)


def _solved(
    model: pulp.LpProblem, x: list[pulp.LpVariable], problem: PlanningProblem
) -> tuple[list[int], bool] | None:
    """The counts, and whether they are proven to be optimal. None: infeasible, or the solver
    failed.

    The solver uses one thread and a fixed seed.
    """
    options = problem.options
    solver = pulp.HiGHS(
        msg=False,
        threads=1,
        gapRel=options.gap,
        gapAbs=1e-9,
        timeLimit=options.time_limit_s,
        random_seed=1,
    )
    try:
        model.solve(solver)
    except (pulp.PulpSolverError, KeyError):
        return None  # PuLP raises KeyError for HiGHS statuses that it does not list
    if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    return [round(v.value() or 0.0) for v in x], model.sol_status == pulp.LpSolutionOptimal
