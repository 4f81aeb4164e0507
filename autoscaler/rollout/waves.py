"""Waves: replacements first, then drains, never below min(demand, former capacity).

These are the steps of a group from RETIRING to gone. Repeated calls with equal inputs change
nothing.

    RETIRING -> UNROUTED   replacements are ready, and the remaining ready capacity covers
                           min(demand, former capacity); or half of a reclaim notice has passed
             -> ACTIVE     no replacement will come: the old group is kept
    UNROUTED -> DRAINING   every live gateway applies routes without it, or a time-out passes
    DRAINING -> gone       its executor reports the stop, or a longer time-out passes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.drain_confirmation import confirmed
from autoscaler.rollout.multi_node import broken, met, without
from autoscaler.rollout.role_switch import advance
from autoscaler.rollout.serving_group import (
    FleetView,
    GroupView,
    Life,
    Placed,
    RouteExit,
    ServingGroup,
)
from topics.fleet import Assignment, InstanceState

GONE_GRACE_MS = 60_000
"""Time in ms after the drain time-out in which an executor still may report that the instance is
gone."""
# A sleeping instance needs no step here: its executor manages it, and ends it if the GPUs are
# needed.
_OVER = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.ASLEEP)


@dataclass(frozen=True, slots=True)
class RemovalLimits:
    """Limits on the removals of one model; the defaults allow all removals.

    needed_req_per_s: raw capacity that must stay ready. floor: number of combos that must stay.
    max_disruption: share of the ready capacity that may leave at the same time; one group may leave
    in any case. proven_req_per_s: raw capacity that the target needs, infinite if the evidence is
    not good now; groups without a replacement may leave while the remaining ready groups provide
    it.
    """

    needed_req_per_s: float = 0.0
    floor: int = 0
    max_disruption: float = 1.0
    proven_req_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class WaveInputs:
    """Inputs of a step.

    ready_req_per_s: raw goodput of the ready part of each group. rated_req_per_s: capacity of each
    whole group, by which the fleet is short from the moment that the group begins to leave until it
    is gone. reclaim_ms: reclaim times of the groups' nodes. paused: whether statuses and gateway
    reports are unread, so that no time-out may pass.
    """

    now_ms: int
    limits: RemovalLimits
    ready_req_per_s: Mapping[str, float]
    views: Mapping[str, GroupView]
    gateways: Sequence[GatewayReport]
    fleet: FleetView
    assignments: Mapping[str, Assignment]
    drain_timeout_ms: int
    rated_req_per_s: Mapping[str, float] = field(default_factory=dict)
    reclaim_ms: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False


def step(groups: Sequence[ServingGroup], inputs: WaveInputs) -> tuple[ServingGroup, ...]:
    """Advance the groups of one model by one step. Groups that are gone are left out of the
    result."""
    current = {group.name: group for group in groups}
    for group in groups:
        if group.life is Life.RETIRING:
            current[group.name] = _retiring(group, current, inputs)
        elif group.life is Life.UNROUTED and _may_drain(group, inputs):
            current[group.name] = _drained(group, inputs.now_ms)
        elif group.life is Life.DRAINING and _is_gone(group, inputs):
            del current[group.name]
        elif group.life is Life.DRAINING:
            told = broken(group, inputs.fleet)
            current[group.name] = without(told, lambda placed: _stopped(placed, inputs))
        elif group.life is Life.ACTIVE and group.switch is not None:
            view = inputs.views[group.name]
            moved = advance(
                group, view, inputs.gateways, inputs.fleet, inputs.assignments, inputs.now_ms
            )
            del current[group.name]
            current[moved.name] = moved
        elif group.life is Life.ACTIVE:
            current[group.name] = met(group, inputs.fleet)
    return tuple(current.values())


def retire(
    group: ServingGroup, now_ms: int, after: tuple[str, ...] = (), yields: bool = False
) -> ServingGroup:
    """`group` as RETIRING. It leaves when the groups named in `after` are ready. yields: whether it
    makes room for other models."""
    exit_ = RouteExit(after, yields)
    return replace(group, life=Life.RETIRING, since_ms=now_ms, exit=exit_)


def reactivate(group: ServingGroup, now_ms: int) -> ServingGroup:
    """`group` as ACTIVE again; allowed only before DRAINING."""
    return replace(group, life=Life.ACTIVE, since_ms=now_ms, exit=RouteExit())


def _drained(group: ServingGroup, now_ms: int) -> ServingGroup:
    exit_ = replace(group.exit, after=())
    return replace(group, life=Life.DRAINING, since_ms=now_ms, exit=exit_)


def _unrouted(group: ServingGroup, now_ms: int) -> ServingGroup:
    """`group` in the state UNROUTED. Its route generation is 0 until routes without it are
    published, because during a role switch some of its instances may still be in the routes."""
    exit_ = RouteExit(yields=group.exit.yields)
    return replace(group, life=Life.UNROUTED, since_ms=now_ms, exit=exit_)


def _retiring(
    group: ServingGroup, current: Mapping[str, ServingGroup], inputs: WaveInputs
) -> ServingGroup:
    if inputs.paused and not group.failed_ms and group.name not in inputs.reclaim_ms:
        return group
    if not inputs.views[group.name].ready and (group.failed_ms or not group.exit.after):
        # no instance is ready, so there are no requests
        return _drained(group, inputs.now_ms)
    taken_ms = inputs.reclaim_ms.get(group.name, 0)
    if taken_ms and 2 * (inputs.now_ms - group.since_ms) >= taken_ms - group.since_ms:
        return _unrouted(group, inputs.now_ms)  # half of the notice is left for running requests
    # Keep a starting group, because it serves sooner than its replacement.
    for name in group.exit.after:
        other = current.get(name)
        if other is None or not other.counts:
            # The replacement will not come, so keep the group, unless it is broken.
            return reactivate(group, inputs.now_ms)
        if not inputs.views[name].all_ready:
            return group
    limits = inputs.limits
    serving = [g for g in current.values() if g.life in (Life.ACTIVE, Life.RETIRING)]
    was = sum(inputs.ready_req_per_s[g.name] for g in serving)
    stays = was - inputs.ready_req_per_s[group.name]
    whole = sum(1 for g in serving if g.name != group.name and inputs.views[g.name].all_ready)
    if stays < min(limits.needed_req_per_s, was) - 1e-9 or whole < limits.floor:
        return group
    for_others = group.exit.after or group.exit.yields
    surplus = not for_others and stays >= limits.proven_req_per_s - 1e-9
    if not surplus and not _within_budget(group, current, inputs, was):
        return group
    return _unrouted(group, inputs.now_ms)


def _within_budget(
    group: ServingGroup,
    current: Mapping[str, ServingGroup],
    inputs: WaveInputs,
    serving_req_per_s: float,
) -> bool:
    leaving = [
        max(inputs.ready_req_per_s[g.name], inputs.rated_req_per_s.get(g.name, 0.0))
        for g in current.values()
        if g.life in (Life.UNROUTED, Life.DRAINING) and _was_routed(g, inputs)
    ]
    total = serving_req_per_s + sum(leaving)
    taken = sum(leaving) + inputs.ready_req_per_s[group.name]
    return not leaving or taken <= inputs.limits.max_disruption * total + 1e-9


def _may_drain(group: ServingGroup, inputs: WaveInputs) -> bool:
    waits = inputs.paused and group.name not in inputs.reclaim_ms
    return not waits and confirmed(group, inputs.gateways, inputs.now_ms)


def _was_routed(group: ServingGroup, inputs: WaveInputs) -> bool:
    """Whether a leaving group was in the routes. If it was never ready, its removal takes no
    capacity away."""
    return group.exit.generation > 0 or inputs.ready_req_per_s[group.name] > 0.0


def _is_gone(group: ServingGroup, inputs: WaveInputs) -> bool:
    waited_ms = inputs.now_ms - group.since_ms
    if waited_ms >= inputs.drain_timeout_ms + GONE_GRACE_MS and not inputs.paused:
        return True
    return all(_stopped(placed, inputs) for placed in group.placed)


def _stopped(placed: Placed, inputs: WaveInputs) -> bool:
    status = inputs.fleet.statuses.get(placed.node)
    assignment = inputs.assignments.get(placed.node)
    if status is None or assignment is None:
        return False
    seen = inputs.fleet.instances.get(placed.instance)
    if seen is not None:
        return seen.state in _OVER
    wanted = next((w for w in assignment.instances if w.instance == placed.instance), None)
    # The group is gone if the executor has read the drain and a later status does not contain the
    # group.
    told = wanted is None or wanted.drain
    return told and status.observed_generation >= assignment.generation
