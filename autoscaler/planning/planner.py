"""The planner: one request, one plan. The control loop gets all its plans from this module.

It translates a request into a planning problem, and a plan into an answer. It is pure: the caller
decides where it runs (in a process that can be killed, in a thread, or in place in a simulation).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import evaluate_combo, ranking_usd_per_h, usable_pools
from autoscaler.planning.capacity_provenance import with_measured_rooms
from autoscaler.planning.change_causes import change_causes
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combo_usage import req_per_s_of
from autoscaler.planning.floor_eligibility import keeps_floor
from autoscaler.planning.model_constraints import missing_off_spot
from autoscaler.planning.named_change import full_change, urgent_change
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.planned_thresholds import PLAN_THRESHOLDS, PlannedThresholds
from autoscaler.planning.planner_messages import (
    Outcome,
    PlanAnswer,
    PlanRequest,
    Urgency,
    no_plan_answer,
)
from autoscaler.planning.planning_problem import (
    PlanningProblem,
    PlanOptions,
    RolloutMode,
    Settling,
    arrivals_of,
    make_problem,
)
from autoscaler.planning.rollout_feasibility import RollablePlan, best_rollable_plan
from topics.reason_codes import ReasonCode

OPTIONS = PlanOptions(gap=0.005, hysteresis=0.025, allow_slo_miss=True)
"""Searches stop at a gap of 0.5% of the cost, because a smaller saving does not pay for a change.
The hysteresis of 2.5% absorbs fluctuations of demand by 2%, because 1.025 x 0.98 > 1."""
# share of the request's time; node limit if there is no clock
_LASTING_TIME_SHARE, _LASTING_MIP_NODES = 0.125, 50
_MAX_COLUMNS = 500
_K_LEAVE = 2.5
"""Penalty of a plan for an instance that leaves soon after its start, as a multiple of its price.
So it leaves only if a constraint or the demand of other models requires it, if its price rises far,
or if it is nearly alone on an expensive node."""
_PROVEN = (PlanStatus.OPTIMAL, PlanStatus.WITHIN_GAP)


def answer_request(
    request: PlanRequest,
    cluster: Cluster,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions = OPTIONS,
) -> PlanAnswer:
    """The answer to `request`. cluster: the declared cluster (current prices are in the request).
    There is always an answer: a malformed request, e.g. with a price that is not a number, gets
    outcome NONE and a note that names the error.
    """
    try:
        resolved = _resolve(request, cluster, profile)

        def solve(
            ask: PlanRequest, demands: dict[str, Demand], limits: PlanOptions
        ) -> RollablePlan:
            return _solve(ask, replace(resolved, demands=demands), profile, strategy, limits)

        thresholds = PlannedThresholds((), resolved.demands, None)
        if request.routes:
            routes = resolved.cluster.routes
            thresholds = PLAN_THRESHOLDS(request, routes, resolved.demands, solve, options)
        made = thresholds.made
        if made is None or request.keeps_instances:
            whole = solve(request, thresholds.demands, options)
            # The choice of thresholds may have used all of the time.
            made = whole if made is None or whole.plan.status is not PlanStatus.FAILED else made
    except InvalidValue as error:
        return no_plan_answer(request, Reason(ReasonCode.REQUEST_REFUSED, quoted=str(error)))
    if made.plan.status is PlanStatus.FAILED:
        notes = made.plan.notes
        return no_plan_answer(request, notes[-1] if notes else Reason(ReasonCode.NO_PLAN))
    answer = _to_answer(request, resolved, made.plan)
    answer = replace(answer, needs_preemption=made.needs_preemption, causes=made.causes)
    return thresholds.added_to(answer)


def explained_plan(
    request: PlanRequest,
    cluster: Cluster,
    profile: Profile,
    strategy: Strategy,
    model: str,
    options: PlanOptions = OPTIONS,
) -> tuple[PlanningProblem, Plan] | None:
    """The problem of `request` and its plan without hysteresis, to explain the plan for `model`;
    None if there is no plan.
    """
    try:
        resolved = _resolve(request, cluster, profile)
        problem = _build_problem(request, resolved, profile, replace(options, hysteresis=0.0))
        made = best_rollable_plan(problem, strategy)
    except InvalidValue:
        return None
    if made.plan.status is PlanStatus.FAILED or model not in problem.demands:
        return None
    return replace(problem, scale_in_locked=made.scale_in_locked), made.plan


def _solve(
    request: PlanRequest,
    resolved: _ResolvedRequest,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions,
) -> RollablePlan:
    problem = _build_problem(request, resolved, profile, options)
    if problem.additions_only and (made := _lasting_plan(problem, resolved, strategy)) is not None:
        return RollablePlan(made, causes=change_causes(problem, made))
    rollable = best_rollable_plan(problem, strategy)
    return replace(rollable, causes=change_causes(problem, rollable.plan))


def _lasting_plan(
    problem: PlanningProblem, resolved: _ResolvedRequest, strategy: Strategy
) -> Plan | None:
    """The best fleet for the models of an urgent request, in mode SURGE; None if only additions
    should be planned. The cheapest additions are often expensive and soon replaced by a full plan,
    so the best fleet is searched for first. This search is skipped if running combos are lost, if
    there are many candidates, or if a model must survive a loss. Its result is used only if it is
    proven within a short time.
    """
    columns = sum(map(len, problem.candidates.values())) + len(problem.fleet)
    nothing = not any(problem.candidates.values()) or not any(problem.fleet.values())
    if nothing or problem.types or problem.fleet != resolved.fleet or columns > _MAX_COLUMNS:
        return None
    short = {model for model, combos in problem.candidates.items() if combos}
    if any(s.model in short and s.survive != "none" for s in problem.cluster.services):
        return None
    if short.intersection(problem.scale_in_locked):
        # scale-in is locked, so the old fleet would stay and both fleets would be paid for
        return None
    stays = tuple(model for model in problem.demands if model not in short)
    options = replace(problem.options.within(_LASTING_TIME_SHARE), mip_nodes=_LASTING_MIP_NODES)
    whole = replace(
        problem,
        additions_only=False,
        rollout_mode=RolloutMode.SURGE,
        scale_in_locked=stays,
        options=options,
    )
    made = strategy.solve(whole)
    if made.status not in _PROVEN or made.work is not None or made.switches:
        return None
    most = {s.model: s.max_instances or math.inf for s in problem.cluster.services}
    beside = all(
        sum(max(t.count, t.now) for t in made.targets_of(m)) <= most[m] for m in problem.demands
    )
    return made if beside else None


@dataclass(frozen=True, slots=True)
class _ResolvedRequest:
    """A request, expressed in terms of the current declarations.

    fleet: counts of the combos in scope that are planned. untouched: combos that stay because the
    declarations no longer allow their evaluation. taken_gpus: GPUs per pool used by `untouched` and
    by models out of scope.
    """

    cluster: Cluster
    demands: dict[str, Demand]
    fleet: dict[str, int]
    untouched: dict[str, int]
    taken_gpus: dict[str, int]
    notes: tuple[Reason, ...] = ()


def _resolve(request: PlanRequest, declared: Cluster, profile: Profile) -> _ResolvedRequest:
    """Divide the fleet of `request`: combos in scope are evaluated and planned; all other combos
    only take GPUs.
    """
    out = dict(request.unusable_nodes)
    pools = tuple(
        replace(pool, max_nodes=max(0, pool.max_nodes - out[pool.id])) if pool.id in out else pool
        for pool in declared.pools
    )
    floors = dict(request.floors)
    floored = tuple(
        replace(service, min_instances=floors[service.model])
        if service.model in floors
        else service
        for service in declared.services
    )
    rooms = dict(request.rooms)
    floored = tuple(
        with_measured_rooms(service, rooms[service.model]) if service.model in rooms else service
        for service in floored
    )
    mixes = {demand.model: dict(demand.mix) for demand in request.demands if demand.mix}
    asked_for = tuple(
        replace(service, graph=service.graph.with_shares(mixes[service.model]))
        if service.graph is not None and service.model in mixes
        else service
        for service in floored
    )
    cluster = replace(declared, pools=pools, services=asked_for)
    known = {pool.id for pool in pools}
    services = {service.model: service for service in cluster.services}
    scope = set(request.scope or services)
    demands = {d.model: d for d in request.demands if d.model in services and d.model in scope}
    resolved = _ResolvedRequest(cluster, demands, {}, {}, {})
    for combo_id, count in request.fleet:
        model, members = parse_combo_id(combo_id)
        if not count or any(pool not in known for _, _, pool, _ in members):
            continue
        if model in demands:
            try:
                service, demand = services[model], demands[model]
                arrivals = arrivals_of(demand, service)
                evaluate_combo(combo_id, cluster, service, demand.lengths, profile, arrivals)
            except InvalidValue:
                if request.urgency is Urgency.FULL:
                    continue  # the current declarations no longer allow this combo
                resolved.untouched[combo_id] = count
            else:
                resolved.fleet[combo_id] = count
                continue
        for _, gpus, pool, each in members:
            resolved.taken_gpus[pool] = resolved.taken_gpus.get(pool, 0) + gpus * each * count
    return resolved


def _build_problem(
    request: PlanRequest, resolved: _ResolvedRequest, profile: Profile, options: PlanOptions
) -> PlanningProblem:
    urgent, moves_work = request.urgency is Urgency.URGENT, resolved.cluster.policy.spends_budget
    if not urgent and (moves_work or not request.removals_only):
        return _assemble_problem(request, resolved, profile, options, None)

    def assembled(offered: tuple[str, ...]) -> PlanningProblem:
        made = _assemble_problem(request, resolved, profile, options, offered)
        return _without_lost_nodes(made) if urgent else made

    short: tuple[str, ...] = tuple(resolved.demands)
    if not moves_work:
        # Models whose running instances are enough get no candidates. Their evaluation takes most
        # of the time of an urgent plan.
        bare = assembled(())
        stays = replace(bare, additions_only=True)
        short = tuple(model for model in short if not _fleet_suffices(stays, model))
        if not short:
            return bare
    return assembled(short)


def _fleet_suffices(problem: PlanningProblem, model: str) -> bool:
    """Whether the running instances of `model` meet its demand, SLO and other constraints. problem:
    one in which all running instances stay."""
    running, service = problem.running_combos(model), problem.cluster.service(model)
    serves = req_per_s_of(running)
    # `spot_limit_applies` has the same rule, but needs candidates, which do not exist yet.
    only_spot = all(p.market is Market.SPOT for p in usable_pools(problem.cluster, service))
    return (
        service.graph is None
        and service.survive == "none"
        and serves >= problem.needed_req_per_s(model)
        and keeps_floor(problem, model)
        and (only_spot or missing_off_spot(problem, service) == (0.0, 0))
        and all(combo.meets_slo for combo, _ in running)
    )


def _assemble_problem(
    request: PlanRequest,
    resolved: _ResolvedRequest,
    profile: Profile,
    options: PlanOptions,
    offered: tuple[str, ...] | None,
) -> PlanningProblem:
    known = {pool.id for pool in resolved.cluster.pools}
    urgent = request.urgency is Urgency.URGENT
    leaving = Counter({p: n for p, n in request.leaving_gpus if p in known})
    made = make_problem(
        resolved.cluster,
        resolved.demands,
        profile,
        fleet=resolved.fleet,
        rented_nodes={p: n for p, n in request.rented_nodes if p in known},
        obtainable={p: n for p, n in request.obtainable if p in known},
        prices_usd_per_h={p: usd for p, usd in request.prices_usd_per_h if p in known},
        options=options,
        additions_only=urgent,
        # Leaving instances still take GPUs that additions would need now; a full plan can use them
        # later.
        taken_gpus=leaving + Counter(resolved.taken_gpus) if urgent else resolved.taken_gpus,
        leaving_gpus={} if urgent else leaving,
        offered=offered,
    )
    room = RolloutMode.SURGE if request.surge_only else RolloutMode.RECREATE
    switchable = None if request.switchable is None else dict(request.switchable)
    return replace(
        made,
        rollout_mode=room,
        scale_in_locked=request.scale_in_locked,
        switchable=switchable,
        settling=_settling(request, resolved, made),
    )


def _settling(
    request: PlanRequest, resolved: _ResolvedRequest, problem: PlanningProblem
) -> dict[str, Settling]:
    """The instances that started recently, with the penalty of a plan for each that leaves. It is a
    multiple of the declared price, so an instance may leave if its present price is far higher."""
    declared = {pool.id: pool for pool in resolved.cluster.pools}
    return {
        combo_id: Settling(count, _K_LEAVE * ranking_usd_per_h(problem.running[combo_id], declared))
        for combo_id, count in request.settling
        if combo_id in problem.running
    }


def _without_lost_nodes(problem: PlanningProblem) -> PlanningProblem:
    """`problem` without the running combos for which nodes are missing, lowest priority first.

    Lost combos do not serve, so the plan must replace them.
    """
    services = {service.model: service for service in problem.cluster.services}
    taken_now = problem.fixed_gpus()
    over = {
        pool.id: taken_now.get(pool.id, 0) - problem.nodes_now(pool) * pool.per_node
        for pool in problem.cluster.pools
    }
    if max(over.values(), default=0) <= 0:
        return problem
    fleet = dict(problem.fleet)
    for combo_id in sorted(fleet, key=lambda i: (services[problem.running[i].model].priority, i)):
        taken = problem.running[combo_id].gpus_by_pool()
        while fleet[combo_id] and any(over[pool] > 0 for pool in taken):
            fleet[combo_id] -= 1
            for pool, gpus in taken.items():
                over[pool] -= gpus
    return replace(problem, fleet=fleet)


def _to_answer(request: PlanRequest, resolved: _ResolvedRequest, made: Plan) -> PlanAnswer:
    short = tuple(sorted((m, r) for m, r in made.shortfall_req_per_s.items() if r > 0))
    outside = any(target.count and not target.combo.meets_slo for target in made.targets)
    best_effort = made.status is PlanStatus.BEST_EFFORT or bool(short) or outside
    counts = dict(resolved.untouched)
    replaced: dict[str, int] = {}
    added = {target.combo.model for target in made.targets if target.count > target.now}
    for target in made.targets:
        count, model = target.count, target.combo.model
        if request.urgency is Urgency.URGENT and count < target.now:
            if model in added:
                replaced[target.combo.id] = target.now - count
            count = target.now
        if count and model in resolved.demands:
            counts[target.combo.id] = count
    now = {i: n for i, n in request.fleet if parse_combo_id(i)[0] in resolved.demands}
    if request.urgency is Urgency.URGENT:
        change = urgent_change(request.groups, now, counts, replaced)
    else:
        change = full_change(request.groups, now, counts, made.switches)
    return PlanAnswer(
        number=request.number,
        urgency=request.urgency,
        outcome=Outcome.BEST_EFFORT if best_effort else Outcome.PLANNED,
        scope=tuple(model for model in request.scope if model in resolved.demands)
        or tuple(resolved.demands),
        counts=tuple(sorted(counts.items())),
        change=change,
        strategy=made.strategy,
        cost_usd_per_h=made.cost_usd_per_h,
        now_usd_per_h=made.now_usd_per_h,
        objective_usd_per_h=made.objective_usd_per_h,
        lower_bound_usd_per_h=made.lower_bound_usd_per_h,
        gap=made.gap,
        shortfall_req_per_s=short,
        binding=made.binding,
        notes=(*resolved.notes, *made.notes),
        violations=made.violations,
        combos=tuple(target.combo for target in made.targets),
        shares=tuple((s.model, s.type, s.combo, s.fraction) for s in made.work.shares)
        if made.work
        else (),
    )
