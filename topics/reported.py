"""Telemetry as windows count it: whole batches read fast, with their sketches still in cells.

Owns the quick way from the wire for the one topic that carries thousands of records a second. What
does not have exactly the expected form goes the slow way through `codec`, which takes it or says
what is wrong with it; the rest of its batch does not notice.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson

from topics import checks
from topics.checks import MAX_COUNT, MAX_MS, SCHEMA_VERSION, InvalidRecord
from topics.codec import CELLS, decode_as
from topics.sketch import CELL_CHARS, MOST_IN_CELL, NUMBERS, WIDTH, to_text
from topics.telemetry import COUNTS, SKETCHES, Telemetry

_LIMITS = {
    **dict.fromkeys(COUNTS, MAX_COUNT),
    "sequence": MAX_COUNT,
    "span_ms": 3_600_000,
    "age_ms": MAX_COUNT,
    "in_flight": MAX_COUNT,
    "route_generation": MAX_COUNT,
    "withdrawn": MAX_COUNT,
    "end_ms": MAX_MS,
    "schema_version": SCHEMA_VERSION,
}
_NUMBERS = len(_LIMITS)
_COUNTED, _ASIDE = slice(len(COUNTS)), slice(len(COUNTS), len(COUNTS) + 5)
_NAMES = slice(_NUMBERS, _NUMBERS + 3)
_LEAVING, _SENT, _CELLS = range(_NUMBERS + 3, _NUMBERS + 6)
_TYPES = (int,) * _NUMBERS + (str, str, str, bool, dict, str)
_PLAIN = (*[0] * (_NUMBERS - 1), SCHEMA_VERSION, "m", "g", "b", False, {}, "")
_HIGHEST = np.array([[limit] for limit in _LIMITS.values()], np.float64)
_LOWEST = np.array([[0]] * (_NUMBERS - 1) + [[SCHEMA_VERSION]], np.float64)
_fields = itemgetter(*_LIMITS, "model", "gateway", "boot", "leaving", "sent", CELLS)
_sketches = itemgetter(*SKETCHES)
_of_base64 = partial(a2b_base64, strict_mode=True)
_count_of = attrgetter(*COUNTS)
_MOST_NAMES = 100_000

_Columns: TypeAlias = list[tuple[Any, ...]]
_known: set[tuple[str, ...]] = set()


def _digit_pairs() -> np.ndarray[Any, np.dtype[np.int16]]:
    found = np.full(65_536, -1, np.int16)
    found[np.frombuffer("".join(NUMBERS).encode(), "<u2")] = np.arange(len(NUMBERS))
    return found


_VALUES = _digit_pairs()
"""The number that two characters stand for, by what they are as a 16-bit number; -1: none."""


class Reported(NamedTuple):
    """A record of `Telemetry`. values: of COUNTS; cells: of SKETCHES, pairs of 16-bit numbers
    (place and count, see `topics.sketch`); kinds: requests sent, by their kind."""

    model: str
    gateway: str
    boot: str
    sequence: int
    span_ms: int
    age_ms: int
    in_flight: int
    route_generation: int
    leaving: bool
    values: tuple[int, ...]
    cells: bytes
    kinds: tuple[tuple[str, int], ...] = ()


def reported(record: Telemetry) -> Reported:
    """`record` as windows count it."""
    return Reported(
        record.model, record.gateway, record.boot, record.sequence, record.span_ms, record.age_ms,
        record.in_flight, record.route_generation, record.leaving, _count_of(record),
        cells_of(to_text(getattr(record, name) for name in SKETCHES)) or b"",
        tuple(sorted((kind, sum(ways.values())) for kind, ways in record.sent.items())),
    )  # fmt: skip


def cells_of(text: str) -> bytes | None:
    """The cells in a text of the wire; None if it is none."""
    if len(text) % CELL_CHARS or not text.isascii():
        return None
    numbers = _VALUES.take(np.frombuffer(text.encode(), "<u2"))
    return None if len(numbers) and numbers.min() < 0 else numbers.tobytes()


def read_reported(batch: Sequence[bytes]) -> list[Reported | InvalidRecord]:
    """The records on the wire, or what is wrong with each (as of `codec.decode`)."""
    columns, odd, packed = _columns(batch)
    cells = _cells(columns[_CELLS])
    if packed:
        for at, one in zip(packed, _cells_before(list(packed.values())), strict=True):
            cells[at] = one
    rows = zip(
        *columns[_NAMES],
        *columns[_ASIDE],
        columns[_LEAVING],
        zip(*columns[_COUNTED], strict=True),
        [one or b"" for one in cells],
        [()] * len(batch),
        strict=True,
    )
    # Its own __new__ only puts the fields in their order, and takes a while for it.
    found: list[Reported | InvalidRecord] = list(map(partial(tuple.__new__, Reported), rows))
    for at in odd.union(at for at, one in enumerate(cells) if one is None):
        try:
            found[at] = reported(decode_as(Telemetry, batch[at]))
        except InvalidRecord as error:
            found[at] = error
    return found


def _columns(batch: Sequence[bytes]) -> tuple[_Columns, set[int], dict[int, list[bytes]]]:
    """The fields of all records; which have another form than usual: those are left plain; and the
    sketches of those that the version before wrote."""
    rows: list[tuple[Any, ...]] = []
    odd: set[int] = set()
    packed: dict[int, list[bytes]] = {}
    for data in batch:
        try:
            value = orjson.loads(data)
            if CELLS not in value:
                packed[len(rows)] = [_of_base64(text) for text in _sketches(value)]
                value[CELLS] = ""
            rows.append(_fields(value))
        except (KeyError, TypeError, ValueError):  # of orjson too
            odd.add(len(rows))
            rows.append(_PLAIN)
    columns = _across(rows)
    for strange in (_ill_typed, _out_of_bounds, _ill_named):
        found = strange(columns)
        if found:
            odd |= found
            columns = _across([_PLAIN if at in odd else row for at, row in enumerate(rows)])
    return columns, odd, packed


def _across(rows: Sequence[tuple[Any, ...]]) -> _Columns:
    return list(zip(*rows, strict=True)) if rows else [()] * len(_PLAIN)


def _ill_typed(columns: _Columns) -> set[int]:
    return {
        at
        for column, kind in zip(columns, _TYPES, strict=True)
        if set(map(type, column)) != {kind}
        for at, value in enumerate(column)
        if type(value) is not kind
    }


def _out_of_bounds(columns: _Columns) -> set[int]:
    numbers = np.array(columns[:_NUMBERS], np.float64)
    bad = ((numbers < _LOWEST) | (numbers > _HIGHEST)).any(axis=0)
    found = set(np.flatnonzero(bad).tolist())
    if any(columns[_SENT]):  # few models have kinds of requests
        found.update(at for at, sent in enumerate(columns[_SENT]) if sent)
    return found


def _ill_named(columns: _Columns) -> set[int]:
    unknown = set(zip(*columns[_NAMES], strict=True)) - _known
    bad = {names for names in unknown if not _learn(names)}
    if not bad:
        return set()
    return {at for at, names in enumerate(zip(*columns[_NAMES], strict=True)) if names in bad}


def _learn(names: tuple[str, ...]) -> bool:
    """Whether these are names, which is remembered."""
    try:
        for name in names:
            checks.name("", name)
    except InvalidRecord:
        return False
    if len(_known) >= _MOST_NAMES:
        _known.clear()
    _known.add(names)
    return True


def _cells(texts: Sequence[str]) -> list[bytes | None]:
    """The cells of each text, all read at once where all are good."""
    joined = None if any(len(text) % CELL_CHARS for text in texts) else cells_of("".join(texts))
    if joined is None:
        return [cells_of(text) for text in texts]
    upto = [0, *accumulate(map(len, texts))]  # a character is a byte: half a number
    return [joined[start:end] for start, end in pairwise(upto)]


def _cells_before(packed: Sequence[list[bytes]]) -> list[bytes | None]:
    """The cells of each record whose SKETCHES are as the version before wrote them (see
    `sketch.from_base64`), all at once where all are good; None where they need another way."""
    sizes = np.array([len(one) for sketches in packed for one in sketches])
    pairs = b"".join(chain.from_iterable(packed))
    good = not (sizes % 4).any()
    if good:
        cells = np.frombuffer(pairs, np.uint16).reshape(-1, 2).copy()
        highest = [column.max(initial=0) for column in cells.T]
        good = highest[0] < WIDTH and highest[1] <= MOST_IN_CELL
    if not good:
        return [None] if len(packed) == 1 else [_cells_before([one])[0] for one in packed]
    first = np.tile(WIDTH * np.arange(len(SKETCHES), dtype=np.uint16), len(packed))
    cells[:, 0] += np.repeat(first, sizes // 4)
    upto = [0, *accumulate(sizes.reshape(len(packed), -1).sum(axis=1).tolist())]
    joined = cells.tobytes()
    return [joined[start:end] for start, end in pairwise(upto)]
