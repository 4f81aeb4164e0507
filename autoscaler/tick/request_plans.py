"""Request plans at the end of a tick: urgent plans for models below target, full plans after
triggers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.model.unmanaged_servers import is_uncounted
from autoscaler.planning.planner_messages import Outcome, RouteTraffic, Urgency
from autoscaler.replan.plan_request import (
    full_request,
    managed_first,
    may_switch,
    models_below_target,
    urgent_request,
)
from autoscaler.replan.rate_limit import plan_allowed
from autoscaler.replan.trigger_inputs import TriggerFleet, TriggerInputs
from autoscaler.replan.triggers import remember_switchable
from autoscaler.replan.waiting_triggers import (
    already_tried,
    collect,
    declared_only,
    group_positions,
    limited_to,
    scope_of,
    waits_for_room,
)
from autoscaler.sizing.scale_in.conditions import is_unmeasured
from autoscaler.state.controller_state import FullPlans, Pending
from autoscaler.state.decision_record import NOTICE_INTERVAL_MS, notice
from autoscaler.tick.apply_plans import AppliedPlans
from autoscaler.tick.observe import ObservedTick
from autoscaler.tick.route_hooks import ROUTE_REQUESTS
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

_REMEMBER_MS = 600_000
"""Time in ms for which the times of requests are kept, more than the span of the rate limit."""
_AFTER_FAILURE_MS = 60_000
"""Time in ms after a failed plan before the same model is planned again."""


@dataclass(frozen=True, slots=True)
class PlanRequests:
    """Plan requests of this tick, at most one per urgency. number: serial number of the last
    request."""

    requests: tuple[Pending, ...]
    number: int
    full: FullPlans
    decisions: tuple[Decision, ...]


def request_plans(observed: ObservedTick, applied: AppliedPlans) -> PlanRequests:
    """The plan requests after `done`, and the updated memory of full plans."""
    fleet, number = applied.fleet, observed.inputs.state.numbers.request
    asks: list[Pending] = []
    needy = models_below_target(fleet)
    if needy and Urgency.URGENT not in applied.pending:
        number += 1
        asks.append(urgent_request(number, fleet, needy))
    memory, decisions = _report_failure(observed, _declared_only(applied.full, fleet))
    news = _trigger_inputs(observed, applied)
    now_ms, services = fleet.now_ms, tuple(fleet.views)

    waiting = (*memory.due, *applied.again)
    due = collect(news, declared_only(waiting, services))
    late = tuple(
        trigger
        for trigger in due
        if waits_for_room(trigger, fleet.groups, fleet.combos)
        or already_tried(trigger, memory, fleet.groups, now_ms)
    )
    ripe = tuple(t for t in due if t not in late)
    concerned = scope_of(ripe, services)
    scope = _next_scope(concerned, memory, fleet)
    if scope and Urgency.FULL not in applied.pending and plan_allowed(memory.asked_ms, now_ms):
        number += 1
        rest = [model for model in concerned if model not in scope]
        routes = _route_traffic(observed, applied)
        why = limited_to(scope, ripe) if rest else ripe
        asks.append(full_request(number, fleet, scope, why, routes))
        PLAN_CACHES.next_period()
        memory = _remember_request(memory, news, scope, fleet)
        left_out = tuple(trigger.why.kind for trigger in why if trigger.is_partly_applied)
        stood = group_positions(fleet.groups) if left_out else ""
        memory = replace(
            memory, last=replace(memory.last, already_tried=left_out, positions_digest=stood)
        )
        due = (*late, *limited_to(rest, ripe))
    memory = replace(memory, due=due)
    return PlanRequests(tuple(asks), number, memory, decisions)


def _route_traffic(observed: ObservedTick, applied: AppliedPlans) -> tuple[RouteTraffic, ...]:
    """The traffic of each service that routes to several models."""
    declared, demand = observed.inputs.declared, observed.inputs.observation.demand
    if not declared.routes:
        return ()
    fleet = applied.fleet
    return ROUTE_REQUESTS(declared, applied.splits, demand, fleet.models, fleet.now_ms)


def _next_scope(concerned: Collection[str], memory: FullPlans, fleet: TickFleet) -> tuple[str, ...]:
    """The models to plan now, among those that a trigger affects. If both managed and recommended
    models are due, the requests alternate between them. A model whose last plan failed waits before
    its next request. A model with uncounted servers waits until they are counted, and a held model
    until it is measured."""
    concerned = [
        model
        for model in concerned
        if not is_uncounted(fleet.views[model].service, fleet.models[model])
        and not is_unmeasured(fleet.views[model])
        and fleet.now_ms - memory.failed_ms.get(model, -_AFTER_FAILURE_MS) >= _AFTER_FAILURE_MS
    ]
    scope = managed_first(concerned, fleet, advise=memory.last.managed)
    if not scope or not fleet.cluster.policy.spends_budget:
        return scope
    managed = fleet.views[scope[0]].service.managed
    counted = [m for m, v in fleet.views.items() if not is_uncounted(v.service, fleet.models[m])]
    return managed_first(
        counted, fleet, advise=not managed
    )  # models share the budget, so all are planned together


def _declared_only(memory: FullPlans, fleet: TickFleet) -> FullPlans:
    """`memory` without removed models, so that a model that is declared again counts as new."""
    gone = (memory.last.lengths.keys() | memory.failed_ms.keys()) - fleet.views.keys()
    if not gone:
        return memory
    lengths = {model: known for model, known in memory.last.lengths.items() if model not in gone}
    failed_ms = {model: at_ms for model, at_ms in memory.failed_ms.items() if model not in gone}
    switchable = remember_switchable(memory.last.switchable, {}, gone)
    return replace(
        memory,
        last=replace(memory.last, lengths=lengths, switchable=switchable),
        failed_ms=failed_ms,
    )


def _report_failure(
    observed: ObservedTick, memory: FullPlans
) -> tuple[FullPlans, tuple[Decision, ...]]:
    """Report once that no full plan was observed, and periodically while this lasts."""
    now_ms, told_ms = observed.inputs.now_ms, memory.failure_noticed_ms
    failed = now_ms in memory.failed_ms.values()
    if not failed or (told_ms and now_ms - told_ms < NOTICE_INTERVAL_MS):
        return memory, ()
    notes = (
        note
        for answer in observed.inputs.observation.answers
        if answer.urgency is Urgency.FULL and answer.outcome is Outcome.NONE
        for note in answer.notes
    )
    why = next(notes, Reason(ReasonCode.NO_ANSWER))
    said = notice("*", Reason(ReasonCode.NO_NEW_PLAN, "*", because=(why,)), now_ms)
    return replace(memory, failure_noticed_ms=now_ms), (said,)


def _trigger_inputs(observed: ObservedTick, applied: AppliedPlans) -> TriggerInputs:
    """The inputs of all triggers in this tick."""
    fleet, inputs = applied.fleet, observed.inputs
    observation = inputs.observation
    views, now_ms = fleet.views, fleet.now_ms
    short = [m for m, view in views.items() if not view.covers and view.service.managed]
    return TriggerInputs(
        now_ms=now_ms,
        state=inputs.state,
        cluster=inputs.declared,
        supply=inputs.supply,
        views=views,
        fleet=TriggerFleet(
            groups=fleet.groups,
            lost=fleet.sight.lost,
            failures=observed.faults.failures,
            switchable=dict(may_switch(fleet, short)),
        ),
        alerts=observation.alerts,
        engines=observation.engines,
        replan=applied.replan,
        demand=observation.demand,
    )


def _remember_request(
    memory: FullPlans, news: TriggerInputs, scope: tuple[str, ...], fleet: TickFleet
) -> FullPlans:
    """`memory` after a request for a full plan of the models in `scope`."""
    now_ms = news.now_ms
    recent = (at_ms for at_ms in memory.asked_ms if now_ms - at_ms < _REMEMBER_MS)
    lengths = {model: fleet.views[model].state.estimate.lengths for model in scope}
    return replace(
        memory,
        last=replace(
            memory.last,
            usd_per_h=news.supply.prices_usd_per_h(),
            lengths={**memory.last.lengths, **lengths},
            managed=any(fleet.views[model].service.managed for model in scope),
            switchable=remember_switchable(memory.last.switchable, news.fleet.switchable, scope),
        ),
        asked_ms=(*recent, now_ms),
    )
