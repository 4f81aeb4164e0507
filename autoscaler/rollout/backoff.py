"""Back-off of nodes and pools after failed launches.

The back-off is per node, because a faulty node does not imply that other nodes are faulty. A pool
backs off only if several of its nodes fail, or more of them if the pool has a ready instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FIRST_MS = 120_000
MOST_MS = 1_920_000
_NODES_FOR_POOL, _NODES_FOR_SERVING_POOL = 2, 4


@dataclass(frozen=True, slots=True)
class Backoff:
    """A node that gets no launch until `until_ms`, after `strikes` failed launches in a row."""

    pool: str
    until_ms: int
    strikes: int


def failed(known: Mapping[str, Backoff], node: str, pool: str, now_ms: int) -> Backoff:
    """The back-off of `node` after another failed launch. Each failure in a row (strike) doubles
    its duration. A node starts with the highest number of strikes in its pool, so that a broken
    driver does not fail a hundred new nodes in turn. Strikes are forgotten if no launch fails
    within `MOST_MS` after the back-off.
    """
    marks = [known[node]] if node in known else []
    marks += [mark for mark in known.values() if mark.pool == pool]
    recent = [mark.strikes for mark in marks if now_ms - mark.until_ms < MOST_MS]
    strikes = max(recent, default=0) + 1
    return Backoff(pool, now_ms + min(MOST_MS, FIRST_MS << min(strikes - 1, 10)), strikes)


def resting_nodes(known: Mapping[str, Backoff], now_ms: int) -> frozenset[str]:
    """Nodes that get no launch now."""
    return frozenset(node for node, mark in known.items() if mark.until_ms > now_ms)


def scarce_pools(
    known: Mapping[str, Backoff], serving: Iterable[str], now_ms: int
) -> frozenset[str]:
    """Pools that get no launch now.

    serving: pools with a ready instance. Such a pool is closed while four of its nodes back off.
    Any other pool is closed while one node backs off and at least two nodes have strikes; otherwise
    new nodes would be tried one after the other.
    """
    alive = frozenset(serving)
    resting: dict[str, int] = {}
    remembered: dict[str, int] = {}
    for mark in known.values():
        if mark.until_ms > now_ms:
            resting[mark.pool] = resting.get(mark.pool, 0) + 1
        if now_ms - mark.until_ms < MOST_MS:
            remembered[mark.pool] = remembered.get(mark.pool, 0) + 1
    return frozenset(
        pool
        for pool, n in resting.items()
        if n >= _NODES_FOR_SERVING_POOL
        or (pool not in alive and remembered[pool] >= _NODES_FOR_POOL)
    )


def swept(known: Mapping[str, Backoff], now_ms: int) -> dict[str, Backoff]:
    """`known` without expired entries."""
    return {node: mark for node, mark in known.items() if now_ms - mark.until_ms < MOST_MS}
