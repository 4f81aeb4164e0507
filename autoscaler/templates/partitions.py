"""Set partitions of up to six nodes into stages; interchangeable nodes are counted once.

Builds the static tables that the compiled placement search reads. Nodes are sorted by
configuration. Only the equality pattern of a multiset matters; its bit i is set if nodes i and i +
1 have equal configurations. Six distinct nodes have 203 partitions; six equal nodes have only 11,
one for each way to write 6 as a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

MAX_NODES = 6
"""Maximum nodes of one template (N_max of Coral sec. 4.2); the tables are built for it."""

PATTERNS = 1 << (MAX_NODES - 1)


@dataclass(frozen=True, slots=True)
class PartitionTables:
    """Flat tables by group; the group is (nodes * PATTERNS + pattern) * (MAX_NODES + 1) + stages.

    first, count: the index of a group's first partition in `kinds` and `members`, and the number of
    its partitions; each partition has `stages` entries. members: node bit mask of each stage.
    kinds: `members` in a canonical form, in which equal nodes are replaced by the last nodes of
    their run, so that stages of equal composition share their results. needed_first, needed_count,
    needed: the distinct kinds of a group, smaller ones first.
    """

    first: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    needed_first: npt.NDArray[np.int64]
    needed_count: npt.NDArray[np.int64]
    needed: npt.NDArray[np.int64]


def group_index(nodes: int, pattern: int, stages: int) -> int:
    """The group of `nodes` nodes with equality `pattern` in `stages` stages."""
    return (nodes * PATTERNS + pattern) * (MAX_NODES + 1) + stages


@lru_cache(maxsize=1)
def partition_tables() -> PartitionTables:
    """Build the tables (a few milliseconds, once per process)."""
    groups = (MAX_NODES + 1) * PATTERNS * (MAX_NODES + 1)
    first, count = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    needed_first, needed_count = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    kinds: list[int] = []
    members: list[int] = []
    needed: list[int] = []
    for nodes in range(1, MAX_NODES + 1):
        everything = [tuple(blocks) for blocks in _set_partitions(nodes)]
        for pattern in range(1 << (nodes - 1)):
            kind_of = [_kind(mask, nodes, pattern) for mask in range(1 << nodes)]
            for stages in range(1, nodes + 1):
                group = group_index(nodes, pattern, stages)
                first[group], needed_first[group] = len(kinds), len(needed)
                signatures: set[tuple[int, ...]] = set()
                for blocks in everything:
                    signature = tuple(sorted(kind_of[mask] for mask in blocks))
                    if len(blocks) != stages or signature in signatures:
                        continue
                    signatures.add(signature)
                    members.extend(blocks)
                    kinds.extend(kind_of[mask] for mask in blocks)
                count[group] = len(signatures)
                distinct_kinds = sorted(
                    {k for s in signatures for k in s}, key=lambda k: (k.bit_count(), k)
                )
                needed.extend(distinct_kinds)
                needed_count[group] = len(distinct_kinds)
    return PartitionTables(
        first=first,
        count=count,
        kinds=np.array(kinds, np.int64),
        members=np.array(members, np.int64),
        needed_first=needed_first,
        needed_count=needed_count,
        needed=np.array(needed, np.int64),
    )


def _set_partitions(nodes: int) -> Iterator[list[int]]:
    """All set partitions of range(nodes) as lists of bit masks."""
    if nodes == 0:
        yield []
        return
    bit = 1 << (nodes - 1)
    for smaller in _set_partitions(nodes - 1):
        for i in range(len(smaller)):
            yield [*smaller[:i], smaller[i] | bit, *smaller[i + 1 :]]
        yield [*smaller, bit]


def _kind(mask: int, nodes: int, pattern: int) -> int:
    """`mask` with the chosen nodes of every run of equal nodes moved to the end of the run.

    They move to the end so that a kind without its lowest bit is also a kind.
    """
    kind, last = 0, nodes - 1
    for node in reversed(range(nodes)):
        if node < nodes - 1 and not (pattern >> node) & 1:
            last = node
        if (mask >> node) & 1:
            taken = last
            while (kind >> taken) & 1:
                taken -= 1
            kind |= 1 << taken
    return kind
