"""Telemetry as windows count it: many records by column, with their sketches in cells.

Owns that form. Knows nothing of how records are read (`streams.ports.telemetry_wire` does).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.sketch import CELL_CHARS, MOST_IN_CELL, NUMBERS, to_numbers
from topics.telemetry import COUNTS, SKETCHES, Telemetry

COLUMNS = (*COUNTS, "sequence", "span_ms", "age_ms", "in_flight", "route_generation", "leaving")
"""What `Reported.numbers` has of each record; leaving is 0 or 1."""
SEQUENCE, SPAN_MS, AGE_MS, IN_FLIGHT, ROUTE_GENERATION, LEAVING = range(len(COUNTS), len(COLUMNS))

_columns_of = attrgetter(*COLUMNS)
_sketches_of = attrgetter(*SKETCHES)

Name: TypeAlias = tuple[str, str, str]
"""Model, gateway and boot."""

Kinds: TypeAlias = tuple[tuple[str, int], ...]
"""Requests sent, by their kind."""


_PAIRS = np.frombuffer("".join(NUMBERS).encode(), "<u2")
"""The two characters of each number, as a 16-bit number."""
_VALUES = np.full(65_536, -1, np.int16)
"""The number that two characters stand for, by what they are as a 16-bit number; -1: none."""
_VALUES[_PAIRS] = np.arange(len(NUMBERS))


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


def from_rows(
    names: Sequence[Name],
    rows: Sequence[Sequence[int]],
    cells: Sequence[bytes],
    kinds: Mapping[int, Kinds] | None = None,
) -> Reported:
    """rows: COLUMNS of each record."""
    return Reported(names, np.array(rows, np.int64).reshape(-1, len(COLUMNS)), cells, kinds or {})


def reported(records: Sequence[Telemetry]) -> Reported:
    """`records` as windows count them."""
    return from_rows(
        [(record.model, record.gateway, record.boot) for record in records],
        [_columns_of(record) for record in records],
        [cells_with(_sketches_of(record)) for record in records],
        {at: kinds_of(record.sent) for at, record in enumerate(records) if record.sent},
    )


def kinds_of(sent: Mapping[str, Mapping[str, int]]) -> Kinds:
    """What `Telemetry.sent` says, wherever the requests went."""
    return tuple(sorted((kind, sum(ways.values())) for kind, ways in sent.items()))


def cells_with(sketches: Iterable[Mapping[int, int]]) -> bytes:
    """The cells of `sketches`; their places count."""
    return array("h", to_numbers(sketches)).tobytes()


def cells_of(text: str) -> bytes | None:
    """The cells in a text of the wire; None if it is none."""
    if len(text) % CELL_CHARS or not text.isascii():
        return None
    numbers = _VALUES.take(np.frombuffer(text.encode(), "<u2"))
    return None if len(numbers) and numbers.min() < 0 else numbers.tobytes()


def pairs_of(places: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int16]:
    """Cells, (n, 2), as `Reported` has them, whose places are `places`; one of a count above
    MOST_IN_CELL is several."""
    cells = counts // MOST_IN_CELL + 1
    numbers = np.full((int(cells.sum()), 2), MOST_IN_CELL, np.int16)
    numbers[:, 0] = places.repeat(cells)
    numbers[cells.cumsum() - 1, 1] = counts % MOST_IN_CELL
    return numbers


def text_of(places: NDArray[Any], counts: NDArray[Any]) -> str:
    """Cells as the wire has them, whose places are `places`."""
    return _PAIRS.take(pairs_of(places, counts)).tobytes().decode()
