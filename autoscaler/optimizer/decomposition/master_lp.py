"""Master linear program of the decomposition: mixes of covers under the shared capacities.

New columns are added to the same HiGHS object, which restarts from its last basis; its row duals
are the next multipliers.
"""

from __future__ import annotations

import math

import highspy
import numpy as np

from autoscaler.optimizer.array_types import Floats


class Master:
    """The mix of covers of least cost. Rows: capacities (k,), and one convexity row per group. It
    starts with artificial covers.

    `artificial` (g,): price of an artificial cover of each group, which stands in as long as real
    covers do not fit together.
    """

    def __init__(self, capacity: Floats, artificial: Floats) -> None:
        self.resources = len(capacity)
        self.groups = len(artificial)
        self._inf = highspy.kHighsInf
        self._solver = highspy.Highs()
        for name, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            self._solver.setOptionValue(name, value)
        lower = np.concatenate([np.full(self.resources, -self._inf), np.ones(self.groups)])
        upper = np.concatenate([capacity, np.ones(self.groups)])
        nothing = np.zeros(0)
        self._solver.addRows(
            len(lower),
            lower,
            upper,
            0,
            np.zeros(len(lower), dtype=np.int32),
            nothing.astype(np.int32),
            nothing,
        )
        convexity = np.eye(self.groups)
        self._add(artificial, np.full(self.groups, self._inf), None, convexity)

    def _add(
        self, cost: Floats, upper: Floats, use: Floats | None, convexity: Floats | None
    ) -> None:
        count = len(cost)
        left = np.zeros((count, self.resources)) if use is None else use
        right = np.zeros((count, self.groups)) if convexity is None else convexity
        dense = np.hstack([left, right])
        row, column = np.nonzero(dense)
        starts = np.searchsorted(row, np.arange(count)).astype(np.int32)
        self._solver.addCols(
            count,
            np.ascontiguousarray(cost, dtype=np.float64),
            np.zeros(count),
            np.ascontiguousarray(upper, dtype=np.float64),
            len(row),
            starts,
            column.astype(np.int32),
            dense[row, column],
        )

    def add_covers(self, group: list[int], cost: Floats, use: Floats) -> None:
        """Add covers of `group`, with their `cost` (p,) and `use` (p, k)."""
        convexity = np.zeros((len(group), self.groups))
        convexity[np.arange(len(group)), group] = 1.0
        self._add(cost, np.full(len(group), self._inf), use, convexity)

    def shares(self) -> Floats:
        """Share of each cover in the last solution, in the order in which the covers were added."""
        return np.asarray(self._solver.getSolution().col_value, dtype=np.float64)[self.groups :]

    def solve(self, seconds: float = math.inf) -> tuple[float, Floats, float] | None:
        """Return the objective, the multipliers (k,) >= 0, and the remaining share of artificial
        covers; None if it is not solved within `seconds`."""
        if math.isfinite(seconds):
            # The limit of HiGHS counts the time of all runs of one object.
            limit_s = self._solver.getRunTime() + max(0.0, seconds)
            self._solver.setOptionValue("time_limit", limit_s)
        self._solver.run()
        if self._solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._solver.getSolution()
        dual = np.asarray(solution.row_dual, dtype=np.float64)[: self.resources]
        artificial = float(np.sum(solution.col_value[: self.groups]))
        return float(self._solver.getObjectiveValue()), np.maximum(0.0, -dual), artificial
