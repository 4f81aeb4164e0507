"""All triggers of a full plan, in one list.

A new trigger is a function here and one line in `TRIGGERS`, or an extension. Which of them wait is
decided in `waiting_triggers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields

from autoscaler.domain.cluster import Market, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.engine_view import EngineView
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.score_drift import has_drifted
from autoscaler.estimate.workload_mix import MIN_SHIFT, total_variation
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.planner_messages import Urgency
from autoscaler.replan.rate_limit import thresholds_may_move
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.sizing.slo_misses import share_attained
from autoscaler.state.replan_trigger import Trigger
from topics.extensions import Group, call, extensions
from topics.reason_codes import ReasonCode

Rule = Callable[[TriggerInputs], Iterator[Trigger]]

_NAMED = 3
"""Number of nodes or engine reports in the reason of a trigger, which people read."""
_MODEL_SHARES = 2.0
"""Shares of models must change by this multiple of the change of types that counts, because all
models are planned again."""
_LENGTHS_MATTER = 1.1
"""Factor by which mean lengths must change; a smaller change rarely changes the plan."""


def period_elapsed(news: TriggerInputs) -> Iterator[Trigger]:
    """A trigger every `policy.replan_every_s`, counted from the last request for a full plan. Small
    changes since the last plan add up. A new plan with little gain changes nothing, because its
    objective includes a price for transitions."""
    every_s = news.cluster.policy.replan_every_s
    last_ms = max((news.state.term.started_ms, *news.state.full.asked_ms))
    if news.now_ms - last_ms >= every_s * 1000:
        yield Trigger((), Reason(ReasonCode.PERIOD, "*", quantities=(every_s,)))


def price_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per pool whose price changed by more than `policy.ratio` since the last full
    plan."""
    planned = news.state.full.last.usd_per_h
    now = news.supply.prices_usd_per_h()
    for pool in news.cluster.pools:
        before = planned.get(pool.id, pool.price_usd_per_h)
        after = now.get(pool.id, pool.price_usd_per_h)
        if abs(after - before) > news.cluster.policy.ratio * before:
            yield Trigger((), Reason(ReasonCode.PRICE, pool.id, quantities=(after, before)))


def availability_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per pool whose offer appeared, ran out, or changed by more than
    `policy.ratio`."""
    ratio = news.cluster.policy.ratio
    for pool in news.cluster.pools:
        old, new = news.state.supply.offers.get(pool.id), news.supply.offers.get(pool.id)
        if new is None:
            continue
        before = pool.max_nodes if old is None else old.nodes
        if (before > 0) != (new.nodes > 0) or abs(new.nodes - before) > ratio * before:
            nodes = new.nodes, before
            yield Trigger((), Reason(ReasonCode.AVAILABILITY, pool.id, quantities=nodes))


def nodes_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger for the nodes lost, and one for the nodes that returned, since the last tick, if
    the nodes are owned or had instances."""
    for nodes, code in (
        (news.fleet.lost - news.state.observed.lost_nodes, ReasonCode.NODE_LOST),
        (news.state.observed.lost_nodes - news.fleet.lost, ReasonCode.NODE_BACK),
    ):
        if nodes:
            named = tuple(sorted(nodes)[:_NAMED])
            yield Trigger((), Reason(code, "*", named, (len(nodes),)))


def launch_failed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per failed launch. Its node gets no launches for a while, so other capacity must
    serve."""
    for failure in news.fleet.failures:
        model = failure.group.model
        yield Trigger((model,), Reason(ReasonCode.LAUNCH_FAILED, model, (failure.node,)))


def service_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per service that differs from its declaration at the last tick."""
    before = news.state.declared.services
    if not before:
        return
    now = {service.model: service for service in news.cluster.services}
    for model, service in now.items():
        if model not in before:
            yield Trigger((model,), Reason(ReasonCode.SERVICE_ADDED, model))
        elif before[model] != service:
            yield Trigger((model,), _service_change(before[model], service))
    for model in before:
        if model not in now:
            yield Trigger((), Reason(ReasonCode.SERVICE_REMOVED, model))


def _service_change(before: Service, now: Service) -> Reason:
    """The reason for a changed service. It names the mode or the floor if only that changed."""
    # Setting one old value in the new service fails if the two contradict (e.g. a floor above a
    # ceiling).
    names = (own.name for own in fields(now))
    changed = {name for name in names if getattr(before, name) != getattr(now, name)}
    if changed == {"mode"}:
        return Reason(ReasonCode.SERVICE_MODE, now.model, (before.mode, now.mode))
    if changed == {"min_instances"}:
        floors = now.min_instances, before.min_instances
        return Reason(ReasonCode.SERVICE_FLOOR, now.model, quantities=floors)
    return Reason(ReasonCode.SERVICE_CHANGED, now.model)


def alert_fired(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per firing alert, for the models that the alert names. A resolved alert triggers
    nothing, because it may only mean that an exporter died."""
    known = {service.model for service in news.cluster.services}
    for alert in news.alerts:
        if alert.state != "firing":
            continue
        scope = tuple(model for model in alert.models if model in known)
        if scope or not alert.models:
            views = [_engine_report(m, news.engines[m]) for m in scope if m in news.engines]
            why = Reason(ReasonCode.ALERT, alert.name, because=tuple(views[:_NAMED]))
            yield Trigger(scope, why)


def _engine_report(model: str, view: EngineView) -> Reason:
    seen = view.running, view.waiting
    return Reason(ReasonCode.ENGINES_SEEN, model, quantities=seen, quoted=view.error)


def slo_missed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose capacity was derated further in this tick, because SLOs were
    missed at a planned load or engines are slow."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None or view.state.capacity.derate >= before.capacity.derate:
            continue
        if view.state.capacity.derated_ms == before.capacity.derated_ms:
            continue  # a new GPU type has no part in a gain
        why = Reason(ReasonCode.SLO_MISSED, model, quantities=share_attained(view))
        if (slowdown := view.state.capacity.slowdown) > 1.0:
            why = Reason(ReasonCode.SLOW_ENGINES, model, quantities=(slowdown,))
        yield Trigger((model,), why)


def mix_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose type shares changed in this tick, and one for all models if their
    shares of all requests changed since the last plan.

    Two kinds of plans depend on the mix: plans in budget mode, because the mix determines how the
    budget is divided, and plans of component models, because of their paths and cells.
    """
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if (
            before is not None
            and before.estimate.mix
            and view.state.estimate.mix not in ((), before.estimate.mix)
        ):
            old = dict(before.estimate.mix)
            name, share = max(
                view.state.estimate.mix, key=lambda one: one[1] - old.get(one[0], 0.0)
            )
            shares = share, old.get(name, 0.0)
            why = Reason(ReasonCode.TYPE_MIX, model, (name,), shares)
            # All models share a budget; a component model is planned alone.
            yield Trigger(() if news.cluster.policy.spends_budget else (model,), why)
    if not news.cluster.policy.spends_budget:
        return
    planned = {
        m: demand.req_per_s for m, demand in news.state.evaluated.demands.items() if m in news.views
    }
    total = sum(planned.values())
    if Urgency.FULL in news.state.pending or len(planned) < 2 or total <= 0.0:
        return
    now = {
        m: news.views[m].state.target.req_per_s / news.views[m].state.capacity.derate
        for m in planned
    }
    wanted = sum(now.values())
    if wanted <= 0.0:
        return
    then = {m: rate / total for m, rate in planned.items()}
    today = {m: rate / wanted for m, rate in now.items()}
    if total_variation(then, today) > _MODEL_SHARES * MIN_SHIFT:
        model = max(today, key=lambda m: today[m] - then[m])
        shares = today[model], then[model]
        yield Trigger((), Reason(ReasonCode.MODEL_MIX, model, quantities=shares))


def lengths_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose prompts and answers changed in opposite directions, by a tenth
    each, since the last full plan. Additions keep the roles of all existing groups, so on a full
    pool only a full plan can respond."""
    for model, view in news.views.items():
        was, now = news.state.full.last.lengths.get(model), view.state.estimate.lengths
        if was is None:
            continue
        longer = _direction(was.input_tokens, now.input_tokens)
        if longer * _direction(was.output_tokens, now.output_tokens) < 0:
            tokens = now.input_tokens, now.output_tokens, was.input_tokens, was.output_tokens
            yield Trigger((model,), Reason(ReasonCode.LENGTHS, model, quantities=tokens))


def _direction(was: float, now: float) -> int:
    """1 if `now` is longer, -1 if it is shorter, 0 if it is about equal."""
    if max(was, now) < _LENGTHS_MATTER * min(was, now):
        return 0
    return 1 if now > was else -1


def switchable_roles_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model below target that has more switchable combos than at its last full
    plan, or has switchable combos after the end of a switch. Additions keep the roles of all
    existing groups, so only a full plan can respond."""
    planned = news.state.full.last.switchable
    switching = {group.name for group in news.fleet.groups if group.switch}
    done = {g.model for g in news.state.groups if g.switch and g.name not in switching}
    may = {i: _model(i) for i, count in news.fleet.switchable.items() if count}
    more = {m for i, m in may.items() if m in done or news.fleet.switchable[i] > planned.get(i, 0)}
    for model in sorted(more):
        yield Trigger((model,), Reason(ReasonCode.ROLES, model))


def remember_switchable(
    planned: Mapping[str, int], now: Mapping[str, int], scope: Collection[str]
) -> dict[str, int]:
    """`planned`, the switchable combos at each model's last full plan, updated with `now` for the
    models in `scope`."""
    kept = {combo_id: count for combo_id, count in planned.items() if _model(combo_id) not in scope}
    return kept | {combo_id: count for combo_id, count in now.items() if _model(combo_id) in scope}


def _model(combo_id: str) -> str:
    return parse_combo_id(combo_id)[0]


def excess_capacity(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per model whose target fell, by a lasting excess, below its planned capacity by
    at least one instance."""
    for model, view in news.views.items():
        before = news.state.models.get(model)
        if before is None or view.state.target.req_per_s >= before.target.req_per_s:
            continue
        spare = view.planned_req_per_s - view.state.target.req_per_s
        smallest = min((combo.req_per_s for combo in view.serving.ready), default=0.0)
        if (
            view.serving.ready
            and spare >= smallest * view.service.utilization * view.state.capacity.derate
        ):
            yield Trigger((model,), Reason(ReasonCode.EXCESS, model))


def unapplied_plan(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per part of an answer that could not be applied, or if additions alone were not
    enough."""
    yield from news.replan


def fragmentation(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger per rented pool that a group left in this tick, for the models in that pool, if
    the other groups occupy more nodes than they need. The plan moves groups together and releases
    nodes. If no group can move now, the periodic plan tries again."""
    stay = {group.name for group in news.fleet.groups}
    gone = (group for group in news.state.groups if group.name not in stay)
    left = {placed.pool for group in gone for placed in group.placed}
    if not left:
        return
    placed = [(group.model, at) for group in news.fleet.groups for at in group.placed]
    gpus = Counter[str]()
    for _, at in placed:
        gpus[at.pool] += len(at.gpus)
    for pool in (p for p in news.cluster.pools if p.id in left and p.market is not Market.OWNED):
        nodes = len({at.node for _, at in placed if at.pool == pool.id})
        fewest = -(-gpus[pool.id] // pool.per_node)
        if nodes > fewest:
            models = tuple(sorted({model for model, at in placed if at.pool == pool.id}))
            why = Reason(ReasonCode.SCATTERED, pool.id, quantities=(nodes, fewest))
            yield Trigger(models, why)


def scores_changed(news: TriggerInputs) -> Iterator[Trigger]:
    """One trigger, for the models of a service, for each service without planned thresholds and for
    each service whose requests moved between score classes since its last plan."""
    if Urgency.FULL in news.state.pending:
        return  # a plan in progress may already cover the change
    for route in news.cluster.routes:
        known = news.state.splits.get(route.name)
        if known is None or not known.target_cuts:
            yield Trigger(route.models, Reason(ReasonCode.NO_THRESHOLDS, route.name))
            continue
        if known.mix is None:  # unknown mix: the thresholds were restored from routes
            continue
        now = route.mix(news.demand.get(route.name, UNKNOWN_DEMAND).local_lengths.classes)
        window_s = news.cluster.policy.local_window_s
        if not thresholds_may_move(known.changed_ms, news.now_ms, True, window_s):
            continue
        if has_drifted(route, known.mix, now):
            yield Trigger(route.models, Reason(ReasonCode.SCORES, route.name))


TRIGGERS: tuple[Rule, ...] = (
    period_elapsed,
    price_changed,
    availability_changed,
    nodes_changed,
    launch_failed,
    service_changed,
    alert_fired,
    slo_missed,
    mix_changed,
    lengths_changed,
    switchable_roles_changed,
    excess_capacity,
    unapplied_plan,
    fragmentation,
    scores_changed,
)


def fired(news: TriggerInputs) -> Iterator[Trigger]:
    """The triggers of this tick, then those of installed packages."""
    for rule in TRIGGERS:
        yield from rule(news)
    for extension in extensions(Group.TRIGGERS):
        found: tuple[object, ...] = call(extension, lambda fire: tuple(fire(news)), ())
        yield from (one for one in found if isinstance(one, Trigger))
