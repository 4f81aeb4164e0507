"""The best plan so far: one real cover for each group, with an operation that exchanges some
covers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.decomposition.cover_milp import Choice
from autoscaler.optimizer.decomposition.cover_pools import Covers
from autoscaler.optimizer.decomposition.groups import Decomposed


@dataclass(frozen=True, slots=True)
class Incumbent:
    """A plan. For each group: the money (g,), the use of resources (g, k) and the pairs of its
    cover."""

    cost: Floats
    use: Floats
    pairs: tuple[Ints, ...]

    def money(self) -> float:
        """Cost of the plan."""
        return float(self.cost.sum())

    def excess(self, problem: Decomposed) -> Floats:
        """Amount by which the plan exceeds each capacity (k,)."""
        over = self.use.sum(axis=0) - problem.capacity
        return np.where(over > 1e-9, over, 0.0)

    def penalised(self, problem: Decomposed, penalty: Floats) -> float:
        """Money plus the price of the exceeded capacities."""
        return self.money() + float(self.excess(problem) @ penalty)

    def cover(self, k: int) -> Covers:
        """The cover of group k as a pool of one."""
        pairs = self.pairs[k]
        offsets = np.array([0, len(pairs)], dtype=np.int64)
        one = np.ones(1)
        return Covers(self.cost[k : k + 1], self.use[k : k + 1], offsets, pairs, one, one, -1.0, 0)

    def exchange(self, groups: Ints, pools: list[Covers], choice: Choice) -> Incumbent:
        """The plan with the covers of `choice` for `groups`, and the present covers for all other
        groups."""
        cost, use, pairs = self.cost.copy(), self.use.copy(), list(self.pairs)
        for k, covers, counts in zip(groups, pools, choice.counts, strict=True):
            cost[k], use[k] = float(counts @ covers.cost), counts @ covers.use
            pairs[k] = pairs_of(covers, counts)
        return replace(self, cost=cost, use=use, pairs=tuple(pairs))


def pairs_of(covers: Covers, counts: Ints) -> Ints:
    """The pairs of the parts, each repeated as often as `counts` says."""
    taken = [
        np.tile(covers.pairs[int(covers.offsets[i]) : int(covers.offsets[i + 1])], int(counts[i]))
        for i in np.flatnonzero(counts)
    ]
    return np.concatenate([*taken, np.zeros(0, dtype=np.int64)]).astype(np.int64)


def from_choice(pools: list[Covers], choice: Choice) -> Incumbent:
    """The plan with the covers of `choice` for all groups."""
    chosen = list(zip(pools, choice.counts, strict=True))
    return Incumbent(
        cost=np.array([float(n @ p.cost) for p, n in chosen]),
        use=np.array([n @ p.use for p, n in chosen]),
        pairs=tuple(pairs_of(p, n) for p, n in chosen),
    )
