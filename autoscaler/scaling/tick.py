"""The scratch pad of one tick: what changes while a tick decides, and what it says.

Owns the bookkeeping that every step of a tick shares: groups, GPUs taken, combos known, numbers
of decisions. Decides nothing itself. Lives for one call of `decide` and is never seen outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from autoscaler.controller_state import ControllerState, ModelState, Observation, Scarcity
from autoscaler.demand.observed import UNKNOWN, ModelDemand
from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.planning.combos import combo_named
from autoscaler.planning.room import PoolRoom
from autoscaler.transitions.groups import Group, GroupView, fleet_view, look, ready_req_per_s
from autoscaler.transitions.placement import place, room, used_gpus
from topics.decisions import Decision
from topics.fleet import InstanceState

if TYPE_CHECKING:  # it brings the solver with it, which the tick does not need
    from autoscaler.planning.tables import ModelTable

LOST_MS = 60_000
_SCARCE_FIRST_MS = 120_000
_SCARCE_MOST_MS = 3_600_000


class Tick:
    """Everything a step of this tick may read and change."""

    def __init__(
        self, state: ControllerState, seen: Observation, cluster: Cluster, now_ms: int
    ) -> None:
        self.state = state
        self.seen = seen
        self.cluster = cluster
        self.now_ms = now_ms
        self.tables = dict(state.tables)
        self.combos = dict(state.combos)
        self.models: dict[str, ModelState] = {
            s.model: state.models.get(s.model, ModelState(s.lengths, stable_since_ms=now_ms))
            for s in cluster.services
        }
        self.groups: dict[str, Group] = {group.name: group for group in state.groups}
        self.scarce = dict(state.scarce)
        self.next_serial = state.next_serial
        self.refined_ms = state.refined_ms
        self.refinement_asked_ms = state.refinement_asked_ms
        self.gap = -1.0
        self.decisions: list[Decision] = []
        self.fleet = fleet_view(seen.statuses)
        self.shut = frozenset(
            node for node, s in seen.statuses.items() if now_ms - s.at_ms > LOST_MS
        )
        self.dark = self._dark_regions()
        for table in seen.tables:
            self._take_table(table)
        self.used = used_gpus(self.groups.values(), seen.statuses.values())
        self.views: dict[str, GroupView] = {}
        for group in self.groups.values():
            self.views[group.name] = self._look(group)

    def demand(self, model: str) -> ModelDemand:
        """What is known of the demand for `model`."""
        return self.seen.demand.get(model, UNKNOWN)

    def of(self, model: str) -> list[Group]:
        """All groups of `model`, whatever their life."""
        return [group for group in self.groups.values() if group.model == model]

    def counting(self, model: str) -> list[Group]:
        """Groups that are part of planned capacity: wanted, not broken, their nodes heard of."""
        return [g for g in self.of(model) if g.counts and not self.views[g.name].lost]

    def combo(self, group: Group) -> Combo | None:
        """The group's combo at the lengths its model's table is for; None if it cannot be known."""
        known = self.combos.get(group.combo_id)
        if known is not None:
            return known
        service = self.service(group.model)
        if service is None:
            return None
        lengths = self.lengths(group.model)
        try:
            found = combo_named(group.combo_id, self.cluster, service, lengths, self.state.profile)
        except InvalidValue:
            return None  # its pool or its model's size is not what it was declared with
        self.combos[group.combo_id] = found
        return found

    def lengths(self, model: str) -> Lengths:
        """The workload lengths that the combos of `model` are for."""
        table = self.tables.get(model)
        return table.lengths if table else self.models[model].lengths

    def service(self, model: str) -> Service | None:
        """The service of `model`, None if it is not declared any more."""
        return next((s for s in self.cluster.services if s.model == model), None)

    def raw_req_per_s(self, groups: Iterable[Group]) -> float:
        """Goodput of `groups` once they are all ready, before utilization."""
        combos = (self.combo(group) for group in groups)
        return sum(combo.req_per_s for combo in combos if combo is not None)

    def ready_req_per_s(self, group: Group) -> float:
        """Goodput of what is ready of `group`."""
        combo = self.combo(group)
        return ready_req_per_s(combo, self.views[group.name]) if combo else 0.0

    def room(self) -> dict[str, PoolRoom]:
        """What is free now."""
        return room(self.cluster, self.used, self.seen.obtainable, self.scarce_pools(), self.shut)

    def scarce_pools(self) -> frozenset[str]:
        """Pools that are left alone for now: after failed starts, or in a region gone dark."""
        failed = {pool for pool, mark in self.scarce.items() if mark.until_ms > self.now_ms}
        return frozenset(failed | {p.id for p in self.cluster.pools if p.region in self.dark})

    def mark_scarce(self, pool: str) -> float:
        """Leave `pool` alone, each time twice as long; how long in seconds."""
        mark = self.scarce.get(pool)
        recent = mark is not None and self.now_ms - mark.until_ms < _SCARCE_MOST_MS
        strikes = mark.strikes + 1 if mark and recent else 1
        wait_ms = min(_SCARCE_MOST_MS, _SCARCE_FIRST_MS << min(strikes - 1, 10))
        self.scarce[pool] = Scarcity(self.now_ms + wait_ms, strikes)
        return wait_ms / 1000

    def start(self, combo: Combo, service: Service) -> Group | None:
        """Place one more `combo`; None if it does not fit. It is wanted from now on."""
        found = place(
            combo, self.next_serial, self.cluster, self.used, self.seen.obtainable, self.shut
        )
        if found is None:
            return None
        placed, self.used = found
        group = Group(
            name=f"{combo.id}:{self.next_serial}",
            model=combo.model,
            combo_id=combo.id,
            engine=service.engine,
            placed=placed,
            created_ms=self.now_ms,
            since_ms=self.now_ms,
        )
        self.next_serial += 1
        self.combos.setdefault(combo.id, combo)
        self.groups[group.name] = group
        self.views[group.name] = self._look(group)
        return group

    def undo(self, groups: Iterable[Group]) -> None:
        """Forget groups started in this tick (recommendations, plans that do not fit whole)."""
        for group in groups:
            del self.groups[group.name]
            del self.views[group.name]
        self.used = used_gpus(self.groups.values(), self.seen.statuses.values())

    def billed_usd_per_h(self, without: Iterable[str] = ()) -> float:
        """Price of the nodes that wanted and leaving groups stand on, leaving out some by name."""
        gone = frozenset(without)
        nodes = {
            placed.node: placed.pool
            for group in self.groups.values()
            if group.name not in gone
            for placed in group.placed
        }
        prices = {pool.id: pool.price_usd_per_h for pool in self.cluster.pools}
        return sum(prices.get(pool, 0.0) for pool in nodes.values())

    def start_s(self, model: str) -> float:
        """How long instances of `model` take to start: measured where one did, else predicted."""
        measured, predicted = 0.0, 0.0
        for group in self.counting(model):
            combo = self.combo(group)
            predicted = max(predicted, combo.start_s if combo else 0.0)
            for placed in group.placed:
                seen = self.fleet.instances.get(placed.instance)
                if (
                    seen is not None
                    and seen.state is InstanceState.READY
                    and seen.restarts == 0
                    and 0 < seen.launched_ms <= seen.since_ms
                ):
                    measured = max(measured, (seen.since_ms - seen.launched_ms) / 1000)
        return measured or predicted

    def say(
        self,
        model: str,
        kind: str,
        reason: str,
        *,
        applied: bool = True,
        demand_req_per_s: float = 0.0,
        capacity_req_per_s: float = 0.0,
        cost_delta_usd_per_h: float = 0.0,
        over_since_ms: int = 0,
        change: tuple[tuple[str, int], ...] = (),
    ) -> None:
        """Record a decision."""
        service = self.service(model)
        acts = service is None or service.mode is Mode.ACT
        number = self.state.decision_number + len(self.decisions) + 1
        self.decisions.append(
            Decision(
                number,
                self.state.leader_token,
                model,
                kind,
                self.now_ms,
                applied and acts,
                reason,
                round(demand_req_per_s, 4),
                round(capacity_req_per_s, 4),
                round(cost_delta_usd_per_h, 4),
                over_since_ms,
                change,
            )
        )

    def update(self, model: str, **changes: object) -> None:
        """Remember something else of `model`."""
        self.models[model] = replace(self.models[model], **changes)  # type: ignore[arg-type]

    def _look(self, group: Group) -> GroupView:
        combo = self.combo(group)
        timeout_s = self.cluster.policy.start_timeout_s
        if combo is not None:
            timeout_s = max(timeout_s, 2.0 * combo.start_s)
        return look(group, self.fleet, self.now_ms, int(timeout_s * 1000), LOST_MS)

    def _dark_regions(self) -> frozenset[str]:
        """Regions of which only silent nodes are known: their executor will start nothing."""
        regions = {pool.id: pool.region for pool in self.cluster.pools}
        heard: dict[str, bool] = {}
        for node, status in self.seen.statuses.items():
            region = regions.get(status.pool)
            if region is not None:
                heard[region] = heard.get(region, False) or node not in self.shut
        return frozenset(region for region, alive in heard.items() if not alive)

    def _take_table(self, table: ModelTable) -> None:
        model = table.model
        if model not in self.models:
            return
        self.tables[model] = table
        for combo_id in [c for c, combo in self.combos.items() if combo.model == model]:
            del self.combos[combo_id]
        self.combos.update({combo.id: combo for combo in table.combos})
