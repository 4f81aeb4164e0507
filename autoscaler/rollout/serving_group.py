"""Serving groups: combos placed on nodes, with their life cycle.

ACTIVE    wanted; starting, or serving if ready
RETIRING  still serving; leaves when its replacement is ready and capacity allows
UNROUTED  left out of the routes; waits until gateways confirm it
DRAINING  has the order to finish its requests and stop; dropped when it is gone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Phase
from topics.checks import MAX_RESTORED_COUNT
from topics.fleet import InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangRank
from topics.reason_codes import ReasonCode

FORGOTTEN_MS = 600_000
"""A node without any report for this time, in ms, is given up."""


class Life(StrEnum):
    """Life-cycle state of a group."""

    ACTIVE = "active"
    RETIRING = "retiring"
    UNROUTED = "unrouted"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Placed:
    """One instance of a group on GPUs `gpus` of `node`.

    gang: the multi-node instance and the rank in it, if this is one rank of such an instance; else
    None.
    """

    instance: str
    phase: Phase
    node: str
    pool: str
    gpus: tuple[int, ...]
    gang: GangRank | None = None

    @property
    def deployment(self) -> str:
        """The instance's deployment in a model of components, taken from its name; "" in other
        models."""
        return self.instance.partition("+")[2]


@dataclass(frozen=True, slots=True)
class Switch:
    """The state of a switching group before the switch.

    source: former name. placed: instances in their former phases. asked: whether the assignments
    have the new phases (see `rollout.role_switch`).
    """

    source: str
    placed: tuple[Placed, ...]
    asked: bool = False


@dataclass(frozen=True, slots=True)
class RouteExit:
    """How instances leave the routes.

    after: names of groups that must be ready before. yields: whether the group makes room for other
    models although its own model is below target. noticed: whether a notice to its node is the only
    reason. generation: of the first routes without the instances, 0 before.
    """

    after: tuple[str, ...] = ()
    yields: bool = False
    generation: int = 0
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """One placed combo. name: "{combo id}:{serial}".

    created_ms: first assignment. since_ms: begin of the present state. exit: how the group, or its
    switching instances, leave the routes. failed_ms: time at which the group was detected as
    broken, 0 if it is not broken. switch: a role switch in progress. stays: whether a role switch
    failed, so that none is tried again. version: of its launch (`topics.launch_version`), "" =
    unknown. launched: the version that it runs, if this is another one, because executors changed
    the template of launches. replaces: the group whose GPUs this group gets when that group is
    gone; until then it is in no assignment.
    """

    name: str
    model: str
    combo_id: str
    engine: str
    placed: tuple[Placed, ...]
    created_ms: int
    life: Life = Life.ACTIVE
    since_ms: int = 0
    exit: RouteExit = RouteExit()
    failed_ms: int = 0
    switch: Switch | None = None
    stays: bool = False
    version: str = ""
    launched: str = ""
    replaces: str = ""

    @property
    def is_cell(self) -> bool:
        """Whether the group is a cell of a model of components."""
        return any(placed.deployment for placed in self.placed)

    @property
    def counts(self) -> bool:
        """Whether the group is part of planned capacity: active and not broken."""
        return self.life is Life.ACTIVE and not self.failed_ms


def combo_id_of(group_name: str) -> str:
    """The combo id in a group's name."""
    return group_name.rsplit(":", 1)[0]


def serial_of(group_name: str) -> int:
    """The serial in a group's name; 0 if the name has none, or one that is too large to continue
    from."""
    tail = group_name.rsplit(":", 1)[-1]
    if len(tail) > len(str(MAX_RESTORED_COUNT)) or not (tail.isascii() and tail.isdigit()):
        return 0
    serial = int(tail)
    return serial if serial <= MAX_RESTORED_COUNT else 0


@dataclass(frozen=True, slots=True)
class FleetView:
    """The executors' reports, by instance and by node. running: statuses of nodes with
    instances."""

    instances: Mapping[str, ObservedInstance]
    statuses: Mapping[str, Status]
    running: tuple[Status, ...] = ()


def fleet_view(statuses: Mapping[str, Status]) -> FleetView:
    """Index `statuses` (latest per node) by instance."""
    running = tuple([status for status in statuses.values() if status.instances])
    found = {seen.instance: seen for status in running for seen in status.instances}
    return FleetView(found, statuses, running)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The state of a group as executors report it.

    ready: (placed instance, endpoint) of every instance that serves. A multi-node instance serves
    if all of its ranks are up, and is listed as its rank 0. all_ready: whether all instances serve.
    broken: the reason why an instance will not start; None if no report says so. lost: whether a
    node has not reported for too long. broken_node, broken_pool: node and pool of the failure.
    pool_full: whether the failure shows that the pool has no room for any further node.
    """

    ready: tuple[tuple[Placed, str], ...]
    all_ready: bool
    broken: Reason | None
    lost: bool
    broken_node: str = ""
    broken_pool: str = ""
    pool_full: bool = False


def observe_group(
    group: ServingGroup, fleet: FleetView, now_ms: int, start_timeout_ms: int, lost_ms: int
) -> GroupView:
    """The view of `group`. Times in ms. lost_ms: silence after which a node counts as lost."""
    up: list[tuple[Placed, str]] = []
    broken: Reason | None = None
    broken_node = broken_pool = ""
    lost = pool_full = False
    for placed in group.placed:
        status = fleet.statuses.get(placed.node)
        # After it was given up, a node must report again before it gets a new launch.
        if status is not None and group.created_ms - status.at_ms <= FORGOTTEN_MS:
            lost = lost or now_ms - status.at_ms > lost_ms
        seen = fleet.instances.get(placed.instance)
        if seen is not None and _is_up(placed, seen):
            up.append((placed, seen.endpoint))
            continue
        if seen is not None and seen.state is InstanceState.FAILED:
            broken = Reason(ReasonCode.START_FAILED, placed.instance, quoted=seen.reason)
            broken_node, broken_pool = placed.node, placed.pool
            pool_full = seen.pool_full
            continue
        waiting_since = group.created_ms if group.switch is None else group.since_ms
        if seen is not None:
            waiting_since = max(waiting_since, seen.since_ms)
        if broken is None and not group.replaces and now_ms - waiting_since > start_timeout_ms:
            timeout_s = start_timeout_ms / 1000
            broken = Reason(ReasonCode.NOT_READY, placed.instance, quantities=(timeout_s,))
            broken_node, broken_pool = placed.node, placed.pool
    all_ready = len(up) == len(group.placed)
    ready = tuple(up) if all(placed.gang is None for placed, _ in up) else _leading_ranks(up)
    return GroupView(ready, all_ready, broken, lost, broken_node, broken_pool, pool_full)


def carry_view(group: ServingGroup, fleet: FleetView, before: GroupView) -> GroupView:
    """The view of `group` after a change of roles, derived from its former view `before`. Not for
    multi-node groups."""
    known = ((placed, fleet.instances.get(placed.instance)) for placed in group.placed)
    up = tuple((p, seen.endpoint) for p, seen in known if seen is not None and _is_up(p, seen))
    return GroupView(up, len(up) == len(group.placed), None, before.lost)


def _leading_ranks(up: list[tuple[Placed, str]]) -> tuple[tuple[Placed, str], ...]:
    """The instances of `up` that take requests. A multi-node instance takes them at rank 0 if all
    ranks are up."""
    ranks = Counter(placed.gang.gang for placed, _ in up if placed.gang is not None)
    return tuple(
        (placed, endpoint)
        for placed, endpoint in up
        if placed.gang is None
        or (placed.gang.leads and ranks[placed.gang.gang] == placed.gang.size)
    )


def _is_up(placed: Placed, seen: ObservedInstance) -> bool:
    """Whether the instance serves as assigned and can be reached. A rank needs no endpoint."""
    follows = placed.gang is not None and not placed.gang.leads
    serves = seen.state is InstanceState.READY and (bool(seen.endpoint) or follows)
    return serves and seen.phase == placed.phase


def ready_req_per_s(combo: Combo, view: GroupView) -> float:
    """Goodput in requests/s of the ready part of a combo, which is limited by its slowest phase. In
    a cell, the deployment with the smallest ready share limits the goodput."""
    if combo.paths:
        up = Counter((placed.deployment, placed.pool) for placed, _ in view.ready)
        parts = [up[m.deployment, m.pool] / m.count for m in combo.members]
        return combo.req_per_s * min(parts)
    rates = {(m.phase, m.pool, m.gpus): m.req_per_s for m in combo.members}
    by_phase = {member.phase: 0.0 for member in combo.members}
    for placed, _ in view.ready:
        by_phase[placed.phase] = by_phase.get(placed.phase, 0.0) + rates.get(
            (placed.phase, placed.pool, len(placed.gpus)), 0.0
        )
    return min([combo.req_per_s, *by_phase.values()])
