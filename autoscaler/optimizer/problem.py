"""The general allocation problem as arrays: columns to choose, the resources that they use, and the
demand that they serve.

The arrays are validated here, before any solver gets them: an error names the wrong price, rate,
demand or capacity. The planner expresses models, GPUs, regions and transitions as columns and rows
(see `autoscaler.planning.milp_formulation`).

    minimise   cost . x
    subject to serve(x)[i] >= demand[i]     for every demand row i
               use(x)[q]   <= capacity[q]   for every resource row q
               0 <= x <= upper, x integer

A column that serves two rows is an aggregated instance. A column that serves no row and has a
negative use is a rented node: it costs money and provides slices. A budget, a ceiling, a spot share
and the bound that links `keep` and `switch` columns are resource rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Floats, Ints


@dataclass(frozen=True, slots=True)
class Follows:
    """Limits the demand of row `row` to `least + share x served`; `served` is the amount served of
    row `of`, which belongs to an earlier priority class. `least` may be negative."""

    row: int
    of: int
    share: float
    least: float


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """Columns j < n, demand rows i < m, resource rows q < k, all in compressed column form.

    `serve_indptr` (n + 1,), `serve_row`, `serve_rate` (requests/s, positive): service by column.
    `use_indptr` (n + 1,), `use_resource`, `use_amount` (in the unit of the row; a negative amount
    provides the resource): use by column. `cost_usd_per_h` (n,): finite and >= 0. `upper` (n,): >=
    0; inf: limited by the capacities only. `demand_req_per_s` (m,): > 0. `priority` (m,): class of
    each row; class 0 is served first if not all demand can be met. `capacity` (k,): finite and >=
    0. `follows`: rows whose demand falls if other rows are underserved.
    """

    cost_usd_per_h: Floats
    upper: Floats
    serve_indptr: Ints
    serve_row: Ints
    serve_rate: Floats
    use_indptr: Ints
    use_resource: Ints
    use_amount: Floats
    demand_req_per_s: Floats
    priority: Ints
    capacity: Floats
    follows: tuple[Follows, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.cost_usd_per_h)
        m = len(self.demand_req_per_s)
        check_numbers("cost_usd_per_h", self.cost_usd_per_h, (n,), low=0.0)
        check_numbers("upper", self.upper, (n,), low=0.0, infinite=True)
        check_numbers("demand_req_per_s", self.demand_req_per_s, (m,), low=0.0, strict=True)
        check_numbers("priority", self.priority, (m,), low=0.0)
        check_numbers("capacity", self.capacity, (len(self.capacity),), low=0.0)
        _check_rows("serve", self.serve_indptr, self.serve_row, self.serve_rate, n, m)
        _check_rows(
            "use", self.use_indptr, self.use_resource, self.use_amount, n, len(self.capacity)
        )
        check_numbers("serve_rate", self.serve_rate, self.serve_rate.shape, low=0.0, strict=True)
        check_numbers("use_amount", self.use_amount, self.use_amount.shape, low=-np.inf)
        followers = {one.row for one in self.follows}
        for one in self.follows:
            if one.of in followers or not self.priority[one.of] < self.priority[one.row]:
                what = "a row of an earlier class that follows none"
                raise InvalidValue(f"row {one.row} follows", one.of, what)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cost_usd_per_h)

    def asked_req_per_s(self, target: Floats) -> Floats:
        """Current demand (m,) in requests/s, at least 0, if each row gets the fraction `target`
        (m,) of its declared demand."""
        asked: Floats = self.demand_req_per_s.astype(np.float64)
        for one in self.follows:
            if target[one.of] < 1.0:
                served = target[one.of] * self.demand_req_per_s[one.of]
                asked[one.row] = min(asked[one.row], max(0.0, one.least + one.share * served))
        return asked

    def served_req_per_s(self, counts: Ints) -> Floats:
        """Requests/s that `counts` (n,) serve, by demand row (m,)."""
        rows = len(self.demand_req_per_s)
        return _totals(counts, self.serve_indptr, self.serve_row, self.serve_rate, rows)

    def used(self, counts: Ints) -> Floats:
        """Resources that `counts` (n,) use, by resource row (k,)."""
        rows = len(self.capacity)
        return _totals(counts, self.use_indptr, self.use_resource, self.use_amount, rows)


def _totals(counts: Ints, indptr: Ints, row: Ints, amount: Floats, rows: int) -> Floats:
    """Sum of amount x count over the columns, by row. Skips columns with the count 0."""
    ids = np.flatnonzero(counts)
    at, offsets = entries_of(indptr, ids)
    each = np.repeat(counts[ids], np.diff(offsets)) * amount[at]
    return np.bincount(row[at], each, minlength=rows).astype(np.float64)


def entries_of(indptr: Ints, ids: Ints) -> tuple[Ints, Ints]:
    """(positions of the entries of the columns `ids`, offset of each of these columns in the
    positions)."""
    length = np.diff(indptr)[ids]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(indptr[ids] - offsets[:-1], length) + np.arange(offsets[-1])
    return at, offsets


def check_numbers(
    field: str,
    values: Floats | Ints,
    shape: tuple[int, ...],
    low: float,
    strict: bool = False,
    infinite: bool = False,
) -> None:
    """Refuse an array that has another shape or contains a number out of range; the error names the
    field and the index."""
    if values.shape != shape:
        raise InvalidValue(field, values.shape, f"an array of shape {shape}")
    if values.dtype.kind not in "fiu":
        raise InvalidValue(field, str(values.dtype), "an array of numbers")
    if values.dtype.kind == "f":
        bad = np.isnan(values) if infinite else ~np.isfinite(values)
        bad |= (values <= low) if strict else (values < low)
    else:
        bad = (values <= low) if strict else (values < low)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        edge = f"{'above' if strict else 'at least'} {low:g}" if np.isfinite(low) else "any"
        kind = "number or infinity" if infinite else "finite number"
        at = ", ".join(str(i) for i in place)
        raise InvalidValue(f"{field}[{at}]", float(values[place]), f"a {kind}, {edge}")


def _check_rows(
    name: str, indptr: Ints, index: Ints, values: Floats, columns: int, rows: int
) -> None:
    if indptr.shape != (columns + 1,) or int(indptr[0]) != 0 or (np.diff(indptr) < 0).any():
        raise InvalidValue(f"{name}_indptr", indptr.shape, f"{columns + 1} rising offsets from 0")
    if int(indptr[-1]) != len(index) or len(index) != len(values):
        raise InvalidValue(f"{name}_indptr", int(indptr[-1]), f"the {len(index)} entries")
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise InvalidValue(f"{name} row", int(index.max()), f"a row from 0 to {rows - 1}")
