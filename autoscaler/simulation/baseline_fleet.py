"""Instances of a baseline policy: added one by one, drained one by one, never replaced.

Keeps groups and their records for policies that decide only counts. A drained group leaves the
routes and its node in one step, as a Kubernetes pod leaves its endpoints when it is deleted. The
group's requests finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.planning.time_limits import drain_timeout_s
from autoscaler.rollout.assignments import changed_assignments, changed_routes, route_groups
from autoscaler.rollout.bin_packing import place, used_gpus
from autoscaler.rollout.capacity_and_cost import rented_since_ms
from autoscaler.rollout.multi_node import without
from autoscaler.rollout.serving_group import (
    FleetView,
    GroupView,
    Life,
    Placed,
    ServingGroup,
    fleet_view,
    observe_group,
)
from autoscaler.rollout.supply import Supply, fold, obtainable
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from topics.decisions import Decision
from topics.fleet import Assignment, InstanceState
from topics.routing import Routes

_LOST_MS = 30_000
_ENDED = (InstanceState.STOPPED, InstanceState.FAILED)


def _ended(placed: Placed, fleet: FleetView) -> bool:
    instance = fleet.instances.get(placed.instance)
    return instance is not None and instance.state in _ENDED


class BaselineFleet:
    """The groups of a baseline policy. lengths: request lengths by model, from which the slots and
    weights in the routes are computed."""

    def __init__(self, cluster: Cluster, lengths: Mapping[str, Lengths]) -> None:
        self._lengths = {s.model: lengths.get(s.model, s.lengths) for s in cluster.services}
        self._combos: dict[str, Combo] = {}
        self._groups: tuple[ServingGroup, ...] = ()
        self._views: dict[str, GroupView] = {}
        self._assignments: dict[str, Assignment] = {}
        self._routes: dict[str, Routes] = {}
        self._decisions: list[Decision] = []
        self._serial = 0
        self._supply = Supply()

    def observe(self, inputs: DeciderInput, now_ms: int) -> None:
        """Read the statuses and offers. Groups that have ended, failed or been lost are dropped."""
        self._supply = fold(self._supply, inputs.cluster, {}, inputs.availability, now_ms)
        fleet = fleet_view(inputs.statuses)
        timeout_ms = int(1000 * inputs.cluster.policy.start_timeout_s)
        self._views = {
            g.name: observe_group(g, fleet, now_ms, timeout_ms, _LOST_MS) for g in self._groups
        }
        kept = []
        for group in self._groups:
            view = self._views[group.name]
            if group.life is Life.DRAINING:
                group = without(group, lambda placed: _ended(placed, fleet))
            states = [
                fleet.instances[p.instance].state
                for p in group.placed
                if p.instance in fleet.instances
            ]
            ended = group.life is Life.DRAINING and (
                not states or all(state in _ENDED for state in states)
            )
            if not (ended or view.broken or view.lost):
                kept.append(group)
        self._groups = tuple(kept)

    def active_groups(self, model: str) -> tuple[ServingGroup, ...]:
        """Groups of `model` that are not draining, oldest first."""
        return tuple(g for g in self._groups if g.model == model and g.life is Life.ACTIVE)

    def is_ready(self, group: ServingGroup) -> bool:
        """Whether every instance of `group` serves."""
        view = self._views.get(group.name)
        return view is not None and view.all_ready

    def requests_in_engines(self, inputs: DeciderInput, model: str) -> int:
        """Number of requests in the engines of `model`."""
        return sum(
            instance.in_flight
            for status in inputs.statuses.values()
            for instance in status.instances
            if instance.model == model
        )

    def offered_nodes(self, cluster: Cluster) -> dict[str, int]:
        """Further nodes that can be rented, by pool id; pools without a feed are missing."""
        return obtainable(self._supply, cluster.pools, rented_since_ms(self._groups), ())

    def add(self, combo: Combo, cluster: Cluster, inputs: DeciderInput, now_ms: int) -> bool:
        """Start one `combo`; False if no node has room, and no further node is offered."""
        used = used_gpus(self._groups, inputs.statuses.values())
        self._serial += 1
        found = place(combo, self._serial, cluster, used, self.offered_nodes(cluster))
        if found is None:
            return False
        self._combos[combo.id] = combo
        name = f"{combo.id}:{self._serial}"
        engine = cluster.service(combo.model).engine
        group = ServingGroup(name, combo.model, combo.id, engine, found[0], now_ms)
        self._groups = (*self._groups, group)
        self._views[name] = observe_group(group, fleet_view({}), now_ms, 1 << 60, _LOST_MS)
        return True

    def drain(self, group: ServingGroup, now_ms: int) -> None:
        """Drain `group`: its requests finish, then it stops."""
        gone = replace(group, life=Life.DRAINING, since_ms=now_ms)
        self._groups = tuple(gone if g.name == group.name else g for g in self._groups)

    def record_decision(self, model: str, change: Mapping[str, int], why: str, now_ms: int) -> None:
        """Record the groups added and removed, in the form of the controller's decisions."""
        net = sum(n * self._combos[c].usd_per_h for c, n in change.items())
        total = sum(change.values())
        self._decisions.append(
            Decision(
                number=1,
                leader_token=1,
                model=model,
                kind="scale_out" if total > 0 else "scale_in" if total < 0 else "replan",
                at_ms=now_ms,
                applied=True,
                reason=why,
                cost_delta_usd_per_h=net,
                change=tuple(sorted(change.items())),
            )
        )

    def output(self, cluster: Cluster, now_ms: int) -> DeciderOutput:
        """The records of this tick."""
        drains_ms = {
            service.model: int(1000 * drain_timeout_s(service, cluster.policy))
            for service in cluster.services
        }
        assignments = changed_assignments(self._groups, self._assignments, 1, now_ms, drains_ms)
        self._assignments.update({record.node: record for record in assignments})
        changed = []
        for service in cluster.services:
            mine = [group for group in self._groups if group.model == service.model]
            ends = route_groups(mine, self._views, self._combos, self._lengths[service.model])
            new = changed_routes(service, ends, self._routes.get(service.model), 1, now_ms)
            if new is not None:
                self._routes[service.model] = new
                changed.append(new)
        decisions, self._decisions = tuple(self._decisions), []
        return DeciderOutput(assignments=assignments, routes=tuple(changed), decisions=decisions)
