"""Apply one model's change: start, switch and retire groups, and compute the cost.

A planner answer or an approved proposal names the change. `sizing.scale_in` decides whether a
removal may begin. A part that cannot begin now is left out, with a reason; nothing replaces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.rollout.capacity_and_cost import billed_usd_per_h, raw_req_per_s
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.role_switch import SwitchRoom, switch_groups
from autoscaler.rollout.serving_group import ServingGroup, combo_id_of
from autoscaler.rollout.waves import retire
from autoscaler.sizing.scale_in.conditions import slo_pressure
from autoscaler.sizing.scale_in.removal import is_exchange, raw_req_per_s_of
from autoscaler.sizing.scale_in.reversals import after_move
from autoscaler.state.model_state import Hysteresis, ModelState
from autoscaler.state.model_view import RATE_EPSILON, ModelView
from topics.reason_codes import ReasonCode

_MAKE_ROOM_MS = 60_000


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one model's groups that begins now. starts: combo id -> count. switches: group
    -> new combo. leaves: groups to remove. left_out: the reason why a part is left out.
    makes_room: whether serving groups may leave before the additions start. urgent: whether the
    model is below target, so that the change counts as an addition, however small the gain."""

    starts: Counter[str] = field(default_factory=Counter)
    switches: Mapping[str, str] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()
    left_out: Reason | None = None
    makes_room: bool = False
    urgent: bool = False

    @property
    def adds(self) -> Counter[str]:
        """Combos that the model has more of afterwards: started, or the targets of switches."""
        return self.starts + Counter(self.switches.values())

    @property
    def removes(self) -> Counter[str]:
        """Combos that the model has fewer of afterwards: removed, or the sources of switches."""
        return Counter(combo_id_of(name) for name in (*self.leaves, *self.switches))

    def names_only(self, groups: Iterable[ServingGroup]) -> bool:
        """Whether all groups that this change names are among `groups`."""
        return {*self.leaves, *self.switches} <= {group.name for group in groups}


def planned_change(change: FleetChange) -> Change:
    """The whole of `change`, the planned change of one model."""
    return Change(Counter(dict(change.starts)), dict(change.switches), change.leaves)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change after it was applied. groups: the groups of all models. site: free capacity after
    the change. started: placed groups; switched: groups that change roles in place; going: groups
    that retire, and the switched groups before their switch. unplaced: combos without room.
    delta_usd_per_h: change of the bill. state: new state of the model. left_out: the reason why a
    part is missing.
    """

    groups: Mapping[str, ServingGroup]
    site: FreeCapacity
    state: ModelState
    started: tuple[ServingGroup, ...]
    switched: tuple[ServingGroup, ...]
    going: tuple[ServingGroup, ...]
    unplaced: Counter[str]
    delta_usd_per_h: float
    left_out: Reason | None

    @property
    def change(self) -> tuple[tuple[str, int], ...]:
        """Combos added (+) and removed (-)."""
        found = Counter(group.combo_id for group in (*self.started, *self.switched))
        found.subtract(group.combo_id for group in self.going)
        return tuple(sorted((combo, n) for combo, n in found.items() if n))

    @property
    def named(self) -> FleetChange:
        """The same change by groups."""
        starts = Counter(group.combo_id for group in self.started)
        switches = ((g.switch.source, g.combo_id) for g in self.switched if g.switch)
        was = {group.switch.source for group in self.switched if group.switch}
        leaves = (group.name for group in self.going if group.name not in was)
        return FleetChange(tuple(sorted(starts.items())), tuple(switches), tuple(leaves))

    @property
    def kind(self) -> str:
        """The kind of the decision about this change."""
        return kind_of(bool(self.started or self.switched), bool(self.going))


def apply_change(
    change: Change,
    service: Service,
    counting: Iterable[ServingGroup],
    groups: Mapping[str, ServingGroup],
    site: FreeCapacity,
    state: ModelState,
    fleet: TickFleet,
    short: float = 0.0,
) -> AppliedChange:
    """Apply `change`. counting: the model's groups that count as capacity, among them all groups
    that `change` names; groups: the groups of all models, by name. short: demand that the plan
    leaves unserved; if it is above 0, removals make room for other models."""
    if not (change.starts or change.switches or change.leaves):
        return AppliedChange(groups, site, state, (), (), (), Counter(), 0.0, change.left_out)
    counting = list(counting)
    prices = fleet.cluster.prices_usd_per_h()
    before_usd = billed_usd_per_h(groups.values(), fleet.sight, prices)
    switched = _switched(change, service, counting, site, fleet)
    was = {group.switch.source for group in switched if group.switch}
    waits = change.switches.keys() - was
    site = replace(site, serial=site.serial + len(switched))
    version = fleet.launch_version(service.model)
    placed = start(change.starts, fleet.combos, service, site, fleet.now_ms, version)
    counting = [group for group in counting if group.name not in was]
    if waits or placed.unplaced:
        left_out = no_room(placed.unplaced) if placed.unplaced else switch_waits(waits)
        leaves = _affordable(change, placed.groups, counting, service, fleet, bool(switched))
        change = replace(change, leaves=leaves, left_out=left_out)
    kept = {name: group for name, group in groups.items() if name not in was}
    gone = frozenset(change.leaves)
    leave = [group for group in counting if group.name in gone]
    kept |= {group.name: group for group in (*switched, *placed.groups)}
    staying = [group for group in kept.values() if group.name not in gone]
    delta_usd = billed_usd_per_h(staying, fleet.sight, prices) - before_usd
    makes_room = bool(leave and placed.unplaced)
    yields = short > RATE_EPSILON or makes_room
    after = tuple(group.name for group in placed.groups)
    kept |= {g.name: retire(g, fleet.now_ms, after, yields) for g in leave}
    if makes_room:
        until_ms = fleet.now_ms + _MAKE_ROOM_MS
        unmet = replace(state.infeasibility, preemption_until_ms=until_ms)
        state = replace(state, infeasibility=unmet)
    come = (*placed.groups, *switched)
    going = (*leave, *(groups[name] for name in sorted(was)))
    if come or going:
        net = raw_req_per_s(come, fleet.combos) - raw_req_per_s(going, fleet.combos)
        view = fleet.views[service.model]
        both = bool(come and going)
        state = after_change(state, net, both, view, outward=change.urgent and bool(come))
    return AppliedChange(
        kept, placed.site, state, placed.groups, switched, going, placed.unplaced, delta_usd,
        change.left_out,
    )  # fmt: skip


def _switched(
    change: Change,
    service: Service,
    counting: list[ServingGroup],
    site: FreeCapacity,
    fleet: TickFleet,
) -> tuple[ServingGroup, ...]:
    """The groups whose role switch begins. A group serves less during its switch, so only as many
    groups switch as demand allows. For an overloaded model that gains capacity, the disruption
    budget is the limit instead.
    """
    if not change.switches:
        return ()
    gains = raw_req_per_s_of(change.adds, fleet.combos) > raw_req_per_s_of(
        change.removes, fleet.combos
    )
    view = fleet.views[service.model]
    room = room_to_switch(view, service, counting, fleet.combos, fleet.sight, gains)
    return switch_groups(change.switches, counting, fleet.combos, room, site.serial, fleet.now_ms)


def room_to_switch(
    view: ModelView,
    service: Service,
    counting: Iterable[ServingGroup],
    combos: Mapping[str, Combo],
    sight: FleetSnapshot,
    gains: bool,
) -> SwitchRoom:
    """Capacity that may stop serving for a role switch, in addition to switches in progress. gains:
    whether the model has more capacity afterwards."""
    known = [group for group in counting if group.combo_id in combos]
    away = [combos[group.combo_id].req_per_s for group in known if group.switch]
    ready = {
        group.name: combos[group.combo_id].req_per_s
        for group in known
        if sight.views[group.name].all_ready
    }
    needed = view.raw_for(view.state.target.req_per_s)
    spare = max(0.0, sum(ready.values()) - needed)
    if gains and slo_pressure(view.demand, service):
        at_a_time = service.max_leaving_req_per_s([*ready.values(), *away])
        spare = max(spare, at_a_time - sum(away))
    return SwitchRoom(ready, spare, service.min_instances)


def kind_of(adds: bool, removes: bool) -> str:
    """The kind of a decision with additions, removals or both."""
    if adds and removes:
        return "replan"
    return "scale_in" if removes else "scale_out"


def after_change(
    state: ModelState, net_req_per_s: float, both: bool, view: ModelView, *, outward: bool = False
) -> ModelState:
    """The state after a change of capacity. both: whether combos were both added and removed; then
    the change is no reversal if the capacity stays about equal. outward: whether the change counts
    as an addition, however small."""
    turns, now_ms = state.hysteresis.reversals, view.now_ms
    exchange = both and is_exchange(net_req_per_s, view) and not outward
    out = outward or (net_req_per_s > 0.0 and not exchange)
    into = net_req_per_s < 0.0 and not exchange and not outward
    if out or into:
        turns = after_move(turns, "out" if out else "in", now_ms)
    last_out_ms = now_ms if out else state.hysteresis.last_out_ms
    state = replace(state, hysteresis=Hysteresis(turns, last_out_ms))
    if not out:
        return state
    return replace(
        state,
        target=replace(state.target, overload_since_ms=0),
        capacity=replace(state.capacity, lost_ms=0, lost_nodes=()),
    )


def no_room(unplaced: Iterable[str]) -> Reason:
    """The reason that names combos without room."""
    return Reason(ReasonCode.NO_ROOM, names=tuple(sorted(unplaced)))


def switch_waits(groups: Iterable[str]) -> Reason:
    """The reason that names groups whose role switch cannot begin now."""
    return Reason(ReasonCode.SWITCH_WAITS, names=tuple(sorted(groups)))


def _affordable(
    change: Change,
    placed: Iterable[ServingGroup],
    counting: list[ServingGroup],
    service: Service,
    fleet: TickFleet,
    switches: bool,
) -> tuple[str, ...]:
    """The groups of `change` that leave although some additions found no room: as many as the
    capacity allows. If the plan makes room, groups within the disruption budget, which role
    switches in place use too, are removed first. Further removals wait until that room is used.
    """
    view = fleet.views[service.model]
    spare = raw_req_per_s(counting, fleet.combos) + raw_req_per_s(placed, fleet.combos)
    spare -= view.raw_for(view.state.target.req_per_s)
    budget = max(0.0, spare)
    if change.makes_room and not switches:
        each = (raw_req_per_s([group], fleet.combos) for group in counting)
        budget = max(budget, service.max_leaving_req_per_s(each))
    allowed: list[str] = []
    groups = {group.name: group for group in counting}
    for name in change.leaves:
        rate = raw_req_per_s([groups[name]], fleet.combos)
        if rate <= budget + RATE_EPSILON:
            allowed.append(name)
            budget -= rate
    return tuple(allowed)
