"""Shoal's strategy: solves the whole problem as one MIP, with a proof of its cost. It runs the
solver and decodes the columns of its solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.check import checked
from autoscaler.optimizer.milp import relaxed
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import (
    AllocationResult,
    SolveOptions,
    Status,
)
from autoscaler.optimizer.selection import select
from autoscaler.optimizer.solve import solve as solve_arrays
from autoscaler.planning.binding_constraints import binding_reasons
from autoscaler.planning.combo_usage import add_gpus, req_per_s_of
from autoscaler.planning.decode_solution import decode_plan, failed_plan
from autoscaler.planning.floor_eligibility import no_useful_instance
from autoscaler.planning.milp_formulation import Formulation, formulate
from autoscaler.planning.model_constraints import ColumnKind, missing_req_per_s
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.plan_notes import (
    impossible_constraints,
    prefix_hit_notes,
    rough_bound_notes,
    slo_miss_notes,
    unservable_models,
)
from autoscaler.planning.planner_messages import Switch
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, RolloutMode
from autoscaler.planning.survival import LOSS_LEVEL
from topics.reason_codes import ReasonCode

Solver = Callable[[AllocationProblem, SolveOptions, Ints | None], AllocationResult]

_STATUS = {
    Status.OPTIMAL: PlanStatus.OPTIMAL,
    Status.WITHIN_GAP: PlanStatus.WITHIN_GAP,
    Status.LIMIT: PlanStatus.LIMIT,
    Status.BEST_EFFORT: PlanStatus.BEST_EFFORT,
}
_URGENT_COLUMNS = 500
"""Column limit of an urgent plan, so that its search takes less than a second."""
_FOR_BOUND_S = 0.25
"""Seconds reserved for the bound if survival rows are tightened, but at most half of the remaining
time."""
_FOR_BOUND = 0.05
_NODE_KINDS = (ColumnKind.KEPT_NODES, ColumnKind.NEW_NODES)


@dataclass(frozen=True, slots=True)
class ShoalStrategy:
    """Coral's online problem with keep, start, switch and load (see
    `planning.milp_formulation`)."""

    solver: Solver = solve_arrays
    name: str = "shoal"

    def solve(self, problem: PlanningProblem) -> Plan:
        """The cheapest plan with its bound; best effort if the demand cannot be met."""
        arrays = formulate(problem)
        problem.options.step("formulation", arrays.problem.columns, 0, 0.0, math.inf)
        solved = self._run(arrays, problem)
        if solved.status is Status.FAILED:
            reason = Reason(ReasonCode.SOLVER_FAILED, quoted=solved.reason)
            return failed_plan(problem, self.name, reason, solved.limits_hit)
        solved = _prefer_running_fleet(arrays, problem, solved)
        if arrays.survival_tightened:
            solved = _with_relaxed_bound(arrays, problem, solved)
        return _to_plan(self.name, problem, arrays, solved)

    def _run(self, arrays: Formulation, problem: PlanningProblem) -> AllocationResult:
        options = _before_bound(problem.options) if arrays.survival_tightened else problem.options
        limits = SolveOptions(
            gap=options.gap,
            time_limit_s=options.time_limit_s,
            elapsed_s=options.elapsed_s,
            mip_nodes=options.mip_nodes,
            on_step=options.on_step,
            spare=options.spare,
            spare_classes=arrays.demand_classes,
        )
        if not arrays.problem.demand_req_per_s.size or not arrays.problem.columns:
            return _empty_result(arrays.problem)
        if problem.additions_only and arrays.problem.columns > _URGENT_COLUMNS:
            quick = self._quickly(arrays, limits)
            if quick is not None:
                return quick
        return self.solver(arrays.problem, limits, _running_counts(arrays, problem))

    def _quickly(self, arrays: Formulation, limits: SolveOptions) -> AllocationResult | None:
        """A plan of additions that uses only the best columns and all node columns.

        Its gap is relative to the whole cost, including fixed nodes, but at most 5% of the cost of
        the additions; the next full plan corrects the excess. None if these columns do not serve
        all demand.
        """
        whole = arrays.problem
        rows = np.ones(len(whole.demand_req_per_s))
        nodes = np.array([key.kind in _NODE_KINDS for key in arrays.keys], dtype=np.int64)
        chosen, lower = select(whole, rows, _URGENT_COLUMNS, nodes, limits.left_s())
        if lower is None or lower <= 0.0:
            return None
        gap = min(0.05, limits.gap * (arrays.fixed_usd_per_h + lower) / lower)
        fast = replace(limits, gap=max(gap, limits.gap), mip_nodes=50)
        got = self.solver(chosen.problem, fast, None)
        if got.status in (Status.BEST_EFFORT, Status.FAILED):
            return None
        proven = got.lower_bound_usd_per_h if chosen.holds_all_within(got.cost_usd_per_h) else 0.0
        return checked(
            whole,
            chosen.spread(got.counts),
            max(lower, proven),
            got.served_target,
            got.served_fraction_bound,
            fast,
            got.limits_hit,
        )


def _running_counts(arrays: Formulation, problem: PlanningProblem) -> Ints:
    """Counts (n,) of the running fleet: the start of the search."""
    counts = np.zeros(arrays.problem.columns, dtype=np.int64)
    for index, key in enumerate(arrays.keys):
        if key.kind is ColumnKind.KEEP:
            counts[index] = problem.fleet[key.subject]
        elif key.kind is ColumnKind.KEPT_NODES:
            counts[index] = int(arrays.problem.upper[index])
    return counts


def _prefer_running_fleet(
    arrays: Formulation, problem: PlanningProblem, solved: AllocationResult
) -> AllocationResult:
    """The running fleet if its cost is within the gap of `solved`, because small changes are not
    worthwhile; otherwise `solved`."""
    if problem.additions_only or not any(problem.fleet.values()):
        return solved
    counts = np.zeros(arrays.problem.columns, dtype=np.int64)
    standing = problem.fixed_gpus()
    fleet = ((problem.running[i], count) for i, count in problem.fleet.items())
    needed = add_gpus(problem.taken_gpus, fleet)
    for index, key in enumerate(arrays.keys):
        if key.kind is ColumnKind.KEEP:
            counts[index] = problem.fleet[key.subject]
        elif key.kind is ColumnKind.KEPT_NODES:
            pool = problem.cluster.pool(key.subject)
            nodes = -(-needed.get(pool.id, 0) // pool.per_node)
            counts[index] = nodes - problem.fixed_nodes(pool, standing.get(pool.id, 0))
    _switch_on(arrays, counts)
    target, options = solved.served_target, SolveOptions(gap=problem.options.gap)
    same = checked(
        arrays.problem,
        counts,
        solved.lower_bound_usd_per_h,
        target,
        solved.served_fraction_bound,
        options,
        solved.limits_hit,
    )
    close = same.gap <= max(problem.options.gap, solved.gap)
    return same if same.status is not Status.FAILED and close else solved


def _before_bound(options: PlanOptions) -> PlanOptions:
    """`options` with a shorter time limit, which leaves time to compute the bound."""
    left_s = max(1e-3, options.left_s())
    return options.within(1.0 - max(_FOR_BOUND, min(0.5, _FOR_BOUND_S / left_s)))


def _with_relaxed_bound(
    arrays: Formulation, problem: PlanningProblem, solved: AllocationResult
) -> AllocationResult:
    """`solved` with the bound of the relaxation with exact survival rows, or with bound 0 if that
    takes too long."""
    exact = formulate(problem, exact=True).problem
    seconds = max(_FOR_BOUND_S, problem.options.left_s())
    got = relaxed(exact, solved.served_target, seconds)
    return checked(
        arrays.problem,
        solved.counts,
        0.0 if got is None else max(0.0, min(got.value, solved.cost_usd_per_h)),
        solved.served_target,
        solved.served_fraction_bound,
        SolveOptions(gap=problem.options.gap),
        solved.limits_hit,
    )


def _switch_on(arrays: Formulation, counts: Ints) -> None:
    """Set the counts of the switch columns of survival rows to match the other `counts` (n,)."""
    problem = arrays.problem
    switches = [
        (index, arrays.resource_names[problem.use_resource[problem.use_indptr[index]]][0])
        for index, key in enumerate(arrays.keys)
        if key.kind is ColumnKind.AUXILIARY
    ]
    used = problem.used(counts)
    for index, what in switches:
        if what == LOSS_LEVEL:
            counts[index] = int(used[problem.use_resource[problem.use_indptr[index]]] == 0.0)
    served = problem.served_req_per_s(counts)
    for index, what in switches:
        if what != LOSS_LEVEL:
            row = problem.serve_row[problem.serve_indptr[index]]
            counts[index] = int(served[row] < problem.demand_req_per_s[row])


def _to_plan(
    name: str,
    problem: PlanningProblem,
    arrays: Formulation,
    solved: AllocationResult,
) -> Plan:
    counts: dict[str, int] = {}
    switches = []
    penalties = 0.0
    for key, many, cost in zip(
        arrays.keys, solved.counts, arrays.problem.cost_usd_per_h, strict=True
    ):
        count = int(many)
        if key.kind in (ColumnKind.AUXILIARY, *_NODE_KINDS) or not count:
            continue
        penalties += float(cost) * count
        if key.kind is ColumnKind.LEAVE:
            continue
        counts[key.subject] = counts.get(key.subject, 0) + count
        if key.kind is ColumnKind.SWITCH:
            switches.append(Switch(key.source, key.subject, count))
    lost = unservable_models(problem)
    kept = zip(arrays.demand_names, map(float, solved.served_fraction), strict=True)
    broken = impossible_constraints(
        problem, kept, arrays.survival_tightened, limited=bool(solved.limits_hit)
    )
    try:
        made = decode_plan(
            problem,
            name,
            counts,
            PlanStatus.BEST_EFFORT if lost else _status(solved),
            penalties_usd_per_h=penalties,
            lower_bound_usd_per_h=solved.lower_bound_usd_per_h + arrays.fixed_usd_per_h,
            served_fraction_bound=_fraction_bound(problem, arrays, solved),
            switches=tuple(switches),
            limits_hit=solved.limits_hit,
            notes=(*lost, *broken),
            violations=broken,
        )
    except InvalidValue as error:
        # The solver's answer failed the check in floating point.
        why = Reason(ReasonCode.SOLVER_REFUTED, quoted=str(error))
        return failed_plan(problem, name, why, solved.limits_hit)
    rough = rough_bound_notes(problem, made, arrays.survival_tightened)
    return replace(
        made,
        binding=binding_reasons(problem, made),
        notes=(
            *made.notes,
            *slo_miss_notes(problem, made),
            *no_useful_instance(problem),
            *prefix_hit_notes(problem),
            *rough,
        ),
    )


def _status(solved: AllocationResult) -> PlanStatus:
    """The plan's status. A difference of a micro-dollar per hour is the solver's tolerance, not a
    gap."""
    exact = solved.cost_usd_per_h - solved.lower_bound_usd_per_h <= 1e-6
    if solved.status is Status.LIMIT and exact and not solved.limits_hit:
        return PlanStatus.OPTIMAL
    return _STATUS[solved.status]


def _fraction_bound(
    problem: PlanningProblem, arrays: Formulation, solved: AllocationResult
) -> float:
    """The bound of the smallest served fraction: no plan serves a larger one. It is 1 outside
    RECREATE.

    In other rollout modes, a plan with removals first may serve more. The bound of a class depends
    on the service of earlier classes, so only the bound of the first class applies to all plans.
    The rows contain only demand that fixed combos leave unserved, so the fraction of a row is
    converted to a fraction of the model's whole demand. Of several rows with the same bound, at
    least one is served no better than the bound.
    """
    if problem.rollout_mode is not RolloutMode.RECREATE:
        return 1.0
    most: dict[float, float] = {}
    level = arrays.problem.priority
    rows = zip(arrays.demand_names, level, map(float, solved.served_fraction_bound), strict=True)
    for (what, model), own_level, bound in rows:
        if what == "demand" and own_level == level.min():
            needed = problem.needed_req_per_s(model)
            stands = req_per_s_of(problem.fixed_combos(model))
            served = stands + missing_req_per_s(problem, model) * bound
            share = min(1.0, served / needed) if needed > 0.0 else 1.0
            most[bound] = max(share, most.get(bound, 0.0))
    return min(most.values(), default=1.0)


def _empty_result(problem: AllocationProblem) -> AllocationResult:
    """The empty plan: optimal if there is no demand, otherwise the only plan because there are no
    columns."""
    nothing = np.zeros(len(problem.demand_req_per_s))
    return AllocationResult(
        status=Status.BEST_EFFORT if nothing.size else Status.OPTIMAL,
        counts=np.zeros(problem.columns, dtype=np.int64),
        cost_usd_per_h=0.0,
        lower_bound_usd_per_h=0.0,
        served_fraction=nothing,
        served_fraction_bound=nothing,
        served_target=nothing,
    )
