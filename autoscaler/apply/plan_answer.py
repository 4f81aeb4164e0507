"""Apply a planner answer to the present fleet, which may have changed since the request.

A part that no longer fits is left out and planned again; the rest is applied. Removals, unlike
additions, need evidence at the moment when they begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.apply.approvals import propose
from autoscaler.apply.context import ChangeContext
from autoscaler.apply.defragment import defragment
from autoscaler.apply.infeasible import constraints_violated, slo_unattainable, unmet_demand
from autoscaler.apply.model_change import (
    AppliedChange,
    Change,
    after_change,
    apply_change,
    apply_switch,
    kind_of,
    no_room,
)
from autoscaler.apply.scale_in_guards import raw_req_per_s_of, scale_in_veto
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.model.prediction_drift import expected_s
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, Urgency
from autoscaler.rollout.capacity_and_cost import by_model
from autoscaler.rollout.diff import FreeCapacity, difference, start
from autoscaler.rollout.node_limits import planned_nodes, within_plan, without_limit
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.traffic_split import planned_split
from autoscaler.state.controller_state import ModelState, Pending
from autoscaler.state.decision_record import notice
from autoscaler.state.model_view import RATE_EPSILON, ModelView
from autoscaler.state.replan_trigger import Trigger, partly_applied
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """Fleet, states and decisions after an answer. replan: triggers for models whose part was left
    out. waits: models that wait for room on the plan's nodes, in order."""

    groups: tuple[ServingGroup, ...]
    site: FreeCapacity
    models: Mapping[str, ModelState]
    decisions: tuple[Decision, ...] = ()
    replan: tuple[Trigger, ...] = ()
    waits: tuple[str, ...] = ()


def apply_answer(
    answer: PlanAnswer,
    pending: Pending,
    groups: tuple[ServingGroup, ...],
    site: FreeCapacity,
    models: Mapping[str, ModelState],
    scene: ChangeContext,
) -> AppliedPlan:
    """Apply `answer` to the request `pending`, model by model, higher priority first.

    If a model's demand is served, it gets no more rented nodes than the full plan lists: additions
    without room wait until other groups leave. If all managed models wait for each other in this
    way, the first model whose change succeeds with further nodes may rent them.
    """
    if answer.outcome is Outcome.NONE:
        return AppliedPlan(groups, site, models)
    planned = _planned_nodes(answer, pending, scene)
    carried = _apply_to_models(answer, pending, groups, site, models, scene, planned)
    others = {service.model for service in scene.cluster.services if not service.managed}
    moves = any(not _is_idle(group, scene) for group in groups if group.model not in others)
    if not carried.waits or moves or carried.groups != groups:
        return carried
    for model in carried.waits:
        further = _apply_to_models(answer, pending, groups, site, models, scene, planned, model)
        if further.groups != groups:
            return further
    return carried


def _planned_nodes(
    answer: PlanAnswer, pending: Pending, scene: ChangeContext
) -> dict[str, int] | None:
    """Nodes per pool after the answer; None for an urgent answer."""
    if answer.urgency is Urgency.URGENT:
        return None
    counts = Counter(dict(answer.counts))
    for combo_id, count in pending.request.fleet:
        if parse_combo_id(combo_id)[0] not in answer.scope:
            counts[combo_id] += count
    return planned_nodes(counts, scene.combos, scene.cluster)


def _is_idle(group: ServingGroup, scene: ChangeContext) -> bool:
    return (
        group.life is Life.ACTIVE and not group.switch and scene.sight.views[group.name].all_ready
    )


def _apply_to_models(
    answer: PlanAnswer,
    pending: Pending,
    groups: tuple[ServingGroup, ...],
    site: FreeCapacity,
    models: Mapping[str, ModelState],
    scene: ChangeContext,
    planned: Mapping[str, int] | None,
    beyond: str = "",
) -> AppliedPlan:
    """Apply `answer` to all models. planned: nodes per pool for served models, None for no limit.
    beyond: name of the model that may use more nodes."""
    states = dict(models)
    waits: list[str] = []
    decisions: list[Decision] = []
    replan: list[Trigger] = []
    wanted = _counts(answer.counts)
    asked = _counts(pending.request.fleet)
    shares: dict[str, list[tuple[str, str, float]]] = {}
    for of, kind, combo, part in answer.shares:
        shares.setdefault(of, []).append((kind, combo, part))
    shortfall = dict(answer.shortfall_req_per_s)
    sought = {d.model: d.req_per_s for d in (*pending.request.demands, *answer.demands)}
    current = by_model(groups)
    order = sorted(
        (s for s in scene.cluster.services if s.model in answer.scope),
        key=lambda s: (-s.priority, s.model),
    )
    now = {group.name: group for group in groups}
    full = answer.urgency is Urgency.FULL
    leaving = any(group.yields for group in groups if group.model in answer.scope)
    # not while groups that make room are still leaving
    makes_room = answer.needs_preemption and not leaving
    for service in order:
        model = service.model
        target, base = wanted.get(model, Counter()), asked.get(model, Counter())
        said, states[model] = slo_unattainable(answer, +target, states[model], service, scene)
        decisions += said
        said, states[model] = constraints_violated(answer, states[model], service, scene)
        decisions += said
        ways = planned_split(shares.get(model, ()), target.items())
        making_ms = 0 if full and not leaving else states[model].preemption_until_ms
        state = replace(states[model], traffic_split=ways, preemption_until_ms=making_ms)
        states[model] = state
        short = shortfall.get(model, 0.0)
        if not service.managed:
            said, states[model] = _recommend(answer, pending, service, target, scene, state)
            decisions += said
            continue
        counting = [g for g in current.get(model, ()) if scene.sight.counts(g)]
        change = _change(answer, service, counting, target, base, short, scene)
        change = replace(change, makes_room=makes_room)
        inside = site
        limits = planned if model != beyond and not makes_room else None
        if limits is not None and scene.views[model].covers and short <= RATE_EPSILON:
            stays = [g for g in now.values() if g.model != model or not change.removes[g.combo_id]]
            inside = within_plan(site, limits, stays)
            beside, _, _ = apply_switch(change, service, counting, inside, scene)
            found = start(beside.adds, scene.combos, service, inside, scene.now_ms)
            if found.unplaced:
                waits.append(model)
                change = Change(Counter(), Counter(), no_room(found.unplaced))
        done = apply_change(change, service, counting, now, inside, state, scene, short)
        if inside is not site:
            done = replace(done, site=without_limit(done.site, inside, site))
        moved = None
        if answer.urgency is Urgency.FULL and service.mode is Mode.ACT and _is_empty(done):
            moved = defragment(service, counting, now, site, state, scene)
        done = moved or done
        parts = _parts(answer, pending, state, scene, service, done)
        decision = _decision(answer, parts, state, scene, service, done)
        if done.left_out is not None:
            replan.append(partly_applied(model, done.left_out, of_all=makes_room))
        if service.mode is Mode.APPROVE:
            said, states[model] = propose(decision, parts, done, counting, states[model], scene)
            decisions += said
        else:
            site, states[model] = done.site, done.state
            now = dict(done.groups)
            if done.started or done.going:
                decisions.append(decision)
            elif answer.urgency is Urgency.FULL and models[model].traffic_split.differs(ways):
                because = _reasons(answer, pending, scene.views[model], "")
                why = Reason(ReasonCode.DIVIDED_ANEW, model, because=because)
                decisions.append(notice(model, why, scene.now_ms))
        below_floor = not (done.started or done.switched) and len(counting) < service.min_instances
        if short > RATE_EPSILON or done.unplaced or below_floor:
            runs = scene.views[model].groups  # includes an open proposal
            if done.change:
                runs = len(counting) + sum(n for _, n in done.change)
            said, states[model] = unmet_demand(
                answer, short, sought[model], runs, states[model], service, scene
            )
            decisions += said
            if said and answer.urgency is Urgency.URGENT:
                alone = Reason(ReasonCode.ADDITIONS_NOT_ENOUGH, model)
                replan.append(partly_applied(model, alone, of_all=True))
    made_ms = max((states[s.model].preemption_until_ms for s in order), default=0)
    for model in (s.model for s in order if makes_room and made_ms > scene.now_ms):
        if shortfall.get(model) or wanted.get(model) != asked.get(model):
            states[model] = replace(states[model], preemption_until_ms=made_ms)
    return AppliedPlan(
        tuple(now.values()), site, states, tuple(decisions), tuple(replan), tuple(waits)
    )


def _is_empty(done: AppliedChange) -> bool:
    return not (done.started or done.going or done.unplaced or done.left_out is not None)


def _change(
    answer: PlanAnswer,
    service: Service,
    counting: list[ServingGroup],
    wanted: Counter[str],
    asked: Counter[str],
    short: float,
    scene: ChangeContext,
) -> Change:
    """The change that `answer` requires from the model's present fleet."""
    view = scene.views[service.model]
    if answer.urgency is Urgency.URGENT:
        # Do not add combos twice that were added since the request, for example by a full plan.
        have = Counter(group.combo_id for group in counting)
        if view.covers and len(counting) >= service.min_instances:
            return Change(Counter(), Counter())
        adds = wanted - (have | asked)
        removes = _counts(answer.replaced).get(service.model, Counter())
        moved_on = have != asked or view.frozen is not None
        if removes and moved_on and len(counting) >= service.min_instances:
            # the fleet has changed, so the model is planned again
            return Change(Counter(), Counter())
        if moved_on or scale_in_veto(view, adds, removes, short, scene):
            removes = Counter()
        return Change(adds, removes if adds else Counter(), urgent=True)
    have = Counter(group.combo_id for group in counting)
    if have != asked:
        return Change(Counter(), Counter(), Reason(ReasonCode.FLEET_CHANGED))
    adds, removes = difference(counting, wanted)
    if not removes:
        return Change(adds, removes)
    why = scale_in_veto(view, adds, removes, short, scene)
    if why is None:
        return Change(adds, removes)
    is_short = view.planned_req_per_s < view.state.target_req_per_s * (1 - RATE_EPSILON)
    return Change(adds if is_short else Counter(), Counter(), why if is_short else None)


def _kind(answer: PlanAnswer, state: ModelState, done: AppliedChange) -> str:
    # An urgent change counts as an addition, even if other combos become superfluous.
    outward = bool(done.started or done.switched) and answer.urgency is Urgency.URGENT
    kind = "scale_out" if outward else done.kind
    return "replace" if kind == "scale_out" and state.lost_ms else kind


def _parts(
    answer: PlanAnswer,
    pending: Pending,
    state: ModelState,
    scene: ChangeContext,
    service: Service,
    done: AppliedChange,
) -> tuple[Reason, ...]:
    """The reasons of the change, its cost, and when and how the change takes effect."""
    why = _reasons(answer, pending, scene.views[service.model], _kind(answer, state, done))
    if done.started and not done.change:
        pools = tuple(sorted({p.pool for group in done.going for p in group.placed}))
        why = (Reason(ReasonCode.MOVED_TOGETHER, service.model, pools),)
    parts = [*why, Reason(ReasonCode.COST, quantities=(done.delta_usd_per_h,))]
    if done.started:
        slowest_s = max(scene.combos[g.combo_id].start_s for g in done.started)
        parts.append(Reason(ReasonCode.SERVING_IN, quantities=(expected_s(state, slowest_s),)))
    if done.switched:
        parts.append(Reason(ReasonCode.ROLE_SWITCHES, quantities=(len(done.switched),)))
    if answer.urgency is Urgency.FULL and answer.gap >= 0.0:
        parts.append(Reason(ReasonCode.PLAN_GAP, quantities=(answer.gap,)))
    return tuple(parts)


def _decision(
    answer: PlanAnswer,
    parts: tuple[Reason, ...],
    state: ModelState,
    scene: ChangeContext,
    service: Service,
    done: AppliedChange,
) -> Decision:
    kind, delta_usd = _kind(answer, state, done), done.delta_usd_per_h
    over_ms = state.overload_since_ms if kind in ("scale_out", "replace") else 0
    return scene.decision(service.model, kind, parts, state, True, delta_usd, over_ms, done.change)


def _reasons(
    answer: PlanAnswer, pending: Pending, view: ModelView, kind: str
) -> tuple[Reason, ...]:
    state, model = view.state, view.service.model
    if answer.urgency is Urgency.FULL:
        replanned = Reason(ReasonCode.REPLANNED, model, because=pending.reasons)
        excess = any(why.code is ReasonCode.EXCESS for why in pending.reasons)
        if kind == "scale_in" and excess and state.target_why is not None:
            return state.target_why, replanned
        return (replanned,)
    if kind == "replace":
        return (Reason(ReasonCode.CAPACITY_LOST, model),)
    floor = Reason(ReasonCode.FLOOR, model, quantities=(view.service.min_instances,))
    if view.groups < view.service.min_instances and view.groups:
        return (floor,)
    if view.groups and not state.overload_since_ms and state.derate == 1.0:
        rates = view.planned_req_per_s, state.target_req_per_s
        return (Reason(ReasonCode.LENGTHS_WORTH, model, quantities=rates),)
    return (floor if state.target_why is None else state.target_why,)


def _recommend(
    answer: PlanAnswer,
    pending: Pending,
    service: Service,
    wanted: Counter[str],
    scene: ChangeContext,
    state: ModelState,
) -> tuple[list[Decision], ModelState]:
    """Store the recommendation in the state, from which the next plan starts."""
    before = Counter(dict(state.recommended))
    change = Counter(wanted)
    change.subtract(before)
    change = Counter({combo: n for combo, n in change.items() if n})
    view = scene.views[service.model]
    adds, removes = +change, -change
    if removes and scale_in_veto(view, adds, removes, 0.0, scene):
        change = adds if view.planned_req_per_s < state.target_req_per_s else Counter()
        removes = Counter()
    short = dict(answer.shortfall_req_per_s).get(service.model, 0.0)
    said: list[Decision] = []
    if change:
        outward = bool(+change)
        kind = kind_of(outward, bool(removes))
        usd = sum(scene.combos[i].usd_per_h * n for i, n in change.items() if i in scene.combos)
        why = *_reasons(answer, pending, view, kind), Reason(ReasonCode.COST, quantities=(usd,))
        over_ms = state.overload_since_ms if outward else 0
        named = tuple(sorted(change.items()))
        said.append(scene.decision(service.model, kind, why, state, False, usd, over_ms, named))
        after = before + change if not removes else Counter(wanted)
        net = raw_req_per_s_of(change, scene.combos)
        state = replace(
            after_change(state, net, outward and bool(removes), view),
            recommended=tuple(sorted((+after).items())),
            recommended_ms=scene.now_ms,
        )
    runs = sum(n for _, n in state.recommended)
    if short > RATE_EPSILON or (not +change and runs < service.min_instances):
        sought = {demand.model: demand.req_per_s for demand in pending.request.demands}
        more, state = unmet_demand(
            answer, short, sought[service.model], runs, state, service, scene
        )
        said += more
    return said, state


def _counts(named: Iterable[tuple[str, int]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for combo_id, count in named:
        model, _ = parse_combo_id(combo_id)
        found.setdefault(model, Counter())[combo_id] += count
    return found
