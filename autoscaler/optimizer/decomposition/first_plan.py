"""The first plan over all groups: a MIP chooses covers from the pools or, if there are many covers,
the LP mix is rounded. The plan may exceed capacities, at a price per unit of excess.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import Covers, Scene, take
from autoscaler.optimizer.decomposition.groups import Decomposed
from autoscaler.optimizer.decomposition.hard_groups import with_whole_covers
from autoscaler.optimizer.decomposition.incumbent import Incumbent, from_choice
from autoscaler.optimizer.decomposition.master_lp import Master
from autoscaler.optimizer.decomposition.work_limits import SearchLimits, Work

FIRST_COLUMNS = 4500
"""Above this number of columns the first plan is a rounded mix instead of the solution of a MIP."""


def penalty_of(pools: list[Covers], resources: int) -> Floats:
    """Price per unit of excess of each capacity: the cost of the most expensive cover, divided by
    the largest use of the resource."""
    dearest = max(float(p.cost.max()) for p in pools) + 1.0
    largest = np.zeros(resources)
    for covers in pools:
        largest = np.maximum(largest, covers.use.max(axis=0))
    return dearest / np.where(largest > 0, largest, 1.0)


def first_plan(
    problem: Decomposed,
    scene: Scene,
    pools: list[Covers],
    penalty: Floats,
    limits: SearchLimits,
) -> tuple[Incumbent | None, Work]:
    """The cheapest choice of covers from the pools that fits; if none fits, the choice with the
    lowest price of excess."""
    work = Work()
    if sum(len(p) for p in pools) > FIRST_COLUMNS:
        made = [
            with_whole_covers(group, covers, scene, limits, k)
            for k, (group, covers) in enumerate(zip(problem.groups, pools, strict=True))
        ]
        work = sum((spent for _, spent in made), work)
        return rounded_mix(problem, [covers for covers, _ in made], penalty, limits), work
    for price in (None, penalty):
        choice = choose(
            pools,
            problem.capacity,
            nodes=limits.mip_nodes // 4,
            seconds=0.3 * limits.left_s(),
            gap=max(1e-6, limits.gap / 2),
            penalty=price,
        )
        work += Work(mips=1, mip_columns=sum(len(p) for p in pools))
        if choice is not None:
            return from_choice(pools, choice), work + Work(mip_nodes=choice.nodes)
    return greedy(problem, pools, penalty), work


def rounded_mix(
    problem: Decomposed, pools: list[Covers], penalty: Floats, limits: SearchLimits
) -> Incumbent | None:
    """The LP mix of whole covers, rounded group by group; it may exceed capacities. It replaces a
    MIP over thousands of covers, which would spend its time at the root node: the mix leaves few
    covers per group to choose from.
    """
    whole = [take(p, np.flatnonzero(p.share >= 1.0)) for p in pools]
    dearest = np.array([float(p.cost.max(initial=0.0)) for p in whole])
    master = Master(problem.capacity, 50.0 * dearest + 1.0)
    owner = np.repeat(np.arange(len(whole)), [len(p) for p in whole])
    master.add_covers(
        owner.tolist(), np.concatenate([p.cost for p in whole]), np.vstack([p.use for p in whole])
    )
    if master.solve(limits.left_s()) is None:
        return greedy(problem, pools, penalty)
    shares = np.split(master.shares(), np.cumsum([len(p) for p in whole])[:-1])
    mixed = [
        take(p, np.flatnonzero(share > 0.01)) if (share > 0.01).any() else p
        for p, share in zip(whole, shares, strict=True)
    ]
    return greedy(problem, mixed, penalty)


def greedy(problem: Decomposed, pools: list[Covers], penalty: Floats) -> Incumbent | None:
    """A greedy plan, which may exceed capacities: each group in turn takes the whole cover that
    adds least money and excess.

    Groups with few covers come first, then the most expensive groups. None if a group has no whole
    cover.
    """
    order = sorted(
        range(len(pools)), key=lambda k: (len(pools[k]), -float(pools[k].cost.min(initial=np.inf)))
    )
    left = problem.capacity.copy()
    covers: list[Covers | None] = [None] * len(pools)
    for k in order:
        whole = np.flatnonzero(pools[k].share >= 1.0)
        if not len(whole):
            return None
        over = np.maximum(0.0, pools[k].use[whole] - np.maximum(0.0, left))
        pick = int(whole[np.argmin(pools[k].cost[whole] + over @ penalty)])
        left = left - pools[k].use[pick]
        covers[k] = take(pools[k], np.array([pick]))
    chosen = [c for c in covers if c is not None]
    return Incumbent(
        cost=np.array([float(c.cost[0]) for c in chosen]),
        use=np.array([c.use[0] for c in chosen]),
        pairs=tuple(c.pairs for c in chosen),
    )
