"""Which plan the running fleet can get to: additions need a place, and money, beside what runs.

The best fleet for a demand may have no room until something that serves has left, or cost more than
the budget while both stand. Owns the choice between that plan and the best one whose additions
stand beside all that runs. Knows no solver.
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
from autoscaler.planning.planning_problem import PlanningProblem, Room
from topics.reason_codes import ReasonCode

_LEAST = 1e-6
_SPARE = 0.5
"""Of the time, where room is short: the next plan may serve more."""
_MOST = 0.8
"""Of the time, for the most work; additions beside what runs are found sooner."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A plan. makes_room: it is worth that something which serves leaves before what replaces it
    can start. keeps: models of which it gives nothing away because it may not."""

    plan: Plan
    makes_room: bool = False
    keeps: tuple[str, ...] = ()


def in_reach(problem: PlanningProblem, strategy: Strategy) -> Reached:
    """The best plan, where its additions fit beside what runs, or it is worth what getting there
    costs; else the best plan with such additions.

    A plan that only costs less may wait for room, while what runs serves as much and the nodes that
    it rents meanwhile are within the budget; nothing that is needed leaves for it. One that serves
    more may take from what serves, if it wins more until the next full plan than is lost while it
    starts, for each step of the disruption budgets. The best one that needs one step comes before
    the best of all. No model gives up instances for its own in a full pool.

    Mostly one search will do: where something is missing, what stands beside all that runs comes
    first, and nothing serves more where it serves everything; where nothing is, the cheapest fleet.

    What may not leave yet stays where what runs serves all within its limits, and no promise is
    broken for it; otherwise it takes nothing from anyone, and nothing is bought to make up for it.
    """
    if problem.keeps:
        if _is_all_served(problem):
            made = _in_reach(replace(problem, options=problem.options.within(_SPARE)), strategy)
            if made.plan.status not in (PlanStatus.BEST_EFFORT, PlanStatus.FAILED):
                return replace(made, keeps=problem.keeps)
        problem = replace(problem, keeps=())
    return _in_reach(problem, strategy)


def _in_reach(problem: PlanningProblem, strategy: Strategy) -> Reached:
    """The same, where what may not leave yet counts as needed."""
    running = any(problem.fleet.values()) or any(problem.leaving_gpus.values())
    if problem.types and running and not problem.additions_only:
        return _at_budget(problem, strategy)
    if problem.types or problem.room is Room.BESIDE or problem.additions_only or not running:
        return Reached(strategy.solve(problem))
    if _is_all_served(problem):
        return _at_least_cost(problem, strategy)
    beside = _sparing(problem, strategy, Room.BESIDE)
    if _serves_all(problem, beside):
        return Reached(beside)
    return _with_more(problem, strategy, beside)


def _sparing(problem: PlanningProblem, strategy: Strategy, room: Room) -> Plan:
    """The best plan with this room, that leaves time for those with more of it."""
    spare = 0.0 if room is Room.LATER else _SPARE
    options = replace(problem.options, spare=spare)
    return strategy.solve(replace(problem, room=room, options=options))


def _at_least_cost(problem: PlanningProblem, strategy: Strategy) -> Reached:
    """The cheapest fleet, where all is served already."""
    limited = (
        problem.cluster.policy.budget_usd_per_h > 0.0 or problem.cluster.pools_by_shared_limit()
    )
    options = problem.options.within(0.5) if limited else problem.options
    best = strategy.solve(replace(problem, options=options))
    if best.status is PlanStatus.FAILED or problem.options.is_over():
        return Reached(best)
    whole = {target.combo.id: target.count for target in best.targets}
    if _fits(problem, best, problem.taken_gpus, whole):
        return Reached(best)
    beside = strategy.solve(replace(problem, room=Room.BESIDE))
    return Reached(best if beside.status is PlanStatus.FAILED else beside)


def _at_budget(problem: PlanningProblem, strategy: Strategy) -> Reached:
    """The fleet that does most for the budget, which takes the place of what runs in it, step by
    step; or the best additions, where all that runs would have to leave before anything starts."""
    best = strategy.solve(replace(problem, options=problem.options.within(_MOST)))
    there = Reached(best, makes_room=best.work is not None)
    stuck = _stuck(problem, best)
    if not stuck:
        return there
    added = strategy.solve(replace(problem, additions_only=True))
    if added.status is PlanStatus.FAILED:  # what runs costs more than the budget, say
        return there
    why = Reason(ReasonCode.BUDGET_STUCK, stuck[0] if len(stuck) == 1 else "", stuck)
    return Reached(replace(added, notes=(*added.notes, why)))


def _stuck(problem: PlanningProblem, plan: Plan) -> tuple[str, ...]:
    """Models that have no room, or no money, for the first of what `plan` adds, when as much of
    them has left as may, a step at a time, and of others what leaves. GPUs are counted, not where
    they lie."""
    added = _added(plan)
    stays = {t.combo.id: min(t.now, t.count) for t in plan.targets}
    found = []
    for model in problem.planned_models():
        new = [t.combo for t in plan.of(model) if added.get(t.combo.id)]
        left = {**stays, **_left_at_least(problem, plan, model)}
        gpus = add_gpus(problem.taken_gpus, ((t.combo, left[t.combo.id]) for t in plan.targets))
        if new and not any(
            _can_be_had(problem, add_gpus(gpus, [(one, 1)]), beside=False) for one in new
        ):
            found.append(model)
    return tuple(found)


def _left_at_least(problem: PlanningProblem, plan: Plan, model: str) -> dict[str, int]:
    """What is left of what runs of `model` when all of it has left that is to, and may."""
    targets, service = plan.of(model), problem.cluster.service(model)
    left, moved = {target.combo.id: target.now for target in targets}, True
    while moved:
        each = [t.combo.req_per_s for t in targets for _ in range(left[t.combo.id])]
        at_a_time, moved = service.max_leaving_req_per_s(each), False
        for target in targets:
            over = max(0, left[target.combo.id] - target.count)
            rate = max(target.combo.req_per_s, _LEAST)
            goes = min(over, int((at_a_time + _LEAST) / rate))
            left[target.combo.id] -= goes
            at_a_time -= goes * rate
            moved = moved or goes > 0
    return left


def _can_be_had(problem: PlanningProblem, gpus: Mapping[str, int], beside: bool) -> bool:
    """Whether there are nodes for so many GPUs per pool, and money for the nodes; beside: while all
    nodes that are there now are paid for too."""
    pools = problem.cluster.pools
    now = {pool.id: problem.nodes_now(pool) for pool in pools}
    nodes = {pool.id: -(-gpus.get(pool.id, 0) // pool.per_node) for pool in pools}
    if any(nodes[pool.id] - now[pool.id] > problem.nodes_to_get(pool) for pool in pools):
        return False
    if beside:
        nodes = {pool: max(count, now[pool]) for pool, count in nodes.items()}
    for both in problem.cluster.pools_by_shared_limit().values():
        most = max(both[0].max_of_both, sum(now[pool.id] for pool in both))
        if sum(nodes[pool.id] for pool in both) > most:
            return False
    paid = now if beside else dict.fromkeys(now, 0)
    usd = sum(
        (nodes[pool.id] - paid[pool.id]) * pool.price_usd_per_h
        for pool in pools
        if pool.market is not Market.OWNED
    )
    budget = problem.cluster.policy.budget_usd_per_h
    already = problem.now_usd_per_h() if beside else 0.0
    return usd <= 0.0 or budget <= 0.0 or already + usd <= budget + _LEAST


def _with_more(problem: PlanningProblem, strategy: Strategy, beside: Plan) -> Reached:
    """What serves more than `beside`, the best that has room, if that is worth it."""
    # What is asked for beyond the need must not cost anyone their share of it.
    problem = replace(problem, options=replace(problem.options, hold=0.0))
    plans: list[Plan] = []
    for room in (Room.AFTER, Room.LATER):
        if problem.options.is_over() or any(_serves_all(problem, plan) for plan in plans):
            break
        plan = _sparing(problem, strategy, room)
        plans += [] if plan.status is PlanStatus.FAILED else [plan]
    if not plans or beside.status is PlanStatus.FAILED:
        return Reached(plans[-1] if plans else beside)
    best = plans[-1]
    lost = max(_gain(problem, beside, best).values())
    if lost <= _LEAST and _fits(problem, best, problem.gpus_now(), _added(best)):
        return Reached(best)
    more = [plan for plan in plans if max(_gain(problem, plan, beside).values()) > _LEAST]
    for plan in more:
        if not _needs_own_place(problem, plan) and _is_worth_breaking(problem, plan, beside):
            return Reached(plan, makes_room=True)
    if more or any(_is_short_now(problem, beside, model) for model in problem.planned_models()):
        return Reached(beside)
    whole = {target.combo.id: target.count for target in best.targets}
    return Reached(best if _fits(problem, best, problem.taken_gpus, whole) else beside)


def _serves_all(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether `plan` leaves no demand and no floor short."""
    served = _shares_served(problem, plan).values()
    return plan.status is not PlanStatus.FAILED and min(served, default=1.0) > 1.0 - _LEAST


def _is_all_served(problem: PlanningProblem) -> bool:
    """Whether what runs has its place, its money and covers every need and floor."""
    taken = problem.gpus_now()
    over = any(
        taken.get(p.id, 0) > problem.nodes_now(p) * p.per_node for p in problem.cluster.pools
    )
    budget = problem.cluster.policy.budget_usd_per_h
    if over or (budget > 0.0 and problem.now_usd_per_h() > budget + _LEAST):
        return False
    for model in problem.planned_models():
        runs = problem.running_of(model)
        count = sum(n for _, n in runs)
        service = problem.cluster.service(model)
        if count < service.min_instances or count > (service.max_instances or count):
            return False
        if req_per_s_of(runs) < problem.needed_req_per_s(model) * (1.0 - _LEAST):
            return False
    return True


def _needs_own_place(problem: PlanningProblem, plan: Plan) -> bool:
    """Whether a model would give up instances so that others of its own find GPUs in a full pool.
    Free GPUs are counted, not where they lie: what leaves may leave no block that is large enough.
    """
    free_of_charge = replace(problem.cluster.policy, budget_usd_per_h=0.0)
    cluster = replace(problem.cluster, policy=free_of_charge)
    if _fits(replace(problem, cluster=cluster), plan, problem.gpus_now(), _added(plan)):
        return False
    return any(
        any(t.count > t.now for t in plan.of(model))
        and any(t.count < t.now for t in plan.of(model))
        for model in problem.planned_models()
    )


def _is_short_now(problem: PlanningProblem, plan: Plan, model: str) -> bool:
    """Whether `plan` serves more of `model` than what runs does."""
    needed = problem.needed_req_per_s(model)
    runs = sum(target.now * target.combo.req_per_s for target in plan.of(model))
    serves = sum(target.count * target.combo.req_per_s for target in plan.of(model))
    return runs < min(needed, serves) * (1.0 - _LEAST)


def _added(plan: Plan) -> dict[str, int]:
    """Combos that start: more than run now, but for those that other ones switch to."""
    added = Counter({t.combo.id: max(0, t.count - t.now) for t in plan.targets})
    added.subtract({switch.target: switch.count for switch in plan.switches})
    return dict(+added)


def _fits(
    problem: PlanningProblem, plan: Plan, taken: Mapping[str, int], counts: Mapping[str, int]
) -> bool:
    """Whether `counts` of the plan's combos have room beside `taken` GPUs per pool, and the nodes
    that they need the budget beside all that are paid for now."""
    gpus = add_gpus(taken, ((t.combo, counts.get(t.combo.id, 0)) for t in plan.targets))
    return _can_be_had(problem, gpus, beside=True)


def _is_worth_breaking(problem: PlanningProblem, plan: Plan, beside: Plan) -> bool:
    """Whether `plan` serves more than `beside` until the next full plan, with what is not served
    until its additions have started; a higher priority outweighs all lower ones.

    E.g. a start takes 60 s and plans are made every 300 s: where a third of the need leaves for
    something larger, 6.7% of the demand more must be served than without.
    """
    starts_s = (t.combo.start_s for t in plan.targets if t.count > t.now)
    share = max(starts_s, default=0.0) / problem.cluster.policy.replan_every_s
    worth: dict[int, float] = {}
    for model, more in _gain(problem, plan, beside).items():
        priority = problem.cluster.service(model).priority
        lost = _lost_meanwhile(problem, plan, model, share)
        worth[priority] = worth.get(priority, 0.0) + more - lost
    decisive = (net for _, net in sorted(worth.items(), reverse=True) if abs(net) > _LEAST)
    return next(decisive, 0.0) > 0.0


def _lost_meanwhile(problem: PlanningProblem, plan: Plan, model: str, of_time: float) -> float:
    """The share of what `model` needs that leaves under `plan` and serves now, during `of_time` for
    every step that its disruption budget makes of it; infinite where none of it may leave."""
    needed, targets = problem.needed_req_per_s(model), plan.of(model)
    runs = sum(target.now * target.combo.req_per_s for target in targets)
    leaves = sum(max(0, t.now - t.count) * t.combo.req_per_s for t in targets)
    if needed <= 0.0 or leaves <= 0.0:
        return 0.0
    lost = max(0.0, min(1.0, runs / needed) - min(1.0, (runs - leaves) / needed))
    each = (target.combo.req_per_s for target in targets for _ in range(target.now))
    a_step = problem.cluster.service(model).max_leaving_req_per_s(each)
    if a_step <= 0.0:
        return math.inf
    return of_time * lost * max(1, math.ceil(leaves / a_step - _LEAST))


def _gain(problem: PlanningProblem, one: Plan, other: Plan) -> dict[str, float]:
    """What `one` serves more than `other`, as a share of each planned model's demand. A floor that
    is missed counts as demand."""
    more, less = _shares_served(problem, one), _shares_served(problem, other)
    return {model: more[model] - less[model] for model in more}


def _shares_served(problem: PlanningProblem, plan: Plan) -> dict[str, float]:
    """The share of each planned model's demand that `plan` serves, less what its floor misses."""
    found = {}
    for model in problem.planned_models():
        demand, service = problem.demands[model].req_per_s, problem.cluster.service(model)
        short = plan.shortfall_req_per_s.get(model, 0.0)
        share = 1.0 - (short / demand if demand > 0.0 else 0.0)
        runs = sum(target.count for target in plan.of(model))
        missed = max(0, service.min_instances - runs)
        found[model] = share - (missed / service.min_instances if missed else 0.0)
    return found
