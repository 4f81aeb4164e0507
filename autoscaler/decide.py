"""Deciding is a fold: (state, observation) -> (state, effects). The heart of the controller.

Owns the order of a tick, readable as a table of contents. Pure: no I/O, no clock, no randomness;
the same inputs give the same effects byte for byte. The edge calls it once per domain second, and
whenever an answer of the planner arrives, and carries the effects out.

The rules say when to plan (`triggers`) and for how much (`targets`); what runs is always the
planner's choice; how the fleet gets there is for `transitions`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoscaler.answers import Carried, carry_out
from autoscaler.domain.cluster import Cluster
from autoscaler.effects import Effect, SolveRequested
from autoscaler.explain import reasons
from autoscaler.guards import guards
from autoscaler.guards import said as guards_said
from autoscaler.learnt import said as uncertain_said
from autoscaler.models import Inputs, known, seen_again, silences, valued, views, with_states
from autoscaler.moves import revive, waves, withdraw
from autoscaler.planning.problem import with_prices
from autoscaler.planning.request import Outcome, Urgency
from autoscaler.proposals import settle
from autoscaler.publish import publish
from autoscaler.rebuild import rebuild
from autoscaler.requests import Ground, alive, full, may_switch, short_models, urgent
from autoscaler.routed import adopted, in_force, route_asks, routed
from autoscaler.said import hold
from autoscaler.scene import Scene
from autoscaler.state import ControllerState, ModelState, Observation, Pending
from autoscaler.targets.table import retarget
from autoscaler.transitions.accounts import nodes_of
from autoscaler.transitions.apply import Site, spare_usd_per_h
from autoscaler.transitions.backoff import swept
from autoscaler.transitions.faults import Failure, notice
from autoscaler.transitions.placement import used_gpus
from autoscaler.transitions.sight import look_at
from autoscaler.transitions.strays import strays
from autoscaler.transitions.supply import fold as fold_supply
from autoscaler.transitions.supply import said as supply_said
from autoscaler.triggers.leftover import waits_for_room
from autoscaler.triggers.limits import allowed
from autoscaler.triggers.news import News, Trigger
from autoscaler.triggers.roles import known_to_switch
from autoscaler.triggers.table import collect, of_declared, scope_of
from autoscaler.unmanaged import said as unmanaged_said
from topics.decisions import Decision

__all__ = ["ControllerState", "Effect", "ModelState", "Observation", "decide", "rebuild"]

_REMEMBER_MS = 600_000
_SAY_AGAIN_MS = 600_000
_AFTER_FAILURE_MS = 60_000
_LOOK_FOR_STRAYS_S = 10


def decide(
    state: ControllerState, observation: Observation, cluster: Cluster, now_ms: int
) -> tuple[ControllerState, tuple[Effect, ...]]:
    """One tick. `now_ms` is domain time and never falls; `cluster` is as declared now.

    Models in mode recommend get decisions with `applied` False and nothing else; those in mode
    approve get proposals, and what was approved of them.
    """
    decisions: list[Decision] = []
    if state.announce:
        decisions.append(hold("*", state.announce, now_ms, kind="rebuilt"))

    # What operators and schedules allow.
    guarded = guards(cluster, observation.controls, now_ms)
    cluster = guarded.cluster
    decisions += guards_said(state.held, guarded.held, now_ms)

    # What is there: prices and offers, the fleet, what broke.
    supply = fold_supply(
        state.supply, cluster, observation.prices, observation.availability, now_ms
    )
    decisions += [hold("*", f"{p}: {w}", now_ms) for p, w in supply_said(state.supply, supply)]
    priced = with_prices(cluster, supply.prices_usd_per_h())
    combos, worth = valued(state, observation, cluster)
    sent = routed(cluster, state.splits, observation.demand)
    inputs = Inputs(state, observation, priced, combos, now_ms, guarded.frozen, sent)
    gap_ms = now_ms - (state.ticked_ms or state.started_ms)
    deaf = gap_ms > 500.0 * cluster.policy.node_silent_s
    listens_ms = now_ms if deaf else state.listens_since_ms or state.started_ms
    sight = look_at(state.groups, observation.statuses, combos, priced, now_ms, listens_ms)
    others = {service.model for service in cluster.services if not service.managed}
    faults = notice(state.groups, sight, state.backoff, lambda m: m not in others, now_ms)
    decisions += [_failed(failure, now_ms) for failure in faults.failures]

    stray, told = state.strays, []
    if now_ms // 1000 % _LOOK_FOR_STRAYS_S == 0:
        by_hand = strays(sight.fleet.running, state.assignments)
        told = [_stray(name, *by_hand[name], now_ms) for name in sorted(by_hand.keys() - stray)]
        stray = frozenset(by_hand)
    decisions += told

    # How much is wanted of each model.
    models = known(inputs, faults, sight)
    decisions += unmanaged_said(state.models, models, cluster, now_ms)
    decisions += uncertain_said(state.models, models, now_ms)
    groups = withdraw(faults.groups, inputs)
    seen = views(inputs, groups, models, sight)
    seen = with_states(seen, {model: retarget(view) for model, view in seen.items()})
    models, said = silences(seen)
    decisions += said
    seen = with_states(seen, models)

    # What is under way moves on.
    moved = waves(groups, seen, sight, inputs)
    sight = sight.with_new(moved)
    moved = revive(moved, seen, sight, now_ms)
    seen, groups = seen_again(seen, inputs, groups, moved, models, sight), moved

    # What the planner answered is carried out.
    backoff = swept(faults.backoff, now_ms)
    ground = Ground(priced, sight, groups, models, seen, supply, backoff, now_ms, combos)
    splits, told = in_force(state.splits, seen, cluster, now_ms)
    decisions += told
    heard = (status for status in sight.fleet.running if status.node not in sight.gone)
    used = used_gpus(groups, heard)
    spare = spare_usd_per_h(priced, used.keys() - sight.silent)  # the lost have to be replaced
    site = Site(priced, used, ground.obtainable(), ground.shut(), state.next_serial, spare)
    pending = alive(state.pending, now_ms)
    scene = Scene(priced, sight, combos, seen, now_ms)
    settled = settle(groups, site, models, observation.controls, state.leader_token, scene)
    carried = Carried(settled.groups, settled.site, settled.models)
    decisions += settled.decisions
    if settled.decisions:
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        seen = seen_again(seen, inputs, groups, carried.groups, models, sight)
    replan: list[tuple[str, str]] = [*settled.replan]
    again: list[Trigger] = []
    failed_ms, told_ms = state.failed_full_ms, state.told_failed_ms
    last_full_ms, gap = state.last_full_ms, state.gap
    for answer in observation.answers:
        asked = pending.get(answer.urgency)
        if asked is None or asked.request.number != answer.number:
            continue  # the answer to a request that was given up
        del pending[answer.urgency]
        scene = Scene(priced, sight, combos, seen, now_ms)
        before = carried.groups
        carried = carry_out(answer, asked, before, carried.site, carried.models, scene)
        decisions += carried.decisions
        replan += carried.replan
        splits, told = adopted(splits, answer, asked.request, cluster, now_ms)
        decisions += told
        if answer.urgency is Urgency.FULL and answer.outcome is Outcome.NONE:
            again += [Trigger(name, asked.request.scope, why) for name, why in asked.reasons]
            failed_ms = now_ms
        elif answer.urgency is Urgency.FULL:
            last_full_ms, failed_ms, told_ms = now_ms, 0, 0
            gap = answer.gap
        sight = sight.with_new(carried.groups)
        models = dict(carried.models)
        seen = seen_again(seen, inputs, before, carried.groups, models, sight)

    # What to ask it now.
    ground = replace(ground, sight=sight, groups=carried.groups, models=models, views=seen)
    short = [m for m, view in seen.items() if not view.covers and view.service.managed]
    switchable = dict(may_switch(ground, short))
    nodes = Counter(nodes_of(g for g in carried.groups if sight.counts(g)).values())
    planned_nodes = nodes if last_full_ms == now_ms else state.planned_nodes
    news = News(
        now_ms=now_ms,
        state=state,
        cluster=cluster,
        supply=supply,
        views=seen,
        silent=sight.silent,
        failures=faults.failures,
        alerts=observation.alerts,
        engines=observation.engines,
        replan=tuple(replan),
        demand=observation.demand,
        groups=carried.groups,
        nodes=nodes,
        planned_nodes=planned_nodes,
        switchable=switchable,
    )
    waiting = (*(Trigger(*one) for one in state.due), *again)
    due = collect(news, of_declared(waiting, seen))
    asks: list[Pending] = []
    number, full_ms, planned_usd = state.request_number, state.full_ms, state.planned_usd_per_h
    planned_lengths, planned_switchable = state.planned_lengths, state.planned_switchable
    needy = short_models(ground, worth)
    if needy and Urgency.URGENT not in pending:
        number += 1
        asks.append(urgent(number, ground, needy))
    if failed_ms == now_ms and (not told_ms or now_ms - told_ms >= _SAY_AGAIN_MS):
        told_ms = now_ms
        why = next((note for a in observation.answers for note in a.notes), "no answer in time")
        decisions.append(hold("*", f"no new plan ({why}); the last good plan stands", now_ms))
    rests = failed_ms and now_ms - failed_ms < _AFTER_FAILURE_MS
    late = tuple(t for t in due if waits_for_room(t, carried.groups, combos))
    ripe = tuple(t for t in due if t not in late)
    scope = () if rests else scope_of(ripe, tuple(seen))
    if scope and cluster.policy.spends_budget:
        scope = tuple(seen)  # the models share what it buys
    if scope and Urgency.FULL not in pending and allowed(full_ms, now_ms):
        number += 1
        routes = route_asks(cluster, splits, observation.demand, models, now_ms)
        ground = replace(ground, routes=routes)
        asks.append(full(number, ground, scope, ripe))
        full_ms = (*(at_ms for at_ms in full_ms if now_ms - at_ms < _REMEMBER_MS), now_ms)
        due, planned_usd, planned_nodes = late, supply.prices_usd_per_h(), nodes
        asked_at = {model: seen[model].state.lengths for model in scope}
        planned_lengths = {**planned_lengths, **asked_at}
        planned_switchable = known_to_switch(planned_switchable, switchable, scope)
    pending.update({one.request.urgency: one for one in asks})

    after = replace(
        state,
        groups=carried.groups,
        models={model: view.state for model, view in seen.items()},
        combos=combos,
        valued=worth,
        services={service.model: service for service in cluster.services},
        supply=supply,
        backoff=ground.backoff,
        silent_nodes=sight.silent,
        pending=pending,
        due=tuple((trigger.name, trigger.scope, trigger.why) for trigger in due),
        full_ms=full_ms,
        last_full_ms=last_full_ms,
        failed_full_ms=failed_ms,
        told_failed_ms=told_ms,
        planned_usd_per_h=planned_usd,
        planned_lengths=planned_lengths,
        planned_switchable=planned_switchable,
        planned_nodes=planned_nodes,
        gap=gap,
        next_serial=carried.site.serial,
        request_number=number,
        announce="",
        held=guarded.held,
        strays=stray,
        splits=splits,
        ticked_ms=now_ms,
        listens_since_ms=listens_ms,
    )
    new_state, published = publish(state, after, sight, priced, decisions, now_ms)
    return new_state, (*published, *(SolveRequested(one.request) for one in asks))


def _stray(instance: str, model: str, node: str, now_ms: int) -> Decision:
    why = f"{instance} runs on {node} and nobody assigned it: its executor stops it"
    return hold(model, why, now_ms)


def _failed(failure: Failure, now_ms: int) -> Decision:
    wait = reasons.duration(failure.wait_s).removeprefix("~")
    why = f"{failure.group.name}: {failure.why}; backing off from {failure.node} for {wait}"
    said = hold(failure.group.model, why, now_ms)
    return replace(said, change=((failure.group.combo_id, -1),))
