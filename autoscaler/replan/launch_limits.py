"""Nodes and pools on which instances may be launched at this moment."""

from __future__ import annotations

from autoscaler.domain.node_names import node_ids
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.backoff import full_pools, resting_nodes, scarce_pools
from autoscaler.rollout.capacity_and_cost import nodes_of, rented_since_ms
from autoscaler.rollout.supply import obtainable


def unusable_nodes(fleet: TickFleet) -> frozenset[str]:
    """Nodes on which nothing may be launched now. In a full pool these are all nodes without a
    group that counts as capacity."""
    if not fleet.inputs.backoff:
        return fleet.sight.unusable
    unusable = fleet.sight.unusable | resting_nodes(fleet.inputs.backoff, fleet.now_ms)
    full = full_pools(fleet.inputs.backoff, fleet.now_ms)
    if not full:
        return unusable
    carrying = nodes_of(group for group in fleet.groups if fleet.sight.counts(group))
    pools = (pool for pool in fleet.cluster.pools if pool.id in full)
    return unusable | {node for pool in pools for node in node_ids(pool) if node not in carrying}


def obtainable_nodes(fleet: TickFleet) -> dict[str, int]:
    """Further nodes that can be rented, per rented pool with known supply."""
    rented = rented_since_ms(fleet.groups)
    pools = fleet.cluster.pools
    return obtainable(fleet.inputs.supply, pools, rented, _closed_pools(fleet))


def _closed_pools(fleet: TickFleet) -> frozenset[str]:
    """Pools in which nothing may be launched now."""
    sight, backoff = fleet.sight, fleet.inputs.backoff
    if not backoff:
        return sight.shut_pools
    return sight.shut_pools | scarce_pools(backoff, sight.serving_pools(), fleet.now_ms)
