"""Layout of a telemetry record on the wire, and the compiled code that reads many records.

This module defines the fields and the ranges of their numbers. The caller checks everything else.
`end` is the position of the closing brace, as in `streams.ports.json_scan`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.numba_decorators import compiled
from streams.ports.json_scan import after_key, after_text, after_value, after_word
from topics.checks import MAX_COUNT, MAX_MS
from topics.codec import CELLS, MAX_BYTES, NEWEST, OLDEST
from topics.sketch import CELL_CHARS, DIGITS, MOST_COUNT
from topics.telemetry import (
    COUNTS,
    LONGEST_SPAN_MS,
    MOST_IN_FLIGHT,
    MOST_PER_S,
    MOST_REQUESTS_PER_S,
    Telemetry,
)
from topics.telemetry_columns import COLUMNS, LEAVING, SPAN_MS

_RANGES = {
    **dict.fromkeys(COLUMNS, (0, MAX_COUNT)),
    "span_ms": (0, LONGEST_SPAN_MS),
    "in_flight": (0, MOST_IN_FLIGHT),
    "leaving": (0, 1),
    "withdrawn": (0, MAX_COUNT),
    "end_ms": (0, MAX_MS),
    "schema_version": (OLDEST, NEWEST),
}
_NAMES = ("model", "gateway", "boot")
_FIELDS = (*_RANGES, *_NAMES, "sent", CELLS)
_RANGE = np.array([*_RANGES.values()], np.int64)
_FIRST_NAME, _SENT, _CELLS = len(_RANGES), len(_FIELDS) - 2, len(_FIELDS) - 1
_OPTIONAL = {
    field.name
    for field in dataclasses.fields(Telemetry)
    if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
}
_NEEDED = sum(1 << at for at, field in enumerate(_FIELDS) if field not in _OPTIONAL)
_KEYS = np.frombuffer("".join(f'"{field}":' for field in _FIELDS).encode(), np.uint8)
_KEY_ENDS = np.append(0, np.cumsum([len(f'"{field}":') for field in _FIELDS]))
_DIGIT = np.full(256, -1, np.int16)
_DIGIT[np.frombuffer(DIGITS.encode(), np.uint8)] = np.arange(len(DIGITS))
_BASE = len(DIGITS)
_PER_S = np.array([*MOST_PER_S, MOST_REQUESTS_PER_S], np.int64)
_COUNTED = np.array([*range(len(COUNTS)), [*_RANGES].index("withdrawn")], np.int64)
"""Fields whose counts are limited to `_PER_S` per second."""
_MOST_DIGITS = 15
_QUOTE, _COMMA, _OPEN, _CLOSE = b'",{}'
_ZERO, _NINE, _TRUE, _NULL = b"09tn"

_Text = NDArray[np.uint8]
_Whole = NDArray[np.int64]
_Cells = NDArray[np.int16]


@compiled
def scan(data: _Text, ends: _Whole) -> tuple[_Whole, _Whole, _Cells, _Whole]:
    """Read the records of a batch into arrays.

    Returns four arrays: the COLUMNS of each record; start and end positions of its names and of
    `sent`; the cells of all records; and the position in the cells at which each record begins. The
    first position of a record in another format is -1. ends: start position of each record, then
    the end of the last one.
    """
    count = len(ends) - 1
    numbers = np.zeros((count, len(COLUMNS)), np.int64)
    spans = np.zeros((count, 2 * (len(_NAMES) + 1)), np.int64)
    cells = np.empty(len(data) // 2, np.int16)
    cell_ends = np.zeros(count + 1, np.int64)
    values = np.empty(len(_RANGE), np.int64)
    said = 0
    for record in range(count):
        start, end = ends[record], ends[record + 1]
        begin = said
        said = _record(data, start, end, values, spans[record], cells, said)
        if (
            said < 0
            or end - start > MAX_BYTES
            or cells[begin + 1 : said : 2].sum() > MOST_COUNT  # A bucket's count may be too high.
            or _is_beyond(values)
        ):
            said = begin
            spans[record] = -1
        else:
            numbers[record] = values[: len(COLUMNS)]
        cell_ends[record + 1] = said
    return numbers, spans, cells[:said], cell_ends


@compiled
def _is_beyond(values: _Whole) -> bool:
    """Whether a count in `values` exceeds the maximum for the length of the span."""
    seconds = max(1, -(-values[SPAN_MS] // 1000))
    beyond = False
    for at in range(len(_COUNTED)):
        beyond = beyond or values[_COUNTED[at]] > _PER_S[at] * seconds
    return beyond


@compiled
def _record(
    data: _Text, at: int, end: int, values: _Whole, spans: _Whole, cells: _Cells, said: int
) -> int:
    """Read the record from `at` until `end` into `values` and `spans`, and append its numbers to
    `cells`, which holds `said` numbers. Returns the new number of `cells`; -1 if the record has
    another form."""
    if at == end or data[at] != _OPEN or data[end - 1] != _CLOSE:
        return -1
    values[:] = 0
    seen, expected = 0, 0
    at += 1
    end -= 1  # the closing brace, which ends every look-ahead
    while True:
        field = _field(data, at, end, expected)
        if field < 0:
            at = after_key(data, at, end)
            if at >= 0:
                at = after_value(data, at, end)
        else:
            if seen & (1 << field):
                return -1  # The field occurs twice.
            seen |= 1 << field
            expected = field + 1
            at += _KEY_ENDS[field + 1] - _KEY_ENDS[field]
            first = at
            if field < _FIRST_NAME:
                number = 0
                if field == LEAVING:
                    number = int(data[at] == _TRUE)
                    at = -1 if data[at] == _NULL else after_word(data, at, end)
                else:
                    while _ZERO <= data[at] <= _NINE:
                        number = 10 * number + int(data[at]) - _ZERO
                        at += 1
                    digits = at - first
                    if not 1 <= digits <= _MOST_DIGITS or (digits > 1 and data[first] == _ZERO):
                        return -1
                if not _RANGE[field, 0] <= number <= _RANGE[field, 1]:
                    return -1
                values[field] = number
            elif field <= _SENT:
                inside = int(field < _SENT)  # without the quotes
                if inside:
                    at = after_text(data, at, end)
                else:
                    at = after_value(data, at, end) if data[at] == _OPEN else -1
                span = 2 * (field - _FIRST_NAME)
                spans[span], spans[span + 1] = first + inside, at - inside
            elif data[at] == _QUOTE:
                begin = said
                said = _digits(data, at + 1, end, cells, said)
                at += 1 + 2 * (said - begin)
                whole = at < end and data[at] == _QUOTE and (at - first - 1) % CELL_CHARS == 0
                at = at + 1 if whole else -1
            else:
                return -1
        if at < 0:
            return -1
        if at == end:
            return said if seen & _NEEDED == _NEEDED else -1
        if data[at] != _COMMA:
            return -1
        at += 1


@compiled
def _digits(data: _Text, at: int, end: int, cells: _Cells, said: int) -> int:
    """Read pairs of digits from position `at` and append their numbers to `cells`, which holds
    `said` numbers. Returns the new number of `cells`."""
    while at < end:
        high, low = _DIGIT[data[at]], _DIGIT[data[at + 1]]
        if high < 0 or low < 0:
            break
        cells[said] = _BASE * int(high) + int(low)
        said += 1
        at += 2
    return said


@compiled
def _field(data: _Text, at: int, end: int, expected: int) -> int:
    """The index of the field whose key begins at `at`; -1 if no known key begins there."""
    for turn in range(len(_FIELDS)):
        field = (expected + turn) % len(_FIELDS)
        first = _KEY_ENDS[field]
        size = _KEY_ENDS[field + 1] - first
        if at + size <= end:
            same = True
            for place in range(size):
                if data[at + place] != _KEYS[first + place]:
                    same = False
                    break
            if same:
                return field
    return -1
