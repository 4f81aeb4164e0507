"""Decider of a fixed fleet, a baseline for the production controller: constant assignments, and
routes to the ready instances. It does not replace lost instances.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.rollout.assignments import changed_assignments, changed_routes, route_groups
from autoscaler.rollout.bin_packing import Used, place
from autoscaler.rollout.serving_group import ServingGroup, fleet_view, observe_group
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from topics.fleet import Assignment, InstanceState
from topics.routing import Routes

_LOST_MS = 30_000


class FixedFleet:
    """Decider of a fixed fleet.

    counts: combo id -> number of groups. lengths: request lengths by model, from which slots and
    weights are computed.
    """

    def __init__(
        self, counts: Mapping[str, int], cluster: Cluster, lengths: Mapping[str, Lengths]
    ) -> None:
        self._counts = dict(counts)
        self._lengths = {
            service.model: lengths.get(service.model, service.lengths)
            for service in cluster.services
        }
        self._combos = combos_by_id(self._counts, cluster, self._lengths)
        self._groups: tuple[ServingGroup, ...] = ()
        self._assignments: dict[str, Assignment] = {}
        self._routes: dict[str, Routes] = {}
        self._seen: object = None  # the part of the statuses from which the routes follow

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """The output of one tick. now_ms: domain time in ms."""
        cluster = inputs.cluster
        seen = _fleet_key(inputs, now_ms)
        if seen is not None and seen == self._seen:
            return DeciderOutput()
        self._seen = seen
        if not self._groups:
            self._groups = place_groups(self._counts, cluster, self._combos, now_ms)
        assignments = changed_assignments(self._groups, self._assignments, 1, now_ms)
        self._assignments.update({record.node: record for record in assignments})
        view = fleet_view(inputs.statuses)
        policy = cluster.policy
        timeout_ms = int(1000 * policy.start_timeout_s)
        views = {g.name: observe_group(g, view, now_ms, timeout_ms, _LOST_MS) for g in self._groups}
        changed = []
        for service in cluster.services:
            mine = [group for group in self._groups if group.model == service.model]
            ends = route_groups(mine, views, self._combos, self._lengths[service.model])
            old = self._routes.get(service.model)
            new = changed_routes(service, ends, old, 1, now_ms)
            if new is not None:
                self._routes[service.model] = new
                changed.append(new)
        return DeciderOutput(assignments=assignments, routes=tuple(changed))


def _fleet_key(inputs: DeciderInput, now_ms: int) -> object:
    """A key that is equal for two ticks with equal routes; None while an instance starts or fails,
    because the routes then depend on time too."""
    key: list[tuple[str, str, bool]] = []
    for status in inputs.statuses.values():
        silent = now_ms - status.at_ms > _LOST_MS
        for one in status.instances:
            if one.state is not InstanceState.READY:
                return None
            key.append((one.instance, one.endpoint, silent))
    return (id(inputs.cluster), key) if key else None


def combos_by_id(
    counts: Mapping[str, int], cluster: Cluster, lengths: Mapping[str, Lengths]
) -> dict[str, Combo]:
    """The combos with the ids in `counts`, evaluated at each model's lengths. Raises InvalidValue
    for an unknown id."""
    found, profile = {}, cluster_profile(cluster)
    for combo_id in counts:
        model, _ = parse_combo_id(combo_id)
        service = cluster.service(model)
        found[combo_id] = evaluate_combo(combo_id, cluster, service, lengths[model], profile)
    return found


def place_groups(
    counts: Mapping[str, int], cluster: Cluster, combos: Mapping[str, Combo], now_ms: int = 0
) -> tuple[ServingGroup, ...]:
    """Groups for `counts` on an empty cluster. Raises InvalidValue if they do not fit."""
    groups: list[ServingGroup] = []
    used: Used = {}
    # Place larger slices first, because small slices would fragment the blocks that they need.
    order = sorted(counts, key=lambda c: (-max(m.gpus for m in combos[c].members), c))
    for combo_id in order:
        combo = combos[combo_id]
        for number in range(counts[combo_id]):
            serial = len(groups) + 1
            found = place(combo, serial, cluster, used, {})
            if found is None:
                raise InvalidValue(f"fleet: {combo_id}", counts[combo_id], f"at most {number}")
            where, used = found
            engine = cluster.service(combo.model).engine
            name = f"{combo_id}:{serial}"
            groups.append(ServingGroup(name, combo.model, combo_id, engine, where, now_ms))
    return tuple(groups)
