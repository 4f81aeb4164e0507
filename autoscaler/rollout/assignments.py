"""Converts groups to records: assignments of nodes and routes of models. Equal groups give equal
records. A record is published only if it differs from the last published one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from sys import intern
from typing import Any

from autoscaler.domain.cluster import Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.rollout.component_routes import cell_route
from autoscaler.rollout.multi_node import drains
from autoscaler.rollout.serving_group import (
    GroupView,
    Life,
    Placed,
    ServingGroup,
    ready_req_per_s,
)
from topics.fleet import Assignment, DesiredInstance
from topics.routing import Endpoint, RequestKind, RouteGroup, Routes, TypeRoute

_LEAST_WEIGHT = 1e-6
"""Lowest weight of a route, in requests/s: gateways need a weight above 0."""
_BATCHES = 2.0
"""Slots of an instance as a multiple of the requests that it holds at capacity, so that one batch
can wait while another one is computed."""
_SPARE_SLOTS = 4
"""Additional slots, for instances that hold less than one request at capacity."""
_MOST_SLOTS = 1_000_000  # limit of the route record
_NO_TIMEOUTS: Mapping[str, int] = {}


def changed_assignments(
    groups: Iterable[ServingGroup],
    published: Mapping[str, Assignment],
    leader_token: int,
    now_ms: int,
    drain_timeouts_ms: Mapping[str, int] = _NO_TIMEOUTS,
    nodes: Collection[str] | None = None,
) -> tuple[Assignment, ...]:
    """Assignments of the nodes whose desired instances differ from `published`, by node.

    The generation of a changed node rises by 1. A node without instances gets an empty assignment.
    A new leader token publishes all nodes again. drain_timeouts_ms: by model; a node gets the
    longest time-out of its present and former models, because the assignment that starts a drain no
    longer contains the former model. nodes: the nodes that may have changed; None: all nodes.
    """
    wanted: dict[str, tuple[str, list[DesiredInstance]]] = {
        node: (published[node].pool, [])
        for node in (published if nodes is None else nodes)
        if node in published
    }
    for group in groups:
        if group.replaces:
            continue  # its GPUs are in use
        # The role switch is not in any assignment yet, so executors still have the group's former
        # instances.
        held = group.switch if group.switch is not None and not group.switch.asked else None
        is_cell = group.is_cell
        for placed in held.placed if held else group.placed:
            if nodes is not None and placed.node not in nodes:
                continue
            _, instances = wanted.setdefault(placed.node, (placed.pool, []))
            instances.append(
                DesiredInstance(
                    placed.instance,
                    group.model,
                    str(placed.phase),
                    held.source if held else group.name,
                    placed.gpus,
                    (is_cell and component_engine(group.model, placed.deployment)) or group.engine,
                    drain=group.life is Life.DRAINING and drains(group, placed),
                    gang=placed.gang,
                    version=group.version,
                )
            )
    changed: list[Assignment] = []
    for node in sorted(wanted):
        pool, instances = wanted[node]
        desired = tuple(sorted(instances, key=lambda instance: instance.instance))
        old = published.get(node)
        if old and old.instances == desired and old.leader_token == leader_token:
            continue
        generation = old.generation + 1 if old else 1
        models = {one.model for one in (*desired, *(old.instances if old else ()))}
        known = [drain_timeouts_ms[model] for model in models if model in drain_timeouts_ms]
        if old is not None and not models <= drain_timeouts_ms.keys():
            known.append(old.drain_timeout_ms)  # the group's model is no longer declared
        changed.append(
            Assignment(
                node,
                pool,
                generation,
                leader_token,
                now_ms,
                desired,
                drain_timeout_ms=max(known, default=0),
            )
        )
    return tuple(changed)


def component_engine(model: str, deployment: str) -> str:
    """The engine that runs a deployment of a model of components; "" for other models."""
    return f"{model}.{deployment}" if deployment else ""


def changed_nodes(before: Iterable[ServingGroup], after: Iterable[ServingGroup]) -> frozenset[str]:
    """Nodes of groups that were added, removed or changed."""
    left = {group.name: group for group in before}
    changed: list[ServingGroup] = []
    for group in after:
        old = left.pop(group.name, None)
        if old is not group:
            changed += [group] if old is None else [group, old]
    return frozenset(
        placed.node
        for group in (*changed, *left.values())
        for placed in (*group.placed, *(group.switch.placed if group.switch else ()))
    )


def route_groups(
    groups: Iterable[ServingGroup],
    views: Mapping[str, GroupView],
    combos: Mapping[str, Combo],
    lengths: Lengths,
    published: Routes | None = None,
) -> tuple[RouteGroup, ...]:
    """The groups of one model that can serve now. The weight of a group is the goodput of its ready
    part.

    lengths: the request lengths for which `combos` were evaluated; they decide the slots of
    instances. A prefill-decode group needs at least one ready instance of each phase. A combo
    without an evaluation (after a restart) keeps the `published` weight and slots.
    """
    before = {route.group: route for route in published.groups} if published else {}
    found: list[RouteGroup] = []
    for group in groups:
        view = views[group.name]
        if group.life not in (Life.ACTIVE, Life.RETIRING) or not view.ready:
            continue
        combo = combos.get(group.combo_id)
        if group.is_cell:
            cell = cell_route(group, view, combo, before.get(group.name))
            found += [cell] if cell is not None else []
            continue
        if combo is not None:
            # Equal addresses must share one object for the cache below, but each status brings new
            # objects.
            ready = [part for placed, at in view.ready for part in (placed, intern(at))]
            route = _valued(group, combo, lengths, *ready)
        else:
            last = before.get(group.name)
            weight = last.weight if last is not None else 1.0
            route = _route(group.name, view, weight, _published(last))
        found += [route] if route is not None else []
    return tuple(sorted(found, key=lambda route: route.group))


@TICK_CACHES.by_identity  # cached, because most groups do not change between ticks
def _valued(group: ServingGroup, combo: Combo, lengths: Lengths, *ready: Any) -> RouteGroup | None:
    """The route of `group` to its ready instances. combo: evaluation of the group's combo. ready:
    placed instances and their addresses, alternating.
    """
    view = GroupView(tuple(zip(ready[::2], ready[1::2], strict=True)), True, None, False)
    weight = ready_req_per_s(combo, view)
    return _route(group.name, view, weight, lambda placed: slots(combo, placed, lengths))


def _route(
    name: str, view: GroupView, weight: float, most: Callable[[Placed], int]
) -> RouteGroup | None:
    """The route of a group; None if it has neither an aggregated instance nor both phases. most:
    returns the slots of an instance.
    """
    ends: dict[Phase, list[Endpoint]] = {}
    for placed, address in view.ready:
        end = Endpoint(placed.instance, address, most(placed))
        ends.setdefault(placed.phase, []).append(end)
    both = Phase.PREFILL in ends and Phase.DECODE in ends
    aggregated = tuple(ends.get(Phase.AGGREGATED, ()))
    if not aggregated and not both:
        return None
    return RouteGroup(
        name,
        # Round to five digits, because smaller changes of a weight do not matter to gateways.
        float(f"{max(weight, _LEAST_WEIGHT):.5g}"),
        aggregated,
        tuple(ends[Phase.PREFILL]) if both else (),
        tuple(ends[Phase.DECODE]) if both else (),
    )


def slots(combo: Combo, placed: Placed, lengths: Lengths) -> int:
    """Maximal number of requests in flight on one instance of `combo` for a gateway; 0 = no limit.

    By Little's law an instance at capacity holds L = req_per_s x (TTFT + TPOT x R_out) requests. A
    prefill instance holds requests for the TTFT only. The number of slots is 2 L plus a few for
    instances that hold less than one request, so that one batch can wait while another one is
    computed. E.g. 1.1 req/s x (1 s + 211 x 50 ms) = 12.7 gives 30 slots. Further requests would
    only wait in the engine's queue, where instances that start later cannot serve them.

    A decode instance must take every prefilled request. Its slots are the requests that it decodes
    at capacity; with more requests it counts as busy.
    """
    if combo.paths:
        return 0  # path routing does not use slots
    key = (placed.phase, placed.pool, len(placed.gpus))
    rates = [m.req_per_s for m in combo.members if (m.phase, m.pool, m.gpus) == key]
    if not rates:
        return 0
    output_tokens = combo.output_tokens or lengths.output_tokens
    if placed.phase is Phase.DECODE:
        return min(_MOST_SLOTS, math.ceil(max(rates) * combo.tpot_ms * output_tokens / 1000.0))
    tokens = output_tokens if placed.phase is Phase.AGGREGATED else 0.0
    in_flight = max(rates) * (combo.ttft_ms + combo.tpot_ms * tokens) / 1000.0
    return min(_MOST_SLOTS, math.ceil(_BATCHES * in_flight) + _SPARE_SLOTS)


def _published(route: RouteGroup | None) -> Callable[[Placed], int]:
    """A function that returns the slots of an instance in a published route; 0 if the route does
    not contain the instance."""
    ends = (*route.aggregated, *route.prefill, *route.decode) if route is not None else ()
    given = {end.instance: end.slots for end in ends}
    return lambda placed: given.get(placed.instance, 0)


def changed_routes(
    service: Service,
    groups: tuple[RouteGroup, ...],
    published: Routes | None,
    leader_token: int,
    now_ms: int,
    start_s: float = 0.0,
    feeds: tuple[str, ...] = (),
    types: tuple[TypeRoute, ...] = (),
) -> Routes | None:
    """New routes of `service`; None if they equal the published ones.

    The first routes are published even if they are empty: gateways then know the model, report on
    it, and hold its requests.

    start_s: start time of the model's slowest combo; if it is 0 (unknown), the published value
    stays. feeds: addresses at which executors report the load of the model's engines. types:
    request classes with their own shares.
    """
    slo = service.slo
    # Round to two digits, because smaller changes of a prediction do not matter to gateways.
    starts = float(f"{start_s:.2g}") or (published.start_s if published else 0.0)
    aliases = (name,) if (name := service.hugging_face_name) else ()
    adapters = tuple(sorted(adapter.name for adapter in service.adapters))
    asked = service.graph.types if service.graph is not None else ()
    kinds = tuple(RequestKind(kind.name, tuple(sorted(kind.media))) for kind in asked)
    if (
        published is not None
        and published.groups == groups
        and published.leader_token == leader_token
        and not (published.advised or published.withdrawn)
        and (published.ttft_limit_ms, published.tpot_limit_ms) == (slo.ttft_ms, slo.tpot_ms)
        and (published.start_s, published.aliases) == (starts, aliases)
        and published.adapters == adapters
        and (published.feeds, published.types, published.kinds) == (feeds, types, kinds)
    ):
        return None
    return Routes(
        service.model,
        published.generation + 1 if published else 1,
        leader_token,
        now_ms,
        slo.ttft_ms,
        slo.tpot_ms,
        groups,
        start_s=starts,
        aliases=aliases,
        feeds=feeds,
        kinds=kinds,
        types=types,
        adapters=adapters,
    )


def without_groups(published: Routes, leader_token: int, now_ms: int) -> Routes:
    """Withdrawn routes for a name that is no longer declared: gateways send no more requests
    through this name, and refuse new ones."""
    return _again(
        published,
        leader_token,
        now_ms,
        groups=(),
        types=(),
        feeds=(),
        split=None,
        adapters=(),
        withdrawn=True,
    )


def marked(published: Routes, advised: bool, leader_token: int, now_ms: int) -> Routes:
    """The `published` routes with another value of `advised`: whether the model is declared in mode
    recommend."""
    return _again(published, leader_token, now_ms, advised=advised, withdrawn=False)


def _again(published: Routes, leader_token: int, now_ms: int, **changes: Any) -> Routes:
    return replace(
        published,
        generation=published.generation + 1,
        leader_token=leader_token,
        issued_ms=now_ms,
        said_ms=0,
        valid_ms=0,
        signature="",
        **changes,
    )
