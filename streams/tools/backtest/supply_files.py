"""Prices and availability over time, from files, as events of a simulation.

There are three forms:

- FILE: a table with the columns time, pool, and at least one of price (USD per node-hour) and nodes
(the most nodes that can be rented); cells may be empty.

- FILE: a price history of a cloud (`streams.files.cloud_prices`).

- POOL=FILE: a CSV of (time, nodes) without a header, as in the recorded spot traces of Bamboo.

Rows are in any order; a value holds until the pool's next value. Times are seconds from the start
of the trace, or dates. If the dates of the files and of the trace overlap, dates are absolute;
otherwise the first date of the files counts as the start of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.supply_script import NodesLimited, PriceChanged, ScriptEvent
from streams.files.cloud_prices import CloudPrice, cloud_prices, is_price_list, prices_of_pools
from streams.files.csv_rows import finite_cell
from streams.files.currencies import USD_ONLY, Rates
from streams.files.gcp_skus import sku_prices, skus_of
from streams.files.price_units import usd_per_h_factor
from streams.files.tables import Row, Table, is_parquet, read_lines, read_table, read_text
from streams.files.times import clock_of, date_ms, finite_number
from streams.files.user_errors import UserError

_LIMITS = {"time": 366 * 86_400.0, "price": 100_000.0, "nodes": 1_000_000.0}
_TABLE = "a CSV with the columns time, pool and price or nodes, or a price history of a cloud"
_STEPS = "rows of time,nodes without a header"
_SINCE_1970_S = 946_684_800.0  # Larger times are dates.
Change = tuple[float, str, float | None, int | None]
"""(seconds of the trace or since 1970, pool, price, nodes). Price and nodes are
None if they stay.
"""


@dataclass(frozen=True, slots=True)
class TraceTime:
    """The time axis of the trace, on which dates of supply files are placed.

    origin_s: start of the trace in seconds since 1970; None if the trace has no dates. duration_s:
    length of the trace. instances: the instance type of each pool that declares one. rates: USD per
    unit of each currency that a file may have.
    """

    origin_s: float | None = None
    duration_s: float = math.inf
    instances: Mapping[str, str] = field(default_factory=dict)
    rates: Rates = field(default_factory=lambda: USD_ONLY)


def load_supply(
    named: Sequence[str],
    cluster: Cluster,
    from_s: float,
    lead_s: float,
    times: TraceTime | None = None,
    notes: list[str] | None = None,
) -> tuple[ScriptEvent, ...]:
    """Changes of supply as events of a simulation.

    The simulation begins `lead_s` before second `from_s` of the trace. The values at `from_s` hold
    from the start of the simulation.

    notes: a note on how dates were placed is added. UserError for unusable input.
    """
    times = times or TraceTime()
    pools = {pool.id for pool in cluster.pools}
    changes: list[Change] = []
    for text in named:
        pool, equals, rest = text.rpartition("=")
        path = Path(rest if equals and not Path(text).exists() else text)
        if equals and not Path(text).exists():
            found = list(_steps(path, pool))
        else:
            own = {p: i for p, i in times.instances.items() if p in pools}
            found = list(_changes(path, own, times.rates))
        for _, one, _, _ in found:
            if one not in pools:
                known = ", ".join(sorted(pools))
                raise UserError(f"{path}: pool: {one[:100]!r} is not one of {known}")
        changes += found
    found_events: list[ScriptEvent] = []
    before: dict[tuple[str, bool], ScriptEvent] = {}
    for at_s, pool, price, nodes in sorted(_placed(changes, times, notes), key=lambda row: row[0]):
        when_s = max(0.0, at_s - from_s + lead_s) if at_s > from_s else 0.0
        events: list[ScriptEvent] = []
        if price is not None:
            events.append(PriceChanged(when_s, pool, price))
        if nodes is not None:
            events.append(NodesLimited(when_s, pool, nodes))
        for event in events:
            if when_s == 0.0:
                before[pool, isinstance(event, PriceChanged)] = event
            else:
                found_events.append(event)
    return (*before.values(), *found_events)


def _placed(
    changes: Sequence[Change], times: TraceTime, notes: list[str] | None
) -> Iterable[Change]:
    """`changes` with times in seconds from the start of the trace."""
    dates = [at_s for at_s, *_ in changes if at_s >= _SINCE_1970_S]
    if not dates:
        return changes
    origin_s = times.origin_s
    said = "dates of --supply are those of the trace"
    if origin_s is None or min(dates) > origin_s + times.duration_s or max(dates) < origin_s:
        origin_s = min(dates)
        said = "the first date of --supply counts as the start of the trace"
    if notes is not None:
        notes.append(said)
    return [(at_s - origin_s if at_s >= _SINCE_1970_S else at_s, *rest) for at_s, *rest in changes]  # type: ignore[misc]


def _changes(path: Path, instances: Mapping[str, str], rates: Rates) -> Iterable[Change]:
    skus = None if is_parquet(path) else skus_of(read_text(path, _TABLE))
    if skus is not None:
        yield from _of_cloud(path, sku_prices(str(path), skus, rates), instances)
        return
    table = read_table(path, _TABLE)
    columns = set(table.columns)
    if not columns:  # JSON, so use the columns of the first row.
        first = next(table.rows, None)
        columns = set(first[1]) if first else set()
        rest = table.rows
        table = Table(table.place, (), _again(first, rest), table.shown)
    if {"time", "pool"} <= columns and columns & {"price", "nodes"}:
        yield from _rows(table, rates)
    elif is_price_list(columns):
        yield from _of_cloud(path, cloud_prices(table, rates), instances)
    else:
        raise UserError(f"{path}: expected {_TABLE} (or POOL=FILE for time,nodes without a header)")


def _of_cloud(
    path: Path, prices: Iterable[CloudPrice], instances: Mapping[str, str]
) -> Iterator[Change]:
    for at_ms, pool, usd in prices_of_pools(str(path), prices, instances):
        if at_ms is None:
            raise UserError(f"{path}: prices without a time; allowed: a price history")
        yield at_ms / 1000.0, pool, usd, None


def _again(
    first: tuple[str, Row] | None, rest: Iterable[tuple[str, Row]]
) -> Iterator[tuple[str, Row]]:
    if first is not None:
        yield first
    yield from rest


def _rows(table: Table, rates: Rates) -> Iterable[Change]:
    for place, row in table.rows:
        price, nodes = row.get("price"), row.get("nodes")
        yield (
            _when_s(place, row.get("time")),
            str(row.get("pool", "")),
            None if price in (None, "") else _price(place, row, rates),
            None if nodes in (None, "") else _whole(place, nodes),
        )


def _price(place: str, row: Row, rates: Rates) -> float:
    return usd_per_h_factor(place, row, rates) * _number(place, "price", row.get("price"))


def _steps(path: Path, pool: str) -> Iterable[Change]:
    for number, line in enumerate(read_lines(path, _STEPS), 1):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != 2:
            raise UserError(f"{path}:{number}: {len(cells)} columns, expected 2: time,nodes")
        place = f"{path}:{number}"
        yield _when_s(place, cells[0]), pool, None, _whole(place, cells[1])


def _when_s(place: str, value: object) -> float:
    """The time in a cell: seconds of the trace, or seconds since 1970 for a date."""
    number = finite_number(value)
    if number is not None and number >= _SINCE_1970_S:
        clock = clock_of([number], "s", certain=False)
        scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[clock.unit]
        if clock.dated:
            return number * scale
    if number is None and (when_ms := date_ms(value)) is not None:
        return when_ms / 1000.0
    return _number(place, "time", value)


def _whole(place: str, value: object) -> int:
    number = _number(place, "nodes", value)
    if number != int(number):
        raise UserError(f"{place}: nodes: {value!r} is not a whole number")
    return int(number)


def _number(place: str, column: str, value: object) -> float:
    most = _LIMITS[column]
    number = None if isinstance(value, bool) else finite_cell(str(value), 0.0, most)
    if number is None:
        also = " seconds, or a date" if column == "time" else ""
        raise UserError(
            f"{place}: {column}: {str(value)[:40]!r} is not allowed; allowed: 0 to {most:g}{also}"
        )
    return number
