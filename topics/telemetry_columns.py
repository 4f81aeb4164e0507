"""Batches of telemetry by column, with sketches as cells: the form that windows read.

`streams.ports.telemetry_wire` builds the batches from records.
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
"""The columns of `TelemetryBatch.numbers`; leaving is 0 or 1."""
SEQUENCE, SPAN_MS, AGE_MS, IN_FLIGHT, ROUTE_GENERATION, LEAVING = range(len(COUNTS), len(COLUMNS))

_columns_of = attrgetter(*COLUMNS)
_sketches_of = attrgetter(*SKETCHES)

SourceName: TypeAlias = tuple[str, str, str]
"""(model, gateway, boot): identifies the source of a record."""

SentByKind: TypeAlias = tuple[tuple[str, int], ...]
"""(kind, number of requests sent) pairs."""


_PAIRS = np.frombuffer("".join(NUMBERS).encode(), "<u2")
"""The two wire digits of each number, read as one 16-bit number."""
_VALUES = np.full(65_536, -1, np.int16)
"""The inverse of _PAIRS: the number by its two wire digits as a 16-bit number; -1 if the characters
are not digits."""
_VALUES[_PAIRS] = np.arange(len(NUMBERS))


@dataclass(frozen=True, slots=True)
class TelemetryBatch:
    """A batch of `Telemetry` records.

    numbers: one row of COLUMNS per record. cells: for each record its SKETCHES, as pairs of 16-bit
    numbers (place and count, see `topics.sketch`). kinds: requests by kind, by record index, only
    for records with kinds.
    """

    names: Sequence[SourceName]
    numbers: NDArray[np.int64]
    cells: Sequence[bytes]
    kinds: Mapping[int, SentByKind] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def select(self, places: Sequence[int]) -> TelemetryBatch:
        """The records at the indices `places`."""
        kinds = {to: self.kinds[at] for to, at in enumerate(places) if at in self.kinds}
        return TelemetryBatch(
            [self.names[at] for at in places],
            self.numbers[list(places)],
            [self.cells[at] for at in places],
            kinds,
        )


def batch_from_rows(
    names: Sequence[SourceName],
    rows: Sequence[Sequence[int]],
    cells: Sequence[bytes],
    kinds: Mapping[int, SentByKind] | None = None,
) -> TelemetryBatch:
    """A batch made of rows of numbers, in the order of COLUMNS, and the parts that belong to
    them."""
    return TelemetryBatch(
        names, np.array(rows, np.int64).reshape(-1, len(COLUMNS)), cells, kinds or {}
    )


def batch_of(records: Sequence[Telemetry]) -> TelemetryBatch:
    """`records` as one batch."""
    return batch_from_rows(
        [(record.model, record.gateway, record.boot) for record in records],
        [_columns_of(record) for record in records],
        [pack_cells(_sketches_of(record)) for record in records],
        {at: requests_by_kind(record.sent) for at, record in enumerate(records) if record.sent},
    )


def requests_by_kind(sent: Mapping[str, Mapping[str, int]]) -> SentByKind:
    """Number of requests by kind: the sums of `Telemetry.sent` over all destinations."""
    return tuple(sorted((kind, sum(ways.values())) for kind, ways in sent.items()))


def pack_cells(sketches: Iterable[Mapping[int, int]]) -> bytes:
    """The cells of `sketches` as bytes. The position of each sketch identifies it."""
    return array("h", to_numbers(sketches)).tobytes()


def parse_cells(text: str) -> bytes | None:
    """The cells in the wire text `text`, as bytes; None if the text is invalid."""
    if len(text) % CELL_CHARS or not text.isascii():
        return None
    numbers = _VALUES.take(np.frombuffer(text.encode(), "<u2"))
    return None if len(numbers) and numbers.min() < 0 else numbers.tobytes()


def cell_pairs(places: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int16]:
    """The cells for `places` and `counts` as an array (n, 2), as in `TelemetryBatch`; a count above
    MOST_IN_CELL takes several cells."""
    cells = counts // MOST_IN_CELL + 1
    numbers = np.full((int(cells.sum()), 2), MOST_IN_CELL, np.int16)
    numbers[:, 0] = places.repeat(cells)
    numbers[cells.cumsum() - 1, 1] = counts % MOST_IN_CELL
    return numbers


def cells_text(places: NDArray[Any], counts: NDArray[Any]) -> str:
    """The wire text of cells with these places and counts, see `cell_pairs`."""
    return _PAIRS.take(cell_pairs(places, counts)).tobytes().decode()
