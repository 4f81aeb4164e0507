"""Back-off of nodes and pools after failed launches.

The back-off is per node, because a faulty node does not imply that other nodes are faulty. A pool
backs off if several of its nodes fail (more of them if the pool has a ready instance), or if one
launch shows that the pool has no room for any further node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topics.fleet import Status

FIRST_MS = 120_000
"""Back-off in ms after the first failure, about the time of one launch. It doubles with each
failure."""
MOST_MS = 1_920_000
"""Longest back-off in ms, after five failures in a row. A pool that works again is used within this
time."""
_NODES_FOR_POOL, _NODES_FOR_SERVING_POOL = 2, 4
"""Nodes with strikes from which a pool is closed, without and with a ready instance in the pool. A
single node may itself be the cause."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A node that gets no launch until `until_ms`, after `strikes` failed launches in a row.
    pool_full: whether no other node of the pool gets a launch either. launch_basis: that of the
    node's status at the failure."""

    pool: str
    until_ms: int
    strikes: int
    pool_full: bool = False
    launch_basis: str = ""


def failed(
    known: Mapping[str, Backoff],
    node: str,
    pool: str,
    now_ms: int,
    pool_full: bool = False,
    launch_basis: str = "",
) -> Backoff:
    """The back-off of `node` after another failed launch. Each failure in a row (strike) doubles
    its duration. A node starts with the highest number of strikes in its pool, so that a broken
    driver does not fail a hundred new nodes in turn. Strikes are forgotten if no launch fails
    within `MOST_MS` after the back-off.
    """
    marks = [known[node]] if node in known else []
    marks += [mark for mark in known.values() if mark.pool == pool]
    recent = [mark.strikes for mark in marks if now_ms - mark.until_ms < MOST_MS]
    strikes = max(recent, default=0) + 1
    until_ms = now_ms + min(MOST_MS, FIRST_MS << min(strikes - 1, 10))
    return Backoff(pool, until_ms, strikes, pool_full, launch_basis)


def resting_nodes(known: Mapping[str, Backoff], now_ms: int) -> frozenset[str]:
    """Nodes that get no launch now."""
    return frozenset(node for node, mark in known.items() if mark.until_ms > now_ms)


def full_pools(known: Mapping[str, Backoff], now_ms: int) -> frozenset[str]:
    """Pools without room for any further node."""
    return frozenset(
        mark.pool for mark in known.values() if mark.pool_full and mark.until_ms > now_ms
    )


def scarce_pools(
    known: Mapping[str, Backoff], serving: Iterable[str], now_ms: int
) -> frozenset[str]:
    """Pools that get no launch now.

    serving: pools with a ready instance. Such a pool is closed while four of its nodes back off.
    Any other pool is closed while one node backs off and at least two nodes have strikes; otherwise
    new nodes would be tried one after the other. A full pool is closed in either case.
    """
    alive = frozenset(serving)
    resting: dict[str, int] = {}
    remembered: dict[str, int] = {}
    for mark in known.values():
        if mark.until_ms > now_ms:
            resting[mark.pool] = resting.get(mark.pool, 0) + 1
        if now_ms - mark.until_ms < MOST_MS:
            remembered[mark.pool] = remembered.get(mark.pool, 0) + 1
    return full_pools(known, now_ms) | frozenset(
        pool
        for pool, n in resting.items()
        if n >= _NODES_FOR_SERVING_POOL
        or (pool not in alive and remembered[pool] >= _NODES_FOR_POOL)
    )


def swept(
    known: Mapping[str, Backoff], statuses: Mapping[str, Status], now_ms: int
) -> dict[str, Backoff]:
    """`known` without expired entries and without nodes on which a launch may now succeed."""
    return {
        node: mark
        for node, mark in known.items()
        if now_ms - mark.until_ms < MOST_MS
        and (node not in statuses or statuses[node].launch_basis == mark.launch_basis)
    }
