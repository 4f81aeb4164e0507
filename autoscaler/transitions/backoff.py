"""Which nodes and pools are left alone after launches that failed.

Owns the back-off: per node, because one bad node says nothing of its healthy neighbours; a pool as
a whole only when several of its nodes fail, more of them where others serve. Knows no demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FIRST_MS = 120_000
MOST_MS = 1_920_000
_NODES_FOR_POOL, _NODES_FOR_SERVING_POOL = 2, 4


@dataclass(frozen=True, slots=True)
class Backoff:
    """A node that is left alone until `until_ms`, after `strikes` failed launches in a row."""

    pool: str
    until_ms: int
    strikes: int


def failed(known: Mapping[str, Backoff], node: str, pool: str, now_ms: int) -> Backoff:
    """The back-off of `node` after one more failed launch: each time twice as long.

    A strike is forgotten once the node was left alone as long again without another.
    """
    mark = known.get(node)
    recent = mark is not None and now_ms - mark.until_ms < MOST_MS
    strikes = mark.strikes + 1 if mark and recent else 1
    return Backoff(pool, now_ms + min(MOST_MS, FIRST_MS << min(strikes - 1, 10)), strikes)


def resting_nodes(known: Mapping[str, Backoff], now_ms: int) -> frozenset[str]:
    """Nodes that get no launch now."""
    return frozenset(node for node, mark in known.items() if mark.until_ms > now_ms)


def scarce_pools(
    known: Mapping[str, Backoff], serving: Iterable[str], now_ms: int
) -> frozenset[str]:
    """Pools that get no launch now: two of their nodes back off and none serves, or four do.

    serving: pools on whose nodes some instance is ready.
    """
    counts: dict[str, int] = {}
    for mark in known.values():
        if mark.until_ms > now_ms:
            counts[mark.pool] = counts.get(mark.pool, 0) + 1
    alive = frozenset(serving)
    return frozenset(
        pool
        for pool, n in counts.items()
        if n >= (_NODES_FOR_SERVING_POOL if pool in alive else _NODES_FOR_POOL)
    )


def swept(known: Mapping[str, Backoff], now_ms: int) -> dict[str, Backoff]:
    """`known` without marks that no longer mean anything."""
    return {node: mark for node, mark in known.items() if now_ms - mark.until_ms < MOST_MS}
