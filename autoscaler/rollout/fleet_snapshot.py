"""What the fleet looks like at one moment: every group by what executors report of it.

Owns who counts as lost and which regions are cut off. Knows nothing of demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.combo import Combo
from autoscaler.rollout.role_switch import view_at_once
from autoscaler.rollout.serving_group import (
    FORGOTTEN_MS,
    FleetView,
    GroupView,
    ServingGroup,
    fleet_view,
    look,
    view_again,
)
from topics.fleet import InstanceState, Status

_IDLE = 3  # a node that runs nothing speaks less often
_IDLE_SPEAKS_MS = 11_000  # it says a word every ten seconds
_CUT_OFF = 2
_NO_LAUNCH_MS = 1_800_000
_STAYS_CUT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet now.

    views: by group name. silent: nodes not heard of for `policy.node_silent_s`; lost: of these,
    owned nodes and what ran something (a rented node that is idle is given back); gone: of these,
    nodes given up after ten minutes. unusable: silent nodes that get no launch; a rented node that
    is gone may be tried again, an owned one not before it is heard of. cut_pools: pools of regions
    in which something served and no known node (two at least) is heard of now: something lies
    between us and them, so nothing there is given up, of rented nodes for an hour; shut_pools: of
    these, pools in which nothing is started, for half an hour from the last word: by then the nodes
    may as well be dead. reclaimed: nodes that will be taken away (spot), with when that is; they
    get no launch.
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
        """When the first node of `group` is taken away; 0 = none is."""
        found = [self.reclaimed[p.node] for p in group.placed if p.node in self.reclaimed]
        return min(found, default=0)

    def counts(self, group: ServingGroup) -> bool:
        """Whether `group` is planned capacity: wanted, not broken, its nodes heard of."""
        return group.counts and not self.views[group.name].lost

    def unreachable(self, group: ServingGroup) -> bool:
        """Whether a node of `group` is lost, and not merely cut off from us with its region."""
        cut = any(p.pool in self.cut_pools and p.node not in self.gone for p in group.placed)
        return self.views[group.name].lost and not cut

    def unpaid(self, groups: Iterable[ServingGroup]) -> frozenset[str]:
        """Silent nodes, but for those under one of `groups` that is not lost: a node that got the
        name of one that is gone is paid for before it says its first word."""
        if not self.silent:
            return self.silent
        seen = ((self.views.get(group.name), group) for group in groups)  # None: just placed
        kept = (group for view, group in seen if view is None or not view.lost)
        return self.silent - {placed.node for group in kept for placed in group.placed}

    def load_feeds(self, groups: Iterable[ServingGroup]) -> tuple[str, ...]:
        """Where the executors of `groups` tell how busy their engines are, sorted."""
        nodes = {placed.node for group in groups for placed in group.placed}
        statuses = [self.fleet.statuses[node] for node in nodes if node in self.fleet.statuses]
        return tuple(sorted({status.load_feed for status in statuses if status.load_feed}))

    def with_new(self, groups: Iterable[ServingGroup]) -> FleetSnapshot:
        """The same sight with views of groups that were just placed: nothing of them is up yet,
        apart from what such a group has of the one that it was."""
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
        """The same sight with views of groups of `after` that are again what they were before they
        switched: what of them serves in its phase does so on."""
        switched = {group.switch.source: group.name for group in before if group.switch}
        undone = [g for g in after if g.name in switched and g.name not in self.views]
        new = {g.name: view_again(g, self.fleet, self.views[switched[g.name]]) for g in undone}
        return replace(self, views={**self.views, **new}) if new else self

    def serving_pools(self) -> frozenset[str]:
        """Pools on whose nodes some instance is ready."""
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
    """How everything is doing, from the latest status per node, at `now_ms`: a moment up to which
    all statuses were read. Where the controller is behind that is in the past, so that what it has
    not read yet is no silence.

    listens_since_ms: since when this leader hears executors. Until it has listened for as long as
    a node may say nothing, old words mean that the broker was away, not that nodes are lost.
    """
    fleet = fleet_view(statuses)
    silent_ms = int(cluster.policy.node_silent_s * 1000)
    if now_ms - listens_since_ms < _may_be_silent_ms(silent_ms):
        silent_ms = now_ms  # longer than any silence
    # Thousands of nodes, every tick: all is well with most of them, and told by one comparison.
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
        views[group.name] = look(group, fleet, now_ms, int(timeout_s * 1000), silent_ms)
    lost = frozenset(n for n in silent if statuses[n].instances or statuses[n].pool in owned)
    return FleetSnapshot(
        fleet, views, silent, gone, unusable, cut_pools, shut_pools, reclaimed, lost
    )


def _may_be_silent_ms(silent_ms: int) -> float:
    """How long a node may say nothing although all is well."""
    return max(0.75 * silent_ms, _IDLE_SPEAKS_MS)


def _cut_regions(
    cluster: Cluster, statuses: Mapping[str, Status], now_ms: int, silent_ms: int
) -> dict[str, int]:
    """Regions in which a node served, of two at least that fell silent together, and none is heard
    of; with when one last was. Of a node that was to be taken away by now nothing is to be heard,
    one that runs nothing may have been deleted: it is no witness for long; and one that fell silent
    long before the others is lost, whatever became of them."""
    # In a region that is cut off the last word of a node that runs nothing may be younger than that
    # of one that serves, by as long as it may be silent in order.
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
