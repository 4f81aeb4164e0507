"""A snapshot of the fleet: every group as executors report it, lost nodes, and regions without a
connection."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Phase
from autoscaler.estimate.engine_rate import GroupCount
from autoscaler.rollout.role_switch import view_at_once
from autoscaler.rollout.serving_group import (
    FORGOTTEN_MS,
    FleetView,
    GroupView,
    ServingGroup,
    carry_view,
    fleet_view,
    observe_group,
)
from topics.fleet import InstanceState, Status

_IDLE = 3  # factor on the allowed silence of an idle node, which reports less often
_IDLE_SPEAKS_MS = 11_000  # at least this, in ms, because an idle node reports every ten seconds
_CUT_OFF = 2
"""Number of nodes whose common silence means that the region cannot be reached. One silent node
alone is a lost node."""
_NO_LAUNCH_MS = 1_800_000
"""Time in ms without launches in an unreachable region."""
_STAYS_CUT_MS = 3_600_000
"""Time in ms after which nodes of an unreachable region are given up. Owned nodes are never given
up."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment.

    views: by group name. silent: nodes without a status for `policy.node_silent_s`. lost: silent
    owned nodes and silent nodes with instances (a silent idle rented node is released). gone: lost
    nodes that were given up after ten minutes. unusable: silent nodes that get no launch. A rented
    node that is gone may be launched again; an owned node must first report again.

    cut_pools: pools of regions with a broken connection: instances served there, and now none of
    the known nodes (at least two) reports. Owned nodes of such a region are not given up, and
    rented nodes only after an hour. shut_pools: cut pools that get no launch, for half an hour from
    the last status, because their nodes may be dead after that. reclaimed: nodes with a reclaim
    notice, each with its reclaim time; they get no launch.
    """

    fleet: FleetView
    views: Mapping[str, GroupView]
    silent: frozenset[str]
    gone: frozenset[str]
    unusable: frozenset[str]
    cut_pools: frozenset[str]
    shut_pools: frozenset[str] = frozenset()
    reclaimed: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()

    def reclaim_ms(self, group: ServingGroup) -> int:
        """Reclaim time of the first node of `group` to be reclaimed; 0 = no node is reclaimed."""
        found = [self.reclaimed[p.node] for p in group.placed if p.node in self.reclaimed]
        return min(found, default=0)

    def counts(self, group: ServingGroup) -> bool:
        """Whether `group` counts as planned capacity: it is active, not broken, and its nodes
        report."""
        return group.counts and not self.views[group.name].lost

    def reachable(self, groups: Iterable[ServingGroup]) -> list[ServingGroup]:
        """`groups` without those with a lost node, unless its region is cut off."""
        return [
            group
            for group in groups
            if not self.views[group.name].lost
            or any(p.pool in self.cut_pools and p.node not in self.gone for p in group.placed)
        ]

    def counting(self, groups: Iterable[ServingGroup]) -> tuple[ServingGroup, ...]:
        """The groups that count as planned capacity, in their order."""
        return tuple([group for group in groups if self.counts(group)])

    def unpaid(self, groups: Iterable[ServingGroup]) -> frozenset[str]:
        """Silent nodes that are not on the bill: all except the nodes of `groups` that are not
        lost. (A new node, which is on the bill before its first status, may have the name of a node
        that is gone.)"""
        if not self.silent:
            return self.silent
        # A group without a view was just placed.
        seen = ((self.views.get(group.name), group) for group in groups)
        kept = (group for view, group in seen if view is None or not view.lost)
        return self.silent - {placed.node for group in kept for placed in group.placed}

    def load_feeds(self, groups: Iterable[ServingGroup]) -> tuple[str, ...]:
        """Addresses where the executors of `groups` report the load of their engines, sorted."""
        nodes = {placed.node for group in groups for placed in group.placed}
        statuses = [self.fleet.statuses[node] for node in nodes if node in self.fleet.statuses]
        return tuple(sorted({status.load_feed for status in statuses if status.load_feed}))

    def accepted(self, groups: Iterable[ServingGroup]) -> dict[str, GroupCount]:
        """Requests that each of `groups` accepted: finished and in flight. Groups are left out if
        an instance is not reported, and if they serve although no request has finished, because
        older executors do not count.

        Only decode and aggregated instances end a request, so finished prefills do not count.
        Groups of a model of components are left out, because several of their instances in turn
        finish one request.
        """
        counts = {}
        for group in groups:
            seen = [self.fleet.instances.get(placed.instance) for placed in group.placed]
            nodes = [self.fleet.statuses.get(placed.node) for placed in group.placed]
            reported = [one for one in seen if one is not None]
            statuses = [status for status in nodes if status is not None]
            if len(reported) < len(seen) or len(statuses) < len(nodes):
                continue
            finished = sum(
                one.finished
                for placed, one in zip(group.placed, reported, strict=True)
                if placed.phase is not Phase.PREFILL
            )
            uncounted = self.views[group.name].all_ready and not finished
            if uncounted or group.placed[0].deployment:
                continue
            counts[group.name] = GroupCount(
                min(status.at_ms for status in statuses),
                finished + sum(one.in_flight for one in reported),
            )
        return counts

    def with_new(self, groups: Iterable[ServingGroup]) -> FleetSnapshot:
        """The snapshot with views of newly placed groups. None of their instances is ready, except
        in groups that switch roles."""
        nothing = GroupView((), False, None, False)
        new = {
            g.name: view_at_once(g, self.views.get(g.switch.source, nothing))
            if g.switch
            else nothing
            for g in groups
            if g.name not in self.views
        }
        return replace(self, views={**self.views, **new}) if new else self

    def with_undone(
        self, before: Iterable[ServingGroup], after: Iterable[ServingGroup]
    ) -> FleetSnapshot:
        """The snapshot with views of groups whose role switch was undone. Instances that keep their
        role continue to serve."""
        switched = {group.switch.source: group.name for group in before if group.switch}
        undone = [g for g in after if g.name in switched and g.name not in self.views]
        new = {g.name: carry_view(g, self.fleet, self.views[switched[g.name]]) for g in undone}
        return replace(self, views={**self.views, **new}) if new else self

    def serving_pools(self) -> frozenset[str]:
        """Pools with at least one ready instance."""
        return frozenset(
            status.pool
            for node, status in self.fleet.statuses.items()
            if status.instances
            and node not in self.silent
            and any(seen.state is InstanceState.READY for seen in status.instances)
        )


def snapshot(
    groups: Iterable[ServingGroup],
    statuses: Mapping[str, Status],
    combos: Mapping[str, Combo],
    cluster: Cluster,
    now_ms: int,
    listens_since_ms: int,
) -> FleetSnapshot:
    """The fleet from the latest status of each node.

    now_ms: a moment up to which all statuses were read. If the controller is behind, this moment is
    in the past, so that unread statuses do not count as silence. listens_since_ms: time from which
    this leader reads statuses. Until the leader has listened for as long as a node may be silent,
    old statuses mean that the broker was away, not that nodes are lost.
    """
    fleet = fleet_view(statuses)
    silent_ms = int(cluster.policy.node_silent_s * 1000)
    if now_ms - listens_since_ms < _may_be_silent_ms(silent_ms):
        silent_ms = now_ms  # longer than any silence
    # A tick checks thousands of nodes, so a healthy node must need only one comparison.
    heard_ms = now_ms - silent_ms
    silent = frozenset(
        node
        for node, status in statuses.items()
        if status.at_ms < heard_ms
        and now_ms - status.at_ms > silent_ms * (1 if status.instances else _IDLE)
    )
    owned = {pool.id for pool in cluster.pools if pool.market is Market.OWNED}
    cut = _cut_regions(cluster, statuses, now_ms, silent_ms) if silent else {}
    cut_pools = frozenset(pool.id for pool in cluster.pools if pool.region in cut)
    shut_pools = frozenset(
        pool.id
        for pool in cluster.pools
        if pool.region in cut and now_ms - cut[pool.region] < _NO_LAUNCH_MS
    )
    given_up_ms = {
        pool: (math.inf if pool in owned else _STAYS_CUT_MS) if pool in cut_pools else FORGOTTEN_MS
        for pool in {statuses[node].pool for node in silent}
    }
    gone = frozenset(
        node for node in silent if now_ms - statuses[node].at_ms > given_up_ms[statuses[node].pool]
    )
    unusable = frozenset(
        node for node in silent if node not in gone or statuses[node].pool in owned
    )
    reclaimed = {
        node: status.reclaim_ms
        for node, status in statuses.items()
        if status.reclaim_ms and node not in gone
    }
    unusable |= reclaimed.keys()
    views = {}
    for group in groups:
        timeout_s = cluster.policy.start_timeout_s
        combo = combos.get(group.combo_id)
        if combo is not None:
            timeout_s = max(timeout_s, 2.0 * combo.start_s)
        views[group.name] = observe_group(group, fleet, now_ms, int(timeout_s * 1000), silent_ms)
    lost = frozenset(n for n in silent if statuses[n].instances or statuses[n].pool in owned)
    return FleetSnapshot(
        fleet, views, silent, gone, unusable, cut_pools, shut_pools, reclaimed, lost
    )


def _may_be_silent_ms(silent_ms: int) -> float:
    """Longest time in ms that a healthy node may send no status."""
    return max(0.75 * silent_ms, _IDLE_SPEAKS_MS)


def _cut_regions(
    cluster: Cluster, statuses: Mapping[str, Status], now_ms: int, silent_ms: int
) -> dict[str, int]:
    """The regions that are cut off, each with the time of its last status.

    A region is cut off if at least two of its nodes fell silent together, an instance serves on one
    of them, and no node of the region reports. Nodes past their reclaim time do not count. Idle
    nodes count only for a short time, because they may have been deleted. A node that fell silent
    long before the others is lost, not cut off.
    """
    # The last statuses in a cut region differ by at most the time that an idle node may be silent.
    heard_ms = _may_be_silent_ms(silent_ms)
    region_of = {pool.id: pool.region for pool in cluster.pools}
    of: dict[str, list[Status]] = {}
    for status in statuses.values():
        if status.pool in region_of:
            of.setdefault(region_of[status.pool], []).append(status)
    found: dict[str, int] = {}
    for region in sorted(of):
        last_ms = max(status.at_ms for status in of[region])
        if now_ms - last_ms <= heard_ms:
            continue
        witnesses = [
            status
            for status in of[region]
            if last_ms - status.at_ms <= heard_ms
            and not 0 < status.reclaim_ms <= now_ms
            and (status.instances or now_ms - status.at_ms <= FORGOTTEN_MS)
        ]
        if len(witnesses) >= _CUT_OFF and any(status.instances for status in witnesses):
            found[region] = last_ms
    return found
