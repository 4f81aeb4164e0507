"""Role switches in place: a combo becomes another one on the same GPUs.

The steps of a switch:

    held no assignment has the new phases yet; instances that change their phase
               have left the routes, and every live gateway must confirm this (or a time-out passes)
    asked      the assignment has the new phases; executors switch, verify and report them
    switched   every instance serves in its new phase
    back       an executor rolled back, or its node got an older assignment: the group has its
               former phases again, and does not switch any more

From the first step on, plans count the group as its new combo. Instances that keep their phase
serve without interruption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.drain_confirmation import confirmed
from autoscaler.rollout.serving_group import (
    FleetView,
    GroupView,
    Placed,
    RouteExit,
    ServingGroup,
    Switch,
    combo_id_of,
)
from topics.fleet import Assignment, InstanceState


def switched_to(group: ServingGroup, combo: Combo, name: str, now_ms: int) -> ServingGroup | None:
    """`group` converted to `combo` on the same GPUs, under the new `name`.

    None if their slices differ, if they differ in more than roles (stages, components), or if a
    switch of this group has failed before.
    """
    if not _may(group) or not combo.can_switch_roles:
        return None
    placed = _with_phases(group.placed, combo)
    if placed is None:
        return None
    switch = Switch(group.name, group.placed)
    return replace(
        group, name=name, combo_id=combo.id, placed=placed, since_ms=now_ms, switch=switch
    )


def _may(group: ServingGroup) -> bool:
    roles_only = not group.is_cell and not any(placed.gang for placed in group.placed)
    return roles_only and group.switch is None and not group.stays


def _with_phases(placed: Sequence[Placed], combo: Combo) -> tuple[Placed, ...] | None:
    """`placed` with the phases of `combo`, chosen so that as many instances as possible keep their
    phase."""
    wanted = Counter[tuple[str, int, Phase]]()
    for member in combo.members:
        wanted[member.pool, member.gpus, member.phase] += member.count
    kept: dict[str, Placed] = {}
    for one in placed:
        key = (one.pool, len(one.gpus), one.phase)
        if wanted[key] > 0:
            wanted[key] -= 1
            kept[one.instance] = one
    for one in placed:
        if one.instance in kept:
            continue
        left = (key for key in +wanted if key[:2] == (one.pool, len(one.gpus)))
        found = next(left, None)
        if found is None:
            return None
        wanted[found] -= 1
        kept[one.instance] = replace(one, phase=found[2])
    return tuple(kept[one.instance] for one in placed) if not +wanted else None


def switch_groups(
    targets: Mapping[str, str],
    groups: Sequence[ServingGroup],
    combos: Mapping[str, Combo],
    room: SwitchRoom,
    serial: int,
    now_ms: int,
) -> tuple[ServingGroup, ...]:
    """The groups of `targets` (group -> new combo) after the begin of their switches.

    Groups that are not completely ready, and groups for which `room` is too small, do not switch
    now.
    """
    found: list[ServingGroup] = []
    for group in sorted(groups, key=lambda g: (g.created_ms, g.name)):
        target = combos.get(targets.get(group.name, ""))
        if target is None or not room.fits(group):
            continue
        new = switched_to(group, target, f"{target.id}:{serial + len(found)}", now_ms)
        if new is not None:
            room = room.without(group)
            found.append(new)
    return tuple(found)


def switchable(groups: Sequence[ServingGroup], room: SwitchRoom) -> tuple[ServingGroup, ...]:
    """The groups of each combo that may switch now, if no groups of other combos switch; the oldest
    first."""
    found: list[ServingGroup] = []
    left: dict[str, SwitchRoom] = {}
    for group in sorted(groups, key=lambda g: (g.created_ms, g.name)):
        own = left.get(group.combo_id, room)
        if len(group.placed) > 1 and _may(group) and own.fits(group):
            left[group.combo_id] = own.without(group)
            found.append(group)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class SwitchRoom:
    """Capacity that may leave the routes for a role switch. ready_req_per_s: capacity of each
    completely ready group, by name. spare_req_per_s: capacity of these groups in excess of the
    requests/s that must stay. floor: number of groups that must stay.
    """

    ready_req_per_s: Mapping[str, float]
    spare_req_per_s: float
    floor: int

    def fits(self, group: ServingGroup) -> bool:
        """Whether `group` may stop serving during a switch."""
        rate = self.ready_req_per_s.get(group.name)
        if rate is None or len(self.ready_req_per_s) <= self.floor:
            return False
        return rate <= self.spare_req_per_s + 1e-9

    def without(self, group: ServingGroup) -> SwitchRoom:
        """The room that is left while `group` switches."""
        left = {name: rate for name, rate in self.ready_req_per_s.items() if name != group.name}
        rate = self.ready_req_per_s[group.name]
        return SwitchRoom(left, self.spare_req_per_s - rate, self.floor)


def view_at_once(group: ServingGroup, before: GroupView) -> GroupView:
    """The view of a group that starts to switch: instances that keep their phase continue to
    serve."""
    phases = {placed.instance: placed.phase for placed in group.placed}
    ready = tuple(
        (placed, address)
        for placed, address in before.ready
        if phases.get(placed.instance) is placed.phase
    )
    return GroupView(ready, False, None, before.lost)


def advance(
    group: ServingGroup,
    view: GroupView,
    gateways: Sequence[GatewayReport],
    fleet: FleetView,
    assignments: Mapping[str, Assignment],
    now_ms: int,
) -> ServingGroup:
    """Advance the switch of a group by one step. If the inputs have not changed, the call changes
    nothing."""
    switch = group.switch
    assert switch is not None  # noqa: S101  only such groups are asked
    if not switch.asked:
        if not confirmed(group, gateways, now_ms):
            return group
        return replace(group, switch=replace(switch, asked=True), exit=RouteExit())
    if view.all_ready:
        return replace(group, switch=None)
    if _rolled_back(group, switch, fleet, assignments):
        return _with_former_phases(group, switch, now_ms)
    return group


def _with_former_phases(group: ServingGroup, switch: Switch, now_ms: int) -> ServingGroup:
    return replace(
        group,
        name=switch.source,
        combo_id=combo_id_of(switch.source),
        placed=switch.placed,
        since_ms=now_ms,
        exit=RouteExit(),
        switch=None,
        stays=True,
    )


def _rolled_back(
    group: ServingGroup, switch: Switch, fleet: FleetView, assignments: Mapping[str, Assignment]
) -> bool:
    """Whether the switch failed: an executor has read the new phases, but an instance serves in its
    old phase. (An instance that has not begun to switch reports SWITCHING once its executor has
    read the new assignment.)
    """
    before = {placed.instance: placed.phase for placed in switch.placed}
    for placed in group.placed:
        seen, status = fleet.instances.get(placed.instance), fleet.statuses.get(placed.node)
        assignment = assignments.get(placed.node)
        if seen is None or status is None or assignment is None:
            continue
        old = before[placed.instance]
        if old is placed.phase or seen.phase != old or seen.state is not InstanceState.READY:
            continue
        asked = any(
            wish.instance == placed.instance and wish.phase == placed.phase
            for wish in assignment.instances
        )
        if asked and status.observed_generation >= assignment.generation:
            return True
    return False
