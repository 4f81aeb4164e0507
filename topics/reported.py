"""Telemetry as windows count it: many records by column, read fast, with their sketches in cells.

Owns the quick way from the wire for the one topic that carries thousands of records a second. What
does not have exactly the expected form goes the slow way through `codec`, which takes it or says
what is wrong with it; the rest of its batch does not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from topics import checks
from topics.checks import MAX_COUNT, MAX_MS, SCHEMA_VERSION, InvalidRecord
from topics.codec import CELLS, decode_as
from topics.sketch import CELL_CHARS, NUMBERS, to_text
from topics.telemetry import COUNTS, SKETCHES, Telemetry

COLUMNS = (*COUNTS, "sequence", "span_ms", "age_ms", "in_flight", "route_generation", "leaving")
"""What `Reported.numbers` has of each record; leaving is 0 or 1."""
SEQUENCE, SPAN_MS, AGE_MS, IN_FLIGHT, ROUTE_GENERATION, LEAVING = range(len(COUNTS), len(COLUMNS))

_LIMITS = {
    **dict.fromkeys(COLUMNS, MAX_COUNT),
    "span_ms": 3_600_000,
    "leaving": 1,
    "withdrawn": MAX_COUNT,
    "end_ms": MAX_MS,
    "schema_version": SCHEMA_VERSION,
}
_NUMBERS = len(_LIMITS)
_NAMES = slice(_NUMBERS, _NUMBERS + 3)
_SENT, _CELLS = _NUMBERS + 3, _NUMBERS + 4
_OTHERS = {
    LEAVING: bool,
    **dict.fromkeys(range(_NUMBERS, _NUMBERS + 3), str),
    _SENT: dict,
    _CELLS: str,
}
_WHOLE = [number for number in range(_NUMBERS) if number != LEAVING]
_ZEROS = (*[0] * LEAVING, False, 0, 0, SCHEMA_VERSION)
_PLAIN = (*_ZEROS, "m", "g", "b", {}, "")
_HIGHEST = np.array([[limit] for limit in _LIMITS.values()], np.float64)
_LOWEST = np.array([[0]] * (_NUMBERS - 1) + [[SCHEMA_VERSION]], np.float64)
_fields = itemgetter(*_LIMITS, "model", "gateway", "boot", "sent", CELLS)
_columns_of = attrgetter(*COLUMNS)
_sketches_of = attrgetter(*SKETCHES)
_MOST_NAMES = 100_000

Name: TypeAlias = tuple[str, str, str]
"""Model, gateway and boot."""

Kinds: TypeAlias = tuple[tuple[str, int], ...]
"""Requests sent, by their kind."""

_Rows: TypeAlias = list[tuple[Any, ...]]
_known: set[Name] = set()


def _digit_pairs() -> NDArray[np.int16]:
    found = np.full(65_536, -1, np.int16)
    found[np.frombuffer("".join(NUMBERS).encode(), "<u2")] = np.arange(len(NUMBERS))
    return found


_VALUES = _digit_pairs()
"""The number that two characters stand for, by what they are as a 16-bit number; -1: none."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Records of `Telemetry`. numbers: a row of COLUMNS for each; cells: of SKETCHES, pairs of
    16-bit numbers (place and count, see `topics.sketch`); kinds: of records that say any, by their
    place."""

    names: Sequence[Name]
    numbers: NDArray[np.int64]
    cells: Sequence[bytes]
    kinds: Mapping[int, Kinds] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def at(self, places: Sequence[int]) -> Reported:
        """Those at `places`."""
        kinds = {to: self.kinds[at] for to, at in enumerate(places) if at in self.kinds}
        return Reported(
            [self.names[at] for at in places],
            self.numbers[list(places)],
            [self.cells[at] for at in places],
            kinds,
        )


def reported(records: Sequence[Telemetry]) -> Reported:
    """`records` as windows count them."""
    return Reported(
        [(record.model, record.gateway, record.boot) for record in records],
        np.array([_columns_of(record) for record in records], np.int64).reshape(-1, len(COLUMNS)),
        [cells_of(to_text(_sketches_of(record))) or b"" for record in records],
        {at: _kinds(record) for at, record in enumerate(records) if record.sent},
    )


def _kinds(record: Telemetry) -> Kinds:
    return tuple(sorted((kind, sum(ways.values())) for kind, ways in record.sent.items()))


def cells_of(text: str) -> bytes | None:
    """The cells in a text of the wire; None if it is none."""
    if len(text) % CELL_CHARS or not text.isascii():
        return None
    numbers = _VALUES.take(np.frombuffer(text.encode(), "<u2"))
    return None if len(numbers) and numbers.min() < 0 else numbers.tobytes()


def read_reported(batch: Sequence[bytes]) -> tuple[Reported, dict[int, InvalidRecord]]:
    """The records on the wire in their order, and what is wrong with those that are none (as of
    `codec.decode`), by their place in `batch`."""
    bad: dict[int, InvalidRecord] = {}
    kinds: dict[int, Kinds] = {}
    rows: _Rows = []
    odd: list[int] = []
    for data in batch:
        try:
            rows.append(_fields(orjson.loads(data)))
        except (KeyError, TypeError, ValueError):  # of orjson too
            odd.append(len(rows))
            rows.append(_PLAIN)
    while True:
        for at in odd:
            try:
                record = decode_as(Telemetry, batch[at])
            except InvalidRecord as error:
                bad[at], rows[at] = error, _PLAIN
            else:
                rows[at] = _row(record)
                kinds.update({at: _kinds(record)} if record.sent else {})
        columns = list(zip(*rows, strict=True)) or [()] * len(_PLAIN)
        odd = _ill_typed(columns)
        if not odd:  # what else is strange shows where all are of their type
            numbers = np.array(columns[:_NUMBERS], np.float64)  # every limit is below 2**53
            cells = _cells(columns[_CELLS])
            odd = _ill_formed(columns, numbers, cells)
        if not odd:
            break
    found = Reported(
        list(zip(*columns[_NAMES], strict=True)),
        numbers[: len(COLUMNS)].T.astype(np.int64),
        [one or b"" for one in cells],
        kinds,
    )
    return (found.at([at for at in range(len(batch)) if at not in bad]) if bad else found), bad


def _row(record: Telemetry) -> tuple[Any, ...]:
    """`record` as it is read the quick way, without its kinds."""
    names = record.model, record.gateway, record.boot
    text = to_text(_sketches_of(record))
    return (*_columns_of(record), *_PLAIN[len(COLUMNS) : _NUMBERS], *names, {}, text)


def _ill_typed(columns: _Rows) -> list[int]:
    """The places of records with a field of another type."""
    if set(map(type, chain.from_iterable(columns[at] for at in _WHOLE))) <= {int} and all(
        set(map(type, columns[at])) <= {kind} for at, kind in _OTHERS.items()
    ):
        return []
    kinds = [_OTHERS.get(at, int) for at in range(len(_PLAIN))]
    return [
        at
        for at, row in enumerate(zip(*columns, strict=True))
        if any(type(value) is not kind for value, kind in zip(row, kinds, strict=True))
    ]


def _ill_formed(
    columns: _Rows, numbers: NDArray[np.float64], cells: Sequence[bytes | None]
) -> list[int]:
    """The places of records with a number out of bounds, a name or cells that are none; and of
    those that say kinds, which are few."""
    found = set(np.flatnonzero(((numbers < _LOWEST) | (numbers > _HIGHEST)).any(axis=0)).tolist())
    if any(columns[_SENT]):
        found.update(at for at, sent in enumerate(columns[_SENT]) if sent)
    if None in cells:
        found.update(at for at, one in enumerate(cells) if one is None)
    unknown = set(zip(*columns[_NAMES], strict=True)) - _known
    bad = {name for name in unknown if not _learn(name)}
    if bad:
        names = zip(*columns[_NAMES], strict=True)
        found.update(at for at, name in enumerate(names) if name in bad)
    return sorted(found)


def _learn(name: Name) -> bool:
    """Whether these are names, which is remembered."""
    try:
        for one in name:
            checks.name("", one)
    except InvalidRecord:
        return False
    if len(_known) >= _MOST_NAMES:
        _known.clear()
    _known.add(name)
    return True


def _cells(texts: Sequence[str]) -> list[bytes | None]:
    """The cells of each text, all read at once where all are good."""
    joined = None if any(len(text) % CELL_CHARS for text in texts) else cells_of("".join(texts))
    if joined is None:
        return [cells_of(text) for text in texts]
    upto = [0, *accumulate(map(len, texts))]  # a character is a byte: half a number
    return [joined[start:end] for start, end in pairwise(upto)]
