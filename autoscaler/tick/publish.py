"""The end of a tick: publish new and changed records, and store them in the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.planning.time_limits import drain_timeout_s
from autoscaler.rollout.assignments import (
    changed_assignments,
    changed_nodes,
    changed_routes,
    marked,
    route_groups,
    without_groups,
)
from autoscaler.rollout.canary_routes import canary_routes, canary_types
from autoscaler.rollout.capacity_and_cost import billed_usd_per_h, by_model
from autoscaler.rollout.finalized_names import finalized_models, finalized_nodes
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.traffic_split import type_routes
from autoscaler.rollout.versions import declared_version
from autoscaler.sizing.prediction_drift import start_times_s
from autoscaler.state.controller_state import ControllerState, Published
from autoscaler.state.effects import (
    DeleteKey,
    Effect,
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
)
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import RATE_EPSILON
from autoscaler.tick.route_hooks import SPLIT_ROUTES
from topics.decisions import Decision, PlannedCombo, PlanRecord
from topics.fleet import Assignment, Status
from topics.routing import RouteGroup, Routes
from topics.topic_table import ASSIGNMENTS, ROUTES

_NO_STATUSES: Mapping[str, Status] = {}
_LOOK_FOR_FINALIZED_MS = 10_000


Record = TypeVar("Record", Assignment, Routes)


@dataclass(frozen=True, slots=True)
class FrozenRoutes:
    """Models whose routes must not change. advised: declared in mode recommend. retained_models: no
    longer declared, but Shoal may not change them."""

    advised: Collection[str] = ()
    retained_models: Collection[str] = ()


NOTHING_FROZEN = FrozenRoutes()


def publish(
    before: ControllerState,
    after: ControllerState,
    sight: FleetSnapshot,
    cluster: Cluster,
    decisions: Iterable[Decision],
    now_ms: int,
    frozen: FrozenRoutes = NOTHING_FROZEN,
    statuses: Mapping[str, Status] = _NO_STATUSES,
) -> tuple[ControllerState, tuple[Effect, ...]]:
    """The state `after` with the published records, and the effects: decisions, routes,
    assignments, plan, and deleted keys.

    cluster: with the present prices. frozen: models whose routes do not change. statuses: the
    latest of each node.
    """
    token = before.term.leader_token
    deleted_generation = after.published.deleted_generation
    numbered = [
        replace(
            decision,
            number=before.numbers.decision + 1 + index,
            leader_token=token,
            applied=decision.applied and _is_applied(cluster, decision.model),
        )
        for index, decision in enumerate(decisions)
    ]
    effects: list[Effect] = [PublishDecision(decision) for decision in numbered]
    routes = dict(after.published.routes)
    of = by_model(after.groups)
    published: dict[str, int] = {}
    starts = start_times_s(after.evaluated.combos.values(), after.models)
    for service in cluster.services:
        own, last = of.get(service.model, []), routes.get(service.model)
        if not service.managed and not _became_empty(last, own):
            advised = service.model in frozen.advised
            if last is not None and (last.advised is not advised or last.withdrawn):
                routes[service.model] = marked(last, advised, token, now_ms)
                effects.append(PublishRoutes(routes[service.model]))
            continue
        if service.mode is Mode.APPROVE and not own and last is None:
            continue  # in mode approve, publish no routes before the first approved change
        lengths = after.models[service.model].estimate.lengths
        heard = sight.reachable(own)
        found = route_groups(heard, sight.views, after.evaluated.combos, lengths, last)
        if not found:  # keep the routes: all nodes are unreachable, but may still serve
            found = route_groups(own, sight.views, after.evaluated.combos, lengths, last)
        found, weights = _compared(service, found, own, after.models[service.model]), found
        start_s = starts.get(service.model, 0.0)
        feeds = sight.load_feeds(own)
        ways = after.models[service.model].target.traffic_split
        types = type_routes(service, ways, weights, last) if cluster.policy.spends_budget else ()
        if found is not weights:
            types = canary_types(types, weights, found)
        record = changed_routes(service, found, last, token, now_ms, start_s, feeds, types)
        if record is not None:
            routes[service.model] = _continued(record, last, deleted_generation)
            effects.append(PublishRoutes(routes[service.model]))
        published[service.model] = routes[service.model].generation
    known = {*published, *frozen.retained_models, *(s.model for s in cluster.services)}
    undeclared = sorted(routes.keys() - known - {route.name for route in cluster.routes})
    for model in finalized_models(undeclared, of, cluster.withdrawn_in_file) if undeclared else ():
        deleted_generation = max(deleted_generation, routes.pop(model).generation)
        effects.append(DeleteKey((ROUTES.name, model)))
    for model in undeclared:
        if model not in routes:
            continue
        if not routes[model].withdrawn or routes[model].leader_token != token:
            routes[model] = without_groups(routes[model], token, now_ms)
            effects.append(PublishRoutes(routes[model]))
        published[model] = routes[model].generation
    moved = SPLIT_ROUTES(cluster, after.splits, routes, token, now_ms) if cluster.routes else ()
    for record in moved:
        last = routes.get(record.model)
        routes[record.model] = _continued(record, last, deleted_generation)
        effects.append(PublishRoutes(routes[record.model]))
    groups = _with_route_generations(after.groups, published)
    assignments = dict(after.published.assignments)
    nodes = _may_differ(before, groups)
    if nodes is None or nodes:
        drains_ms = {
            service.model: int(
                1000
                * drain_timeout_s(
                    service, cluster.policy, after.models[service.model].estimate.lengths
                )
            )
            for service in cluster.services
        }
        for assignment in changed_assignments(groups, assignments, token, now_ms, drains_ms, nodes):
            last_of_node = assignments.get(assignment.node)
            changed = _continued(assignment, last_of_node, deleted_generation)
            assignments[assignment.node] = changed
            effects.append(PublishAssignment(changed))
    before_ms = before.term.ticked_ms or before.term.started_ms
    if now_ms // _LOOK_FOR_FINALIZED_MS != before_ms // _LOOK_FOR_FINALIZED_MS:
        for node in finalized_nodes(assignments, statuses, cluster.pools, now_ms):
            deleted_generation = max(deleted_generation, assignments.pop(node).generation)
            effects.append(DeleteKey((ASSIGNMENTS.name, node)))
    models = _numbered(after.models, numbered)
    plan_number = before.numbers.plan
    placed = after.numbers.group != before.numbers.group
    if placed or (groups != before.groups and _targets(groups) != _targets(before.groups)):
        plan_number += 1
        effects.append(PublishPlan(_plan(after, groups, sight, cluster, plan_number, now_ms)))
    if not effects and groups == after.groups:
        return after, ()
    return (
        replace(
            after,
            published=Published(assignments, routes, deleted_generation),
            numbers=replace(
                after.numbers, decision=before.numbers.decision + len(numbered), plan=plan_number
            ),
            groups=groups,
            models=models,
        ),
        tuple(effects),
    )


def _compared(
    service: Service, routes: tuple[RouteGroup, ...], groups: list[ServingGroup], state: ModelState
) -> tuple[RouteGroup, ...]:
    """`routes` with the share of a canary, while it is compared."""
    policy, rollout = service.rollout.canary, state.rollout
    if policy is None or rollout.base is None:
        return routes
    goal = rollout.goal(declared_version(service))
    if not rollout.compares(goal):
        return routes
    needed = state.target.req_per_s / (service.utilization * state.capacity.derate)
    return canary_routes(routes, groups, goal, rollout.base, policy.share, needed)


def _continued(record: Record, last: Record | None, deleted: int) -> Record:
    """`record` with a generation above every deleted record, if its name is new or has returned."""
    return record if last is not None else replace(record, generation=deleted + 1)


def _became_empty(routes: Routes | None, groups: Iterable[ServingGroup]) -> bool:
    """Whether the routes are empty although a group is active: the model was removed and declared
    again before its groups had to drain."""
    active = any(group.life is Life.ACTIVE for group in groups)
    return routes is not None and not routes.groups and active


def _is_applied(cluster: Cluster, model: str) -> bool:
    return all(s.managed for s in cluster.services if s.model == model)


def _numbered(
    models: Mapping[str, ModelState], decisions: Iterable[Decision]
) -> dict[str, ModelState]:
    """`models`, in which each new pending approval has the number and token of its decision, by
    which operators refer to it."""
    found = dict(models)
    for decision in decisions:
        proposal = found[decision.model].advisory.proposal if decision.model in found else None
        if decision.expires_ms and proposal is not None:
            token = decision.leader_token
            numbered = replace(proposal, number=decision.number, leader_token=token)
            state = found[decision.model]
            found[decision.model] = replace(
                state, advisory=replace(state.advisory, proposal=numbered)
            )
    return found


def _with_route_generations(
    groups: Iterable[ServingGroup], published: Mapping[str, int]
) -> tuple[ServingGroup, ...]:
    """`groups`, in which each unrouted group holds the first route generation without it. A gateway
    that applies this generation confirms that it sends no more requests to the group."""
    kept = []
    for group in groups:
        held = group.switch is not None and not group.switch.asked
        if (group.life is Life.UNROUTED or held) and not group.exit.generation:
            generation = published.get(group.model)
            if generation:
                group = replace(group, exit=replace(group.exit, generation=generation))
        kept.append(group)
    return tuple(sorted(kept, key=lambda g: (g.created_ms, g.name)))


def _may_differ(before: ControllerState, groups: tuple[ServingGroup, ...]) -> frozenset[str] | None:
    """Nodes whose assignments may change: the nodes of changed groups. None: all nodes, because the
    leader token is new."""
    tokens = {assignment.leader_token for assignment in before.published.assignments.values()}
    if not tokens <= {before.term.leader_token} or (groups and not tokens):
        return None
    return changed_nodes(before.groups, groups) if groups != before.groups else frozenset()


def _targets(groups: Iterable[ServingGroup]) -> Counter[tuple[str, str]]:
    return Counter((group.model, group.combo_id) for group in groups if group.counts)


def _plan(
    state: ControllerState,
    groups: tuple[ServingGroup, ...],
    sight: FleetSnapshot,
    cluster: Cluster,
    number: int,
    now_ms: int,
) -> PlanRecord:
    targets = []
    raw: Counter[str] = Counter()
    for (model, combo_id), count in sorted(_targets(groups).items()):
        combo = state.evaluated.combos.get(combo_id)
        rate, usd = (combo.req_per_s, combo.usd_per_h) if combo else (0.0, 0.0)
        targets.append(PlannedCombo(model, combo_id, count, rate * count, usd * count))
        raw[model] += rate * count  # type: ignore[assignment]
    shortfall = {}
    for service in cluster.services:
        model_state = state.models[service.model]
        held = raw[service.model] * service.utilization * model_state.capacity.derate
        missing = model_state.target.needed_req_per_s - held
        if missing > RATE_EPSILON and service.managed:
            shortfall[service.model] = round(missing, 4)
    full = state.full.made_ms == now_ms
    return PlanRecord(
        number,
        state.term.leader_token,
        now_ms,
        "full" if full else "urgent",
        round(billed_usd_per_h(groups, sight, cluster.prices_usd_per_h()), 4),
        state.full.gap if full else -1.0,
        tuple(targets),
        shortfall,
        state.numbers.group,
    )
