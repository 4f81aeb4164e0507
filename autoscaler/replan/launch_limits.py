"""Nodes and pools on which instances may be launched at this moment."""

from __future__ import annotations

from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.backoff import resting_nodes, scarce_pools
from autoscaler.rollout.capacity_and_cost import rented_since_ms
from autoscaler.rollout.supply import obtainable


def unusable_nodes(fleet: TickFleet) -> frozenset[str]:
    """Nodes on which nothing may be launched now."""
    return fleet.sight.unusable | resting_nodes(fleet.inputs.backoff, fleet.now_ms)


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
