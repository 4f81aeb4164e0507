"""Whole covers for a group that alone nearly exhausts the capacities.

The enumeration tries the cheapest pairs first. If these pairs exceed the capacities before the
demand is covered, the enumeration finds no whole cover in reasonable time. A small MIP over the
group's pairs does find one. Each MIP gets new random prices for the capacities, so the covers use
different resources.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import Covers, Scene, items_within, joined
from autoscaler.optimizer.decomposition.groups import Group
from autoscaler.optimizer.decomposition.incumbent import pairs_of
from autoscaler.optimizer.decomposition.knapsack import UNITS
from autoscaler.optimizer.decomposition.work_limits import SearchLimits, Work

FEW = 2
"""Groups with fewer whole covers than this get further covers from MIPs."""
MADE = 6
"""Number of MIPs for such a group; each gives one cover."""
ITEMS = 250
"""Number of pairs in each MIP, the nearest to the bound first."""
NODES = 30
"""Maximal number of search nodes of each MIP."""


def with_whole_covers(
    group: Group, covers: Covers, scene: Scene, limits: SearchLimits, seed: int
) -> tuple[Covers, Work]:
    """`covers` and, if few of them are whole, further whole covers from MIPs."""
    work = Work()
    if int((covers.share >= 1.0).sum()) >= FEW:
        return covers, work
    generator = np.random.default_rng((limits.seed, seed))
    least, _ = group.cheapest(scene.weight)
    floor = float(least[UNITS])
    parts = items_within(group, scene, least, 2.0 * floor, ITEMS)
    mu = (scene.weight - scene.money).T.ravel()
    seen = set[bytes]()
    for turn in range(MADE):
        if limits.left_s() < 1.0:
            break
        spread = np.ones(len(mu)) if turn == 0 else generator.uniform(0.0, 3.0, len(mu))
        made, spent = _cheapest_of(parts, scene.capacity, mu * spread, limits.left_s())
        work += spent
        if made is None:
            break  # these pairs cannot serve this group within the capacities
        key = made.use.tobytes()
        if key not in seen:
            seen.add(key)
            covers = joined(covers, made)
    return covers, work


def _cheapest_of(
    parts: Covers, capacity: Floats, mu: Floats, left_s: float
) -> tuple[Covers | None, Work]:
    """The cover from `parts` that minimises the money plus the use of capacities at the prices `mu`
    (k,)."""
    priced = replace(parts, cost=parts.cost + parts.use @ mu)
    choice = choose([priced], capacity, nodes=NODES, seconds=left_s, gap=1e-3)
    work = Work(mips=1, mip_columns=len(parts))
    if choice is None:
        return None, work
    counts = choice.counts[0]
    pairs = pairs_of(parts, counts)
    one = np.ones(1)
    made = Covers(
        cost=np.array([float(counts @ parts.cost)]),
        use=(counts @ parts.use)[None, :],
        offsets=np.array([0, len(pairs)], dtype=np.int64),
        pairs=pairs,
        share=one,
        upper=one,
        within=-1.0,
        tests=0,
    )
    return made, work + Work(mip_nodes=choice.nodes)
