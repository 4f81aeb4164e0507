"""The best plan so far: one real cover per group and counts of the free columns.

Owns its cost, its use and the exchange of some groups' covers. Knows nothing of how covers are
found or chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.planning.allocation.arrays import Floats, Ints
from autoscaler.planning.allocation.choose import Choice
from autoscaler.planning.allocation.groups import Decomposed
from autoscaler.planning.allocation.pool import Covers


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Per group: money (g,), use (g, k) and the pairs of its cover; counts of the free columns."""

    cost: Floats
    use: Floats
    pairs: tuple[Ints, ...]
    free: Ints

    def money(self, problem: Decomposed) -> float:
        """What the plan costs."""
        return float(self.cost.sum() + self.free @ problem.free.cost)

    def excess(self, problem: Decomposed) -> Floats:
        """By how much it exceeds each capacity (k,)."""
        over = self.use.sum(axis=0) + self.free @ problem.free.use - problem.capacity
        return np.where(over > 1e-9, over, 0.0)

    def penalised(self, problem: Decomposed, penalty: Floats) -> float:
        """Money plus the price of what exceeds the capacities."""
        return self.money(problem) + float(self.excess(problem) @ penalty)

    def cover(self, k: int) -> Covers:
        """The cover of group k as a pool of one."""
        pairs = self.pairs[k]
        offsets = np.array([0, len(pairs)], dtype=np.int64)
        return Covers(self.cost[k : k + 1], self.use[k : k + 1], offsets, pairs, -1.0, 0)

    def exchange(self, groups: Ints, pools: list[Covers], choice: Choice) -> Incumbent:
        """The plan with the chosen covers for `groups` and the chosen free columns."""
        cost, use, pairs = self.cost.copy(), self.use.copy(), list(self.pairs)
        for k, covers, pick in zip(groups, pools, choice.picks, strict=True):
            cost[k], use[k], pairs[k] = covers.cost[pick], covers.use[pick], pairs_of(covers, pick)
        return replace(self, cost=cost, use=use, pairs=tuple(pairs), free=choice.free)


def pairs_of(covers: Covers, pick: int) -> Ints:
    """The pairs of one cover of a pool."""
    return covers.pairs[int(covers.offsets[pick]) : int(covers.offsets[pick + 1])]


def from_choice(pools: list[Covers], choice: Choice) -> Incumbent:
    """The plan that a choice over all groups makes."""
    chosen = list(zip(pools, choice.picks, strict=True))
    return Incumbent(
        cost=np.array([p.cost[i] for p, i in chosen]),
        use=np.array([p.use[i] for p, i in chosen]),
        pairs=tuple(pairs_of(p, int(i)) for p, i in chosen),
        free=choice.free,
    )


def joined(first: Covers, second: Covers) -> Covers:
    """Two pools as one, complete as far as the first was."""
    return Covers(
        cost=np.concatenate([first.cost, second.cost]),
        use=np.vstack([first.use, second.use]),
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        pairs=np.concatenate([first.pairs, second.pairs]),
        within=first.within,
        tests=first.tests,
    )
