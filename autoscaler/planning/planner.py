"""One request, one plan: the only way by which the control loop gets a plan.

Owns the translation of a request into a planning problem and of a plan into an answer. Pure; the
caller decides where it runs (a process that can be killed, a thread, or in place in a simulation).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.planning.answer_quality import Split
from autoscaler.planning.candidate_combos import combo_named, usable_pools
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combo_usage import req_per_s_of
from autoscaler.planning.floor_eligibility import is_kept
from autoscaler.planning.model_constraints import missing_off_spot
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.planner_messages import (
    ChosenSplit,
    Outcome,
    PlanAnswer,
    PlanRequest,
    RouteAsk,
    Urgency,
    unanswered,
)
from autoscaler.planning.planning_problem import (
    PlanningProblem,
    PlanOptions,
    Room,
    arrivals_of,
    make_problem,
)
from autoscaler.planning.rollout_feasibility import Reached, in_reach
from autoscaler.planning.route_choice import choose, loaded
from topics.reason_codes import ReasonCode

OPTIONS = PlanOptions(gap=0.005, hold=0.025, late=True)
"""Searches stop at half a per cent of the bill, which is below what a change costs. A demand that
goes up and down by 2% changes nothing: 1.025 x 0.98 is more than 1."""
_FIRST, _FIRST_NODES = 0.125, 50  # of the time, and where there is no clock
_MOST_COLUMNS = 500
_PROVEN = (PlanStatus.OPTIMAL, PlanStatus.WITHIN_GAP)


def answer(
    request: PlanRequest,
    cluster: Cluster,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions = OPTIONS,
) -> PlanAnswer:
    """The plan that `request` asks for. cluster: as declared; prices come with the request.

    There is always an answer. A request that cannot be understood (a price that is no number)
    gets one with outcome NONE that names what was wrong.
    """
    try:
        asked = _understood(request, cluster, profile)
        made, splits = None, []
        routes = _routes(request, asked)
        for left, (route, ask) in zip(range(len(routes), 0, -1), routes, strict=True):
            own = options.within(1.0 / (left + bool(request.keeps)))
            chosen, (asked, made) = _split(route, ask, request, asked, profile, strategy, own)
            splits.append(chosen)
        if made is None or request.keeps:
            whole = _planned(request, asked, profile, strategy, options)
            # To choose the thresholds may have taken all the time.
            made = whole if made is None or whole.plan.status is not PlanStatus.FAILED else made
    except InvalidValue as error:
        return unanswered(request, Reason(ReasonCode.REQUEST_REFUSED, quoted=str(error)))
    if made.plan.status is PlanStatus.FAILED:
        notes = made.plan.notes
        return unanswered(request, notes[-1] if notes else Reason(ReasonCode.NO_PLAN))
    found = replace(_answer(request, asked, made.plan), makes_room=made.makes_room)
    if not splits:
        return found
    return replace(found, splits=tuple(splits), demands=tuple(asked.demands.values()))


def explained_plan(
    request: PlanRequest,
    cluster: Cluster,
    profile: Profile,
    strategy: Strategy,
    model: str,
    options: PlanOptions = OPTIONS,
) -> tuple[PlanningProblem, Plan] | None:
    """The problem that `request` is, and its plan, for questions about `model`; None without one.

    The same plan as in `answer`, but for what is asked beyond the need so that little changes.
    """
    try:
        asked = _understood(request, cluster, profile)
        problem = _problem(request, asked, profile, replace(options, hold=0.0))
        made = in_reach(problem, strategy)
    except InvalidValue:
        return None
    if made.plan.status is PlanStatus.FAILED or model not in problem.demands:
        return None
    return replace(problem, keeps=made.keeps), made.plan


def _planned(
    request: PlanRequest,
    asked: _Asked,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions,
) -> Reached:
    problem = _problem(request, asked, profile, options)
    if problem.additions_only and (made := _lasting(problem, asked, strategy)) is not None:
        return Reached(made)
    return in_reach(problem, strategy)


def _lasting(problem: PlanningProblem, asked: _Asked, strategy: Strategy) -> Plan | None:
    """The best fleet for the models of an urgent request, additions beside all that runs; None
    where only additions are to be looked for.

    The least that is missing now is often dear, and would soon be exchanged for what it should have
    been at once. Where combos that run are lost, where many may be had, and where a loss is to be
    survived, there is no time for this; what is not proven soon is not waited for.
    """
    columns = sum(map(len, problem.candidates.values())) + len(problem.fleet)
    nothing = not any(problem.candidates.values()) or not any(problem.fleet.values())
    if nothing or problem.types or problem.fleet != asked.fleet or columns > _MOST_COLUMNS:
        return None
    short = {model for model, combos in problem.candidates.items() if combos}
    if any(s.model in short and s.survive != "none" for s in problem.cluster.services):
        return None
    if short.intersection(problem.keeps):
        return None  # nothing of it will leave, so both would be paid for
    stays = tuple(model for model in problem.demands if model not in short)
    options = replace(problem.options.within(_FIRST), mip_nodes=_FIRST_NODES)
    whole = replace(problem, additions_only=False, room=Room.BESIDE, keeps=stays, options=options)
    made = strategy.solve(whole)
    if made.status not in _PROVEN or made.work is not None or made.switches:
        return None
    most = {s.model: s.max_instances or math.inf for s in problem.cluster.services}
    beside = all(sum(max(t.count, t.now) for t in made.of(m)) <= most[m] for m in problem.demands)
    return made if beside else None


def _routes(request: PlanRequest, asked: _Asked) -> list[tuple[QualityRoute, RouteAsk]]:
    """Services whose thresholds are planned with this request."""
    asks = {ask.name: ask for ask in request.routes if request.urgency is Urgency.FULL}
    return [
        (route, asks[route.name])
        for route in asked.cluster.routes
        if route.name in asks and all(model in asked.demands for model in route.models)
    ]


def _split(
    route: QualityRoute,
    ask: RouteAsk,
    request: PlanRequest,
    asked: _Asked,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions,
) -> tuple[ChosenSplit, tuple[_Asked, Reached]]:
    """Thresholds of `route` and the plan for them, chosen together: every split gets an equal part
    of the time, or a later one would only seem to be dearer.

    Priced without what may not leave yet: as long as it stays, the best answers cost no more.
    """
    request = replace(request, keeps=())

    def price(split: Split, left: int) -> tuple[tuple[_Asked, Reached], float, bool]:
        moved = replace(asked, demands=loaded(route, split, ask, asked.demands))
        made = _planned(request, moved, profile, strategy, options.within(1.0 / left))
        short = made.plan.status is PlanStatus.FAILED or bool(made.plan.shortfall_req_per_s)
        return (moved, made), made.plan.objective_usd_per_h, short

    return choose(route, ask, price)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, in terms of what is declared now.

    fleet: combos of the scope that are planned anew. untouched: those that are not understood any
    more and may not be removed. taken_gpus: per pool, by `untouched` and all other models.
    """

    cluster: Cluster
    demands: dict[str, Demand]
    fleet: dict[str, int]
    untouched: dict[str, int]
    taken_gpus: dict[str, int]
    notes: tuple[Reason, ...] = ()


def _understood(request: PlanRequest, declared: Cluster, profile: Profile) -> _Asked:
    """What of `request` is declared: the fleet split into what is planned and what is in its way.

    Only combos of the scope are evaluated; of the others it matters which GPUs they take.
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
    asked = _Asked(cluster, demands, {}, {}, {})
    for combo_id, count in request.fleet:
        model, members = parse_combo_id(combo_id)
        if not count or any(pool not in known for _, _, pool, _ in members):
            continue
        if model in demands:
            try:
                service, demand = services[model], demands[model]
                arrivals = arrivals_of(demand, service)
                combo_named(combo_id, cluster, service, demand.lengths, profile, arrivals)
            except InvalidValue:
                if request.urgency is Urgency.FULL:
                    continue  # nothing that is declared now would start it again
                asked.untouched[combo_id] = count
            else:
                asked.fleet[combo_id] = count
                continue
        for _, gpus, pool, each in members:
            asked.taken_gpus[pool] = asked.taken_gpus.get(pool, 0) + gpus * each * count
    return asked


def _problem(
    request: PlanRequest, asked: _Asked, profile: Profile, options: PlanOptions
) -> PlanningProblem:
    if request.urgency is Urgency.FULL:
        return _made(request, asked, profile, options, None)
    short: tuple[str, ...] = tuple(asked.demands)
    if not asked.cluster.policy.spends_budget:
        # To value all that could be had takes most of the time of an urgent plan. Where what runs
        # is asked about only to be valued anew, and is enough, there is nothing to choose from.
        bare = _that_fits(_made(request, asked, profile, options, ()))
        short = tuple(model for model in short if not _suffices(bare, model))
        if not short:
            return bare
    return _that_fits(_made(request, asked, profile, options, short))


def _suffices(problem: PlanningProblem, model: str) -> bool:
    """Whether what runs of `model` keeps all that is promised of it, within its SLO."""
    running, service = problem.running_of(model), problem.cluster.service(model)
    serves = req_per_s_of(running)
    # As with `limits_spot`, which asks candidates that are not at hand here.
    only_spot = all(p.market is Market.SPOT for p in usable_pools(problem.cluster, service))
    return (
        service.graph is None
        and service.survive == "none"
        and serves >= problem.needed_req_per_s(model)
        and is_kept(problem, model)
        and (only_spot or missing_off_spot(problem, service) == (0.0, 0))
        and all(combo.meets_slo for combo, _ in running)
    )


def _made(
    request: PlanRequest,
    asked: _Asked,
    profile: Profile,
    options: PlanOptions,
    offered: tuple[str, ...] | None,
) -> PlanningProblem:
    known = {pool.id for pool in asked.cluster.pools}
    urgent = request.urgency is Urgency.URGENT
    leaving = Counter({p: n for p, n in request.leaving_gpus if p in known})
    made = make_problem(
        asked.cluster,
        asked.demands,
        profile,
        fleet=asked.fleet,
        rented_nodes={p: n for p, n in request.rented_nodes if p in known},
        obtainable={p: n for p, n in request.obtainable if p in known},
        prices_usd_per_h={p: usd for p, usd in request.prices_usd_per_h if p in known},
        options=options,
        additions_only=urgent,
        # Additions find no room where something leaves; another fleet would, once it has left.
        taken_gpus=leaving + Counter(asked.taken_gpus) if urgent else asked.taken_gpus,
        leaving_gpus={} if urgent else leaving,
        offered=offered,
    )
    room = Room.BESIDE if request.beside else Room.LATER
    switchable = None if request.switchable is None else dict(request.switchable)
    return replace(made, room=room, keeps=request.keeps, switchable=switchable)


def _that_fits(problem: PlanningProblem) -> PlanningProblem:
    """Without running combos for which there are no nodes any more, lowest priority first.

    What is gone does not serve, so the plan has to replace it.
    """
    services = {service.model: service for service in problem.cluster.services}
    taken_now = problem.standing_gpus()
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


def _answer(request: PlanRequest, asked: _Asked, made: Plan) -> PlanAnswer:
    short = tuple(sorted((m, r) for m, r in made.shortfall_req_per_s.items() if r > 0))
    outside = any(target.count and not target.combo.meets_slo for target in made.targets)
    best_effort = made.status is PlanStatus.BEST_EFFORT or bool(short) or outside
    counts = dict(asked.untouched)
    replaced: dict[str, int] = {}
    added = {target.combo.model for target in made.targets if target.count > target.now}
    for target in made.targets:
        count, model = target.count, target.combo.model
        if request.urgency is Urgency.URGENT and count < target.now:
            if model in added:
                replaced[target.combo.id] = target.now - count
            count = target.now
        if count and model in asked.demands:
            counts[target.combo.id] = count
    return PlanAnswer(
        number=request.number,
        urgency=request.urgency,
        outcome=Outcome.BEST_EFFORT if best_effort else Outcome.PLANNED,
        scope=tuple(model for model in request.scope if model in asked.demands)
        or tuple(asked.demands),
        counts=tuple(sorted(counts.items())),
        replaced=tuple(sorted(replaced.items())),
        switches=made.switches,
        strategy=made.strategy,
        cost_usd_per_h=made.cost_usd_per_h,
        now_usd_per_h=made.now_usd_per_h,
        objective_usd_per_h=made.objective_usd_per_h,
        lower_bound_usd_per_h=made.lower_bound_usd_per_h,
        gap=made.gap,
        shortfall_req_per_s=short,
        binding=made.binding,
        notes=(*asked.notes, *made.notes),
        broken=made.broken,
        combos=tuple(target.combo for target in made.targets),
        shares=tuple((s.model, s.type, s.combo, s.fraction) for s in made.work.shares)
        if made.work
        else (),
    )
