"""Places new groups in free capacity, and cancels removals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.node_names import node_ids
from autoscaler.rollout.bin_packing import Used, place
from autoscaler.rollout.serving_group import Life, Placed, ServingGroup
from autoscaler.rollout.versions import Version, declared_version
from autoscaler.rollout.waves import reactivate

_CENT = 1e-9


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Room for new groups.

    used: GPUs in use. obtainable: number of nodes that can still be rented, by pool. shut: nodes
    that get no launch. serial: serial number of the next group. spare_usd_per_h: budget left for
    new nodes.
    """

    cluster: Cluster
    used: Used
    obtainable: Mapping[str, int]
    shut: Collection[str]
    serial: int
    spare_usd_per_h: float = math.inf


@dataclass(frozen=True, slots=True)
class Started:
    """Placed groups, the free capacity after them, and combos without room (combo id -> count)."""

    groups: tuple[ServingGroup, ...]
    site: FreeCapacity
    unplaced: Counter[str]


def revived(groups: Iterable[ServingGroup], now_ms: int) -> tuple[ServingGroup, ...]:
    """Cancel removals of groups that do not drain yet. Exception: groups that make room for other
    models, because they would be removed and revived endlessly.
    """
    return tuple(
        reactivate(group, now_ms)
        for group in groups
        if group.life in (Life.RETIRING, Life.UNROUTED)
        and not group.failed_ms
        and not group.exit.yields
    )


def start(
    adds: Mapping[str, int],
    combos: Mapping[str, Combo],
    service: Service,
    site: FreeCapacity,
    now_ms: int,
    version: Version | None = None,
) -> Started:
    """Place the combos of `adds`, larger combos first. Combos without room are left out. version:
    None = the declared one."""
    version = version or declared_version(service)
    groups: list[ServingGroup] = []
    unplaced: Counter[str] = Counter()
    order = sorted(adds, key=lambda i: (-sum(combos[i].gpus_by_pool().values()), i))
    for combo_id in order:
        for _ in range(adds[combo_id]):
            found = place(
                combos[combo_id], site.serial, site.cluster, site.used, _payable(site), site.shut
            )
            if found is None or _rent_usd_per_h(site, found[0]) > site.spare_usd_per_h + _CENT:
                unplaced[combo_id] += 1
                continue
            placed, used = found
            groups.append(
                ServingGroup(
                    name=f"{combo_id}:{site.serial}",
                    model=service.model,
                    combo_id=combo_id,
                    engine=version.engine,
                    placed=placed,
                    created_ms=now_ms,
                    since_ms=now_ms,
                    version=version.digest,
                )
            )
            site = _after(site, placed, used)
    return Started(tuple(groups), site, unplaced)


def _after(site: FreeCapacity, placed: tuple[Placed, ...], used: Used) -> FreeCapacity:
    """The free capacity after placing one more group, whose new nodes are no longer obtainable."""
    left = dict(site.obtainable)
    for pool in {p.node: p.pool for p in placed if p.node not in site.used}.values():
        if pool in left:
            left[pool] = max(0, left[pool] - 1)
    spare = site.spare_usd_per_h - _rent_usd_per_h(site, placed)
    return replace(site, used=used, obtainable=left, serial=site.serial + 1, spare_usd_per_h=spare)


def spare_usd_per_h(cluster: Cluster, billed: Collection[str]) -> float:
    """Budget left after all nodes on the bill; infinite without a budget.

    A draining node is on the bill until it is empty, and all pools share the budget. If a price
    increase makes the bill exceed the budget, the result is 0; free GPUs on nodes on the bill can
    still be used.
    """
    budget = cluster.policy.budget_usd_per_h
    if budget <= 0.0:
        return math.inf
    rented = [pool for pool in cluster.pools if pool.market is not Market.OWNED]
    paid = (
        pool.price_usd_per_h * sum(node in billed for node in node_ids(pool)) for pool in rented
    )
    return max(0.0, budget - sum(paid))


def _payable(site: FreeCapacity) -> Mapping[str, int]:
    """Number of further nodes of each pool that are obtainable within the budget."""
    if math.isinf(site.spare_usd_per_h):
        return site.obtainable
    found = dict(site.obtainable)
    for pool in site.cluster.pools:
        if pool.market is not Market.OWNED and pool.price_usd_per_h > 0.0:
            paid = max(0, int((site.spare_usd_per_h + _CENT) / pool.price_usd_per_h))
            found[pool.id] = min(found.get(pool.id, pool.max_nodes), paid)
    return found


def _rent_usd_per_h(site: FreeCapacity, placed: Iterable[Placed]) -> float:
    """Price of the nodes rented for `placed`."""
    pools = {p.node: site.cluster.pool(p.pool) for p in placed if p.node not in site.used}
    return sum(p.price_usd_per_h for p in pools.values() if p.market is not Market.OWNED)
