"""Rebuild the serving groups from assignments and statuses, and add the memory about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.planning.combo_names import combo_id, parse_combo_id
from autoscaler.rollout.serving_group import (
    Life,
    Placed,
    RouteExit,
    ServingGroup,
    Switch,
    combo_id_of,
    serial_of,
)
from autoscaler.rollout.versions import with_known_version
from topics.fleet import Assignment, DesiredInstance, InstanceState, Status
from topics.routing import Routes

_NEVER_SERVED = (InstanceState.STARTING, InstanceState.FAILED, InstanceState.STOPPED)
_Member = tuple[Placed, DesiredInstance]
"""One instance of a group: its place, and its entry in the assignment."""


def rebuild_groups(
    cluster: Cluster,
    assignments: Mapping[str, Assignment],
    routes: Mapping[str, Routes],
    statuses: Mapping[str, Status],
    now_ms: int,
) -> tuple[ServingGroup, ...]:
    """The groups that the assignments describe, and those of running instances without an
    assignment. A group with a missing member serves no requests, so it is drained, and the next
    plan replaces it. A drain in progress still counts against the disruption budget."""
    served = {
        seen.instance
        for status in statuses.values()
        for seen in status.instances
        if seen.state not in _NEVER_SERVED
    }
    launched = {
        seen.instance: seen.launched_ms
        for status in statuses.values()
        for seen in status.instances
        if seen.launched_ms
    }
    parts: dict[str, list[_Member]] = {}
    for node in sorted(assignments):
        for instance in assignments[node].instances:
            parts.setdefault(instance.group, []).append(
                (_placed(instance, node, assignments[node].pool), instance)
            )
    since_ms = now_ms - int(cluster.policy.node_silent_s * 1000)
    for name, found in _unassigned(assignments, statuses, since_ms).items():
        assigned = parts.setdefault(name, [])
        draining = any(instance.drain for _, instance in assigned)
        if not assigned or not (draining or _is_complete(name, assigned)):
            assigned += found
    phases = {
        seen.instance: Phase(seen.phase)
        for status in statuses.values()
        for seen in status.instances
    }
    services = {service.model: service for service in cluster.services}
    groups = []
    for name, members in parts.items():
        first = members[0][1]
        placed = sorted((member for member, _ in members), key=lambda member: member.instance)
        draining = any(wanted.drain for _, wanted in members) or not _is_complete(name, members)
        known = routes.get(first.model)
        generation = max(1, known.generation) if known else 1
        leaves = draining and any(p.instance in served for p in placed)
        created = min((launched[p.instance] for p in placed if p.instance in launched), default=0)
        group = ServingGroup(
            name=name,
            model=first.model,
            combo_id=combo_id_of(name),
            engine=first.engine,
            placed=tuple(placed),
            # A start without a reported launch time counts from now.
            created_ms=min(created or now_ms, now_ms),
            life=Life.DRAINING if draining else Life.ACTIVE,
            since_ms=now_ms,
            exit=RouteExit(generation=generation if leaves else 0),
            switch=None if draining else _switch(name, first.model, placed, phases),
            version=first.version,
        )
        groups.append(with_known_version(group, services.get(first.model)))
    return tuple(sorted(groups, key=lambda group: (group.created_ms, group.name)))


def _placed(instance: DesiredInstance, node: str, pool: str) -> Placed:
    return Placed(
        instance.instance, Phase(instance.phase), node, pool, instance.gpus, instance.gang
    )


def _switch(
    name: str, model: str, placed: list[Placed], phases: Mapping[str, Phase]
) -> Switch | None:
    """The role switch of the group called `name`, if a member serves in another phase than its
    assignment: that member's executor completes the switch or rolls it back. phases: the phase in
    which each instance serves. None if part of the switch is complete, so that the present roles
    form no combo to return to.
    """
    before = tuple(replace(p, phase=phases.get(p.instance, p.phase)) for p in placed)
    serving = {p.phase for p in before}
    apart = serving in ({Phase.PREFILL, Phase.DECODE}, {Phase.AGGREGATED})
    if list(before) == placed or not apart or any(p.gang or p.deployment for p in placed):
        return None
    made_of: Counter[tuple[Phase, int, str]] = Counter()
    for phase in Phase:
        made_of.update((phase, len(p.gpus), p.pool) for p in before if p.phase is phase)
    members = [(*member, count) for member, count in made_of.items()]
    return Switch(f"{combo_id(model, members)}:{serial_of(name)}", before, asked=True)


def _unassigned(
    assignments: Mapping[str, Assignment], statuses: Mapping[str, Status], since_ms: int
) -> dict[str, list[_Member]]:
    """By group, the instances on nodes without a published assignment. If they are assigned again,
    they keep running unchanged."""
    found: dict[str, list[_Member]] = {}
    for node, status in sorted(statuses.items()):
        if node in assignments or status.at_ms < since_ms:
            continue
        busy = set[int]()
        for seen in status.instances:
            runs = seen.state in (InstanceState.STARTING, InstanceState.READY)
            if not runs or busy.intersection(seen.gpus):
                continue
            try:
                wanted = DesiredInstance(
                    seen.instance, seen.model, seen.phase, seen.group, seen.gpus, seen.engine,
                    gang=seen.gang, version=seen.version,
                )  # fmt: skip
            except InvalidValue:  # no assignment can contain it
                continue
            busy.update(seen.gpus)
            member = _placed(wanted, node, status.pool), wanted
            found.setdefault(seen.group, []).append(member)
    return found


def _is_complete(name: str, placed: Iterable[_Member]) -> bool:
    """Whether the group called `name` has all its members. The name lists the members."""
    try:
        _, members = parse_combo_id(combo_id_of(name))
    except InvalidValue:
        return True  # names of other forms list no members
    wanted: Counter[tuple[Phase, int, str]] = Counter()
    for phase, gpus, pool, count in members:
        wanted[phase, gpus, pool] += count
    there = Counter((member.phase, len(member.gpus), member.pool) for member, _ in placed)
    return wanted <= there


def with_memory(
    rebuilt: Iterable[ServingGroup], remembered: Iterable[ServingGroup]
) -> tuple[ServingGroup, ...]:
    """The `rebuilt` groups with the life cycle that the ledger remembers.

    Assignments decide which groups exist. A remembered group counts if its assignment is the
    rebuilt group: the same instances, in their former roles if its role switch has not begun. If
    the assignment orders a drain that the memory does not contain, the assignment is newer. A
    remembered group that waits for the GPUs of another one remains while that group exists.
    """
    known = {_assigned_name(group): group for group in remembered}
    found = []
    for group in rebuilt:
        memory = known.get(group.name)
        if memory is not None and _agrees(memory, group):
            placed = memory.placed if memory.switch is not None else group.placed
            group = replace(memory, engine=group.engine, placed=placed, version=group.version)
        found.append(group)
    # Groups that wait for the GPUs of another group are in no assignment yet.
    here = {group.name for group in found}
    found += [
        memory
        for memory in known.values()
        if memory.replaces in here and memory.placed and memory.name not in here
    ]
    return tuple(sorted(found, key=lambda group: (group.created_ms, group.name)))


def _assigned_name(group: ServingGroup) -> str:
    """The name of `group` in assignments."""
    held = group.switch is not None and not group.switch.asked
    return group.switch.source if group.switch is not None and held else group.name


def _agrees(memory: ServingGroup, group: ServingGroup) -> bool:
    if memory.model != group.model or memory.combo_id != combo_id_of(memory.name):
        return False
    if group.life is Life.DRAINING and memory.life is not Life.DRAINING:
        return False
    if memory.switch is None:
        return True
    assigned = memory.placed if memory.switch.asked else memory.switch.placed
    places = {(p.instance, p.node, p.pool, p.gpus) for p in group.placed}
    return tuple(assigned) == group.placed and all(
        {(p.instance, p.node, p.pool, p.gpus) for p in side} == places
        for side in (memory.placed, memory.switch.placed)
    )
