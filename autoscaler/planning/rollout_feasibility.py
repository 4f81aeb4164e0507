"""Chooses a plan that a rollout from the running fleet can reach.

The best fleet for a demand may have no room until some serving instances have left, or the budget
may not suffice while both fleets are running. This module chooses between that plan and the best
plan whose additions start while all running instances stay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Market
from autoscaler.domain.reason import Reason
from autoscaler.planning.combo_usage import add_gpus, req_per_s_of
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.planning_problem import PlanningProblem, RolloutMode
from topics.reason_codes import ReasonCode

_TOLERANCE = 1e-6
_SURGE_TIME_SHARE = 0.5
"""A search in mode SURGE or STEP leaves this share of the time to the next search."""
_BUDGET_TIME_SHARE = 0.8
"""Share of the time for the plan with the most work; the search for additions needs less time."""


@dataclass(frozen=True, slots=True)
class RollablePlan:
    """A plan that a rollout can reach.

    needs_preemption: it is worth removing serving instances before their replacement can start.
    scale_in_locked: models whose capacity the plan keeps because scale-in is locked. causes: of
    the changes (`planning.change_causes`).
    """

    plan: Plan
    needs_preemption: bool = False
    scale_in_locked: tuple[str, ...] = ()
    causes: tuple[Reason, ...] = ()


def best_rollable_plan(problem: PlanningProblem, strategy: Strategy) -> RollablePlan:
    """The best plan that a rollout can reach: the best plan of all if its rollout is worthwhile,
    otherwise the best plan in mode SURGE.

    A plan whose additions fit in mode SURGE is always worthwhile. A plan that costs less but serves
    no more is worthwhile if the running instances serve as much as the plan, and if the nodes
    rented during the rollout are within the budget. Its additions may wait for free capacity. A
    plan that serves more may remove serving instances if its gain until the next full plan exceeds
    the loss during the rollout (summed over all steps that the disruption budgets require). The
    best plan in mode STEP is preferred to the best plan in mode RECREATE. No model gives up
    instances for its own additions in a full pool.

    Usually one search is enough. If demand is unserved, mode SURGE is searched first, and its plan
    is final if it serves everything. If all demand is served, the cheapest fleet is the plan.

    A scale-in lock is kept if the running instances serve all demand within their limits and the
    lock causes no violated constraint. Otherwise the lock is dropped, so that it takes no capacity
    from other models and causes no purchase.
    """
    if problem.scale_in_locked:
        if _fleet_serves_all(problem):
            made = _rollable_plan(
                replace(problem, options=problem.options.within(_SURGE_TIME_SHARE)), strategy
            )
            if made.plan.status not in (PlanStatus.BEST_EFFORT, PlanStatus.FAILED):
                return replace(made, scale_in_locked=problem.scale_in_locked)
        problem = replace(problem, scale_in_locked=())
    return _rollable_plan(problem, strategy)


def _rollable_plan(problem: PlanningProblem, strategy: Strategy) -> RollablePlan:
    """The plan of `best_rollable_plan`, but without dropping the scale-in locks of `problem`."""
    running = any(problem.fleet.values()) or any(problem.leaving_gpus.values())
    if problem.types and running and not problem.additions_only:
        return _budget_plan(problem, strategy)
    if (
        problem.types
        or problem.rollout_mode is RolloutMode.SURGE
        or problem.additions_only
        or not running
    ):
        return RollablePlan(strategy.solve(problem))
    if _fleet_serves_all(problem):
        return _cheapest_plan(problem, strategy)
    surge = _solve_in_mode(problem, strategy, RolloutMode.SURGE)
    if _serves_all(problem, surge):
        return RollablePlan(surge)
    return _larger_plan(problem, strategy, surge)


def _solve_in_mode(problem: PlanningProblem, strategy: Strategy, room: RolloutMode) -> Plan:
    """The best plan in rollout mode `room`; the search leaves time for the searches in other
    modes."""
    spare = 0.0 if room is RolloutMode.RECREATE else _SURGE_TIME_SHARE
    options = replace(problem.options, spare=spare)
    return strategy.solve(replace(problem, rollout_mode=room, options=options))


def _cheapest_plan(problem: PlanningProblem, strategy: Strategy) -> RollablePlan:
    """The cheapest fleet that a rollout can reach, if the running fleet serves all demand."""
    limited = (
        problem.cluster.policy.budget_usd_per_h > 0.0 or problem.cluster.pools_by_shared_limit()
    )
    options = problem.options.within(0.5) if limited else problem.options
    best = strategy.solve(replace(problem, options=options))
    if best.status is PlanStatus.FAILED or problem.options.is_over():
        return RollablePlan(best)
    whole = {target.combo.id: target.count for target in best.targets}
    if _fits(problem, best, problem.taken_gpus, whole):
        return RollablePlan(best)
    surge = strategy.solve(replace(problem, rollout_mode=RolloutMode.SURGE))
    return RollablePlan(best if surge.status is PlanStatus.FAILED else surge)


def _budget_plan(problem: PlanningProblem, strategy: Strategy) -> RollablePlan:
    """The fleet that does the most work for the budget and replaces the running fleet step by step.

    If all running instances would have to leave before any addition starts, the result is the best
    plan with additions only.
    """
    best = strategy.solve(replace(problem, options=problem.options.within(_BUDGET_TIME_SHARE)))
    there = RollablePlan(best, needs_preemption=best.work is not None)
    stuck = _models_without_rollout(problem, best)
    if not stuck:
        return there
    added = strategy.solve(replace(problem, additions_only=True))
    if added.status is PlanStatus.FAILED:  # e.g. the running fleet exceeds the budget
        return there
    why = Reason(ReasonCode.BUDGET_STUCK, stuck[0] if len(stuck) == 1 else "", stuck)
    return RollablePlan(replace(added, notes=(*added.notes, why)))


def _models_without_rollout(problem: PlanningProblem, plan: Plan) -> tuple[str, ...]:
    """Models whose first addition lacks room or budget even after all permitted removals. These are
    one step of the model's disruption budget, and all planned removals of other models. Free GPUs
    are counted without regard to the node on which they are.
    """
    added = _added(plan)
    stays = {t.combo.id: min(t.now, t.count) for t in plan.targets}
    found = []
    for model in problem.planned_models():
        new = [t.combo for t in plan.targets_of(model) if added.get(t.combo.id)]
        left = {**stays, **_remaining_after_removals(problem, plan, model)}
        gpus = add_gpus(problem.taken_gpus, ((t.combo, left[t.combo.id]) for t in plan.targets))
        if new and not any(
            _available_and_affordable(problem, add_gpus(gpus, [(one, 1)]), surge=False)
            for one in new
        ):
            found.append(model)
    return tuple(found)


def _remaining_after_removals(problem: PlanningProblem, plan: Plan, model: str) -> dict[str, int]:
    """Instances of `model` that remain after every permitted removal."""
    targets, service = plan.targets_of(model), problem.cluster.service(model)
    left, moved = {target.combo.id: target.now for target in targets}, True
    while moved:
        each = [t.combo.req_per_s for t in targets for _ in range(left[t.combo.id])]
        at_a_time, moved = service.max_leaving_req_per_s(each), False
        for target in targets:
            over = max(0, left[target.combo.id] - target.count)
            rate = max(target.combo.req_per_s, _TOLERANCE)
            goes = min(over, int((at_a_time + _TOLERANCE) / rate))
            left[target.combo.id] -= goes
            at_a_time -= goes * rate
            moved = moved or goes > 0
    return left


def _available_and_affordable(
    problem: PlanningProblem, gpus: Mapping[str, int], surge: bool
) -> bool:
    """Whether nodes for these GPUs per pool are available and affordable.

    surge: while all current nodes are paid for too.
    """
    pools = problem.cluster.pools
    now = {pool.id: problem.nodes_now(pool) for pool in pools}
    nodes = {pool.id: -(-gpus.get(pool.id, 0) // pool.per_node) for pool in pools}
    if any(nodes[pool.id] - now[pool.id] > problem.rentable_nodes(pool) for pool in pools):
        return False
    if surge:
        nodes = {pool: max(count, now[pool]) for pool, count in nodes.items()}
    for both in problem.cluster.pools_by_shared_limit().values():
        most = max(both[0].max_of_both, sum(now[pool.id] for pool in both))
        if sum(nodes[pool.id] for pool in both) > most:
            return False
    paid = now if surge else dict.fromkeys(now, 0)
    usd = sum(
        (nodes[pool.id] - paid[pool.id]) * pool.price_usd_per_h
        for pool in pools
        if pool.market is not Market.OWNED
    )
    budget = problem.cluster.policy.budget_usd_per_h
    already = problem.now_usd_per_h() if surge else 0.0
    return usd <= 0.0 or budget <= 0.0 or already + usd <= budget + _TOLERANCE


def _larger_plan(problem: PlanningProblem, strategy: Strategy, surge: Plan) -> RollablePlan:
    """The best plan without the room limits of mode SURGE if that is worthwhile, otherwise `surge`,
    the best plan in mode SURGE."""
    # Without hysteresis, because its excess for one model must not take capacity that another model
    # needs.
    problem = replace(problem, options=replace(problem.options, hysteresis=0.0))
    plans: list[Plan] = []
    for room in (RolloutMode.STEP, RolloutMode.RECREATE):
        if problem.options.is_over() or any(_serves_all(problem, plan) for plan in plans):
            break
        plan = _solve_in_mode(problem, strategy, room)
        plans += [] if plan.status is PlanStatus.FAILED else [plan]
    if not plans or surge.status is PlanStatus.FAILED:
        return RollablePlan(plans[-1] if plans else surge)
    best = plans[-1]
    lost = max(_gain(problem, surge, best).values())
    if lost <= _TOLERANCE and _fits(problem, best, problem.gpus_now(), _added(best)):
        return RollablePlan(best)
    more = [plan for plan in plans if max(_gain(problem, plan, surge).values()) > _TOLERANCE]
    for plan in more:
        if not _replaces_its_own(problem, plan) and _gain_exceeds_loss(problem, plan, surge):
            return RollablePlan(plan, needs_preemption=True)
    if more or any(
        _is_underserved_now(problem, surge, model) for model in problem.planned_models()
    ):
        return RollablePlan(surge)
    whole = {target.combo.id: target.count for target in best.targets}
    return RollablePlan(best if _fits(problem, best, problem.taken_gpus, whole) else surge)


def _serves_all(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether `plan` serves all demand and meets all floors."""
    served = _shares_served(problem, plan).values()
    return plan.status is not PlanStatus.FAILED and min(served, default=1.0) > 1.0 - _TOLERANCE


def _fleet_serves_all(problem: PlanningProblem) -> bool:
    """Whether the running fleet has enough nodes, is within the budget, and meets all demand,
    floors and ceilings."""
    taken = problem.gpus_now()
    over = any(
        taken.get(p.id, 0) > problem.nodes_now(p) * p.per_node for p in problem.cluster.pools
    )
    budget = problem.cluster.policy.budget_usd_per_h
    if over or (budget > 0.0 and problem.now_usd_per_h() > budget + _TOLERANCE):
        return False
    for model in problem.planned_models():
        runs = problem.running_combos(model)
        count = sum(n for _, n in runs)
        service = problem.cluster.service(model)
        if count < service.min_instances or count > (service.max_instances or count):
            return False
        if req_per_s_of(runs) < problem.needed_req_per_s(model) * (1.0 - _TOLERANCE):
            return False
    return True


def _replaces_its_own(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether some model would give up instances in a full pool for its own additions.

    Free GPUs are counted without regard to the node on which they are, so a free block may be too
    small.
    """
    free_of_charge = replace(problem.cluster.policy, budget_usd_per_h=0.0)
    cluster = replace(problem.cluster, policy=free_of_charge)
    if _fits(replace(problem, cluster=cluster), plan, problem.gpus_now(), _added(plan)):
        return False
    return any(
        any(t.count > t.now for t in plan.targets_of(model))
        and any(t.count < t.now for t in plan.targets_of(model))
        for model in problem.planned_models()
    )


def _is_underserved_now(problem: PlanningProblem, plan: Plan, model: str) -> bool:
    """Whether `plan` serves more of `model` than the running instances do."""
    needed = problem.needed_req_per_s(model)
    runs = sum(target.now * target.combo.req_per_s for target in plan.targets_of(model))
    serves = sum(target.count * target.combo.req_per_s for target in plan.targets_of(model))
    return runs < min(needed, serves) * (1.0 - _TOLERANCE)


def _added(plan: Plan) -> dict[str, int]:
    """Number of instances that start, by combo id: counts above the current ones, except instances
    that result from a role switch."""
    added = Counter({t.combo.id: max(0, t.count - t.now) for t in plan.targets})
    added.subtract({switch.target: switch.count for switch in plan.switches})
    return dict(+added)


def _fits(
    problem: PlanningProblem, plan: Plan, taken: Mapping[str, int], counts: Mapping[str, int]
) -> bool:
    """Whether `counts` of the plan's combos fit in addition to `taken` GPUs per pool.

    The nodes for them and all nodes paid for now must be within the budget together.
    """
    gpus = add_gpus(taken, ((t.combo, counts.get(t.combo.id, 0)) for t in plan.targets))
    return _available_and_affordable(problem, gpus, surge=True)


def _gain_exceeds_loss(problem: PlanningProblem, plan: Plan, surge: Plan) -> bool:
    """Whether `plan` serves more than `surge` until the next full plan, after subtracting the loss
    during its rollout.

    A gain or loss of a higher priority outweighs all lower ones. Example: a start takes 60 s, a
    full plan comes every 300 s, and instances that serve a third of the need stop to make room. The
    loss is 1/3 x 60/300 = 6.7% of the demand, and the gain must exceed it.
    """
    starts_s = (t.combo.start_s for t in plan.targets if t.count > t.now)
    share = max(starts_s, default=0.0) / problem.cluster.policy.replan_every_s
    worth: dict[int, float] = {}
    for model, more in _gain(problem, plan, surge).items():
        priority = problem.cluster.service(model).priority
        lost = _share_lost(problem, plan, model, share)
        worth[priority] = worth.get(priority, 0.0) + more - lost
    decisive = (net for _, net in sorted(worth.items(), reverse=True) if abs(net) > _TOLERANCE)
    return next(decisive, 0.0) > 0.0


def _share_lost(problem: PlanningProblem, plan: Plan, model: str, of_time: float) -> float:
    """The share of the need of `model` that is served by instances that leave under `plan`,
    multiplied by `of_time`, the share of time without them.

    The loss counts once for every step of the disruption budget. It is infinite if no instance may
    leave.
    """
    needed, targets = problem.needed_req_per_s(model), plan.targets_of(model)
    runs = sum(target.now * target.combo.req_per_s for target in targets)
    leaves = sum(max(0, t.now - t.count) * t.combo.req_per_s for t in targets)
    if needed <= 0.0 or leaves <= 0.0:
        return 0.0
    lost = max(0.0, min(1.0, runs / needed) - min(1.0, (runs - leaves) / needed))
    each = (target.combo.req_per_s for target in targets for _ in range(target.now))
    a_step = problem.cluster.service(model).max_leaving_req_per_s(each)
    if a_step <= 0.0:
        return math.inf
    return of_time * lost * max(1, math.ceil(leaves / a_step - _TOLERANCE))


def _gain(problem: PlanningProblem, one: Plan, other: Plan) -> dict[str, float]:
    """By planned model, the share of its demand that `one` serves beyond `other`.

    A missed floor counts like unserved demand.
    """
    more, less = _shares_served(problem, one), _shares_served(problem, other)
    return {model: more[model] - less[model] for model in more}


def _shares_served(problem: PlanningProblem, plan: Plan) -> dict[str, float]:
    """The share of each planned model's demand that `plan` serves, minus the missed share of its
    floor."""
    found = {}
    for model in problem.planned_models():
        demand, service = problem.demands[model].req_per_s, problem.cluster.service(model)
        short = plan.shortfall_req_per_s.get(model, 0.0)
        share = 1.0 - (short / demand if demand > 0.0 else 0.0)
        runs = sum(target.count for target in plan.targets_of(model))
        missed = max(0, service.min_instances - runs)
        found[model] = share - (missed / service.min_instances if missed else 0.0)
    return found
