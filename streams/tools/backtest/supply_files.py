"""Prices and availability over time, from files, as what happens in a simulation.

Two forms, told apart by how the file is named on the command line. FILE: a CSV with the columns
time, pool and one or both of price (USD per node-hour) and nodes (the most that can be held); cells
may be empty. POOL=FILE: a CSV of (time, nodes) without a header, as the recorded spot traces of
Bamboo have it. Times in seconds from the start of the trace, in any order; a value holds until the
next of its pool. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.supply_script import Happening, NodesLimited, PriceChanged
from streams.files.csv_rows import finite_cell
from streams.files.user_errors import UserError
from streams.tools.replay.traces import read_lines

_COLUMNS = ("time", "pool", "price", "nodes")
_LIMITS = {"time": 366 * 86_400.0, "price": 100_000.0, "nodes": 1_000_000.0}
_TABLE = "a CSV with the columns time, pool and price or nodes"
_STEPS = "rows of time,nodes without a header"
Row = tuple[float, str, float | None, int | None]


def load_supply(
    named: Sequence[str], cluster: Cluster, from_s: float, lead_s: float
) -> tuple[Happening, ...]:
    """What the files say, on the axis of a simulation that begins `lead_s` before second `from_s`
    of the trace: what held by then holds from its start on. UserError for what does not fit."""
    pools = {pool.id for pool in cluster.pools}
    rows: list[Row] = []
    for text in named:
        pool, equals, rest = text.rpartition("=")
        path = Path(rest if equals and not Path(text).exists() else text)
        if equals and not Path(text).exists():
            rows += _steps(path, pool)
        else:
            rows += _table(path)
        for _, one, _, _ in rows:
            if one not in pools:
                raise UserError(f"{path}: pool: {one!r} is not one of {', '.join(sorted(pools))}")
    found: list[Happening] = []
    before: dict[tuple[str, bool], Happening] = {}
    for at_s, pool, price, nodes in sorted(rows, key=lambda row: row[0]):
        when_s = max(0.0, at_s - from_s + lead_s) if at_s > from_s else 0.0
        events: list[Happening] = []
        if price is not None:
            events.append(PriceChanged(when_s, pool, price))
        if nodes is not None:
            events.append(NodesLimited(when_s, pool, nodes))
        for event in events:
            if when_s == 0.0:
                before[pool, isinstance(event, PriceChanged)] = event
            else:
                found.append(event)
    return (*before.values(), *found)


def _table(path: Path) -> Iterable[Row]:
    lines = [
        (number, line) for number, line in enumerate(read_lines(path, _TABLE), 1) if line.strip()
    ]
    header = [cell.strip().lower() for cell in lines[0][1].split(",")] if lines else []
    if not {"time", "pool"} <= set(header) <= set(_COLUMNS) or len(header) < 3:
        raise UserError(f"{path}: expected {_TABLE} (or POOL=FILE for time,nodes without a header)")
    for number, line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(header):
            raise UserError(f"{path}:{number}: {len(cells)} columns, expected {len(header)}")
        row = dict(zip(header, cells, strict=True))
        price, nodes = row.get("price", ""), row.get("nodes", "")
        yield (
            _number(path, number, "time", row["time"]),
            row["pool"],
            _number(path, number, "price", price) if price else None,
            _whole(path, number, nodes) if nodes else None,
        )


def _steps(path: Path, pool: str) -> Iterable[Row]:
    for number, line in enumerate(read_lines(path, _STEPS), 1):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != 2:
            raise UserError(f"{path}:{number}: {len(cells)} columns, expected 2: time,nodes")
        yield (
            _number(path, number, "time", cells[0]),
            pool,
            None,
            _whole(path, number, cells[1]),
        )


def _whole(path: Path, number: int, text: str) -> int:
    value = _number(path, number, "nodes", text)
    if value != int(value):
        raise UserError(f"{path}:{number}: nodes: {text!r} is not a whole number")
    return int(value)


def _number(path: Path, number: int, column: str, text: str) -> float:
    most = _LIMITS[column]
    value = finite_cell(text, 0.0, most)
    if value is None:
        raise UserError(
            f"{path}:{number}: {column}: {text[:40]!r} is not allowed; allowed: 0 to {most:g}"
        )
    return value
