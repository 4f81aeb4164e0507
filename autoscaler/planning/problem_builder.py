"""Builds an `AllocationProblem` column by column and row by row, with names for decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from autoscaler.optimizer.problem import AllocationProblem, Follows

K = TypeVar("K")

# Relative tolerance: if whole columns meet a demand exactly, rounding must not make the solver add
# another column.
_EXACT_IS_ENOUGH = 1.0 - 2e-8


class ArrayBuilder(Generic[K]):
    """Collects rows and columns. `keys`: a description of each column, in the order of the
    columns."""

    def __init__(self) -> None:
        self.keys: list[K] = []
        self.resource_names: list[tuple[str, str]] = []
        self.demand_names: list[tuple[str, str]] = []
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._serve: list[Mapping[int, float]] = []
        self._use: list[Mapping[int, float]] = []
        self._demand: list[float] = []
        self._priority: list[int] = []
        self._capacity: list[float] = []
        self._follows: list[Follows] = []

    def demand(self, what: str, subject: str, amount: float, priority: int) -> int:
        """Add a demand row of which at least `amount` (> 0) must be served; return its index."""
        self.demand_names.append((what, subject))
        self._demand.append(amount * _EXACT_IS_ENOUGH)
        self._priority.append(priority)
        return len(self._demand) - 1

    def follow(self, row: int, of: int, share: float, least: float) -> None:
        """Limit the demand of `row` to `least` plus `share` times the amount served of row `of`."""
        if self._priority[of] < self._priority[row]:  # skip if both rows share the last class
            self._follows.append(Follows(row, of, share, least))

    def resource(self, what: str, subject: str, capacity: float) -> int:
        """Add a resource row of which at most `capacity` may be used; return its index."""
        self.resource_names.append((what, subject))
        self._capacity.append(capacity)
        return len(self._capacity) - 1

    def column(
        self,
        key: K,
        cost: float,
        upper: float,
        serve: Mapping[int, float],
        use: Mapping[int, float],
    ) -> int:
        """Add an integer column with the amounts that it serves and uses by row; return its
        index."""
        self.keys.append(key)
        self._cost.append(cost)
        self._upper.append(upper)
        self._serve.append({row: rate for row, rate in serve.items() if rate})
        self._use.append({row: amount for row, amount in use.items() if amount})
        return len(self.keys) - 1

    def serve(self, column: int, row: int, rate: float) -> None:
        """Let an existing column also serve `row`."""
        self._serve[column] = {**self._serve[column], row: rate}

    def use(self, column: int, row: int, amount: float) -> None:
        """Let an existing column also use `resource`."""
        self._use[column] = {**self._use[column], row: amount}

    def build(self) -> AllocationProblem:
        """The arrays. Raises InvalidValue, which names the number, if a number is invalid."""
        serve_indptr = np.cumsum([0] + [len(rows) for rows in self._serve], dtype=np.int64)
        use_indptr = np.cumsum([0] + [len(rows) for rows in self._use], dtype=np.int64)
        return AllocationProblem(
            cost_usd_per_h=np.array(self._cost, dtype=np.float64),
            upper=np.array(self._upper, dtype=np.float64),
            serve_indptr=serve_indptr,
            serve_row=np.array([r for rows in self._serve for r in rows], dtype=np.int64),
            serve_rate=np.array([v for rows in self._serve for v in rows.values()], dtype=float),
            use_indptr=use_indptr,
            use_resource=np.array([r for rows in self._use for r in rows], dtype=np.int64),
            use_amount=np.array([v for rows in self._use for v in rows.values()], dtype=float),
            demand_req_per_s=np.array(self._demand, dtype=np.float64),
            priority=np.array(self._priority, dtype=np.int64),
            capacity=np.array(self._capacity, dtype=np.float64),
            follows=tuple(self._follows),
        )
