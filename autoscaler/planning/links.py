"""Declared networks between pools: the bandwidth for KV from one pool to another."""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S


def link_gb_s(one: Pool, other: Pool) -> float:
    """Bandwidth in 1e9 bytes/s from a GPU of one pool to a GPU of the other.

    The bandwidth inside a node is used only if both are the same pool of a single node; otherwise
    the two may be on different nodes. A pool that declares no network is assumed to have 200
    Gbit/s.
    """
    if _one_node(one, other):
        return one.gpu.interconnect_gb_s
    return min(pool.between_gb_s or KV_LINK_GB_PER_S for pool in (one, other))


def assumed_links(pools: Iterable[Pool]) -> tuple[str, ...]:
    """Pools of a prefill-decode pair that use a network between nodes but do not declare it, as
    region/name."""
    members = tuple(pools)
    if len(members) < 2 and all(_one_node(pool, pool) for pool in members):
        return ()
    return tuple(f"{pool.region}/{pool.name}" for pool in members if not pool.between_gb_s)


def _one_node(one: Pool, other: Pool) -> bool:
    return one.id == other.id and one.max_nodes == 1
