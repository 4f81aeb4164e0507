"""Telemetry off the wire: whole batches scanned by compiled code, without an object per record.

Owns the quick way for the one topic that carries thousands of records a second. It takes compact
JSON as our gateways write it, of versions before and after ours too: optional fields may be missing
and unknown ones are skipped. What has another form (`sent` that says something, names in another
order) goes the slow way through `topics.codec`, which takes it or says what is wrong with it. The
rest of its batch does not notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.compiled import compiled
from streams.ports.json_scan import after_key, after_text, after_value, after_word
from topics import checks
from topics.checks import MAX_COUNT, MAX_MS, InvalidRecord
from topics.codec import CELLS, MAX_BYTES, NEWEST, OLDEST, decode_as
from topics.reported import COLUMNS, LEAVING, Kinds, Name, Reported, reported
from topics.sketch import CELL_CHARS, DIGITS, MOST_COUNT
from topics.telemetry import Telemetry

_RANGES = {
    **dict.fromkeys(COLUMNS, (0, MAX_COUNT)),
    "span_ms": (0, 3_600_000),
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
_MOST_DIGITS = 15
_QUOTE, _COMMA, _OPEN, _CLOSE = b'",{}'
_ZERO, _NINE, _TRUE, _FALSE = b"09tf"
_MOST_NAMES = 100_000
_BETWEEN = len('","gateway":"","boot":"')

_known: dict[bytes, Name] = {}
"""Names that were looked at, by the text that says them."""

_Whole = NDArray[np.int64]


def read_reported(batch: Sequence[bytes]) -> tuple[Reported, dict[int, InvalidRecord]]:
    """The records on the wire in their order, and what is wrong with those that are none (as of
    `codec.decode`), by their place in `batch`."""
    data = b"".join(batch)
    ends = np.append(0, np.cumsum([len(one) for one in batch], dtype=np.int64))
    numbers, spans, cells, cell_ends = _scan(np.frombuffer(data, np.uint8), ends)
    pairs, odd = cells.tobytes(), []
    names: list[Name] = []
    for at, (start, end) in enumerate(zip(spans[:, 0].tolist(), spans[:, 5].tolist(), strict=True)):
        name = _known.get(data[start:end]) or _learn(data, spans[at].tolist())
        names.append(name or ("", "", ""))
        if not name:
            odd.append(at)
    upto = (2 * cell_ends).tolist()
    found = Reported(names, numbers, [pairs[a:b] for a, b in pairwise(upto)])
    return _with_odd(found, batch, odd) if odd else (found, {})


def _with_odd(
    plain: Reported, batch: Sequence[bytes], odd: Sequence[int]
) -> tuple[Reported, dict[int, InvalidRecord]]:
    """`plain` with the records at `odd` as `codec` reads them."""
    names, numbers, cells = [*plain.names], plain.numbers, [*plain.cells]
    kinds: dict[int, Kinds] = {}
    bad: dict[int, InvalidRecord] = {}
    for at in odd:
        try:
            one = reported([decode_as(Telemetry, batch[at])])
        except InvalidRecord as error:
            bad[at] = error
            continue
        names[at], numbers[at], cells[at] = one.names[0], one.numbers[0], one.cells[0]
        if one.kinds:
            kinds[at] = one.kinds[0]
    found = Reported(names, numbers, cells, kinds)
    return found.at([at for at in range(len(batch)) if at not in bad]), bad


def _learn(data: bytes, spans: Sequence[int]) -> Name | None:
    """The names there, which are remembered where they stand together; None where they are none.
    spans: as of `_scan`."""
    start, end = spans[0], spans[5]
    if start < 0 or not start < spans[1] < spans[2] < spans[3] < spans[4] < end:
        return None
    model, gateway, boot = (
        data[a:b].decode() for a, b in zip(spans[::2], spans[1::2], strict=True)
    )
    try:
        for one in (model, gateway, boot):
            checks.name("", one)
    except InvalidRecord:
        return None
    if end - start == len(model) + len(gateway) + len(boot) + _BETWEEN:
        if len(_known) >= _MOST_NAMES:
            _known.clear()
        _known[data[start:end]] = model, gateway, boot
    return model, gateway, boot


@compiled
def _scan(
    data: NDArray[np.uint8], ends: _Whole
) -> tuple[_Whole, _Whole, NDArray[np.int16], _Whole]:
    """COLUMNS of each record, where its names begin and end (the first -1: it is of another form),
    the cells of all, and where those of each record begin. ends: where records begin, and the last
    ends."""
    count = len(ends) - 1
    numbers = np.zeros((count, len(COLUMNS)), np.int64)
    spans = np.zeros((count, 6), np.int64)
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
            or cells[begin + 1 : said : 2].sum() > MOST_COUNT  # a bucket may have too many
        ):
            said = begin
            spans[record] = -1
        else:
            numbers[record] = values[: len(COLUMNS)]
        cell_ends[record + 1] = said
    return numbers, spans, cells[:said], cell_ends


@compiled
def _record(
    data: NDArray[np.uint8], at: int, end: int, values: _Whole, spans: _Whole,
    cells: NDArray[np.int16], said: int,
) -> int:  # fmt: skip
    """Read the record from `at` until `end` into `values`, `spans` and `cells`, in which `said`
    numbers stand; how many do then, -1 where it is of another form."""
    if at == end or data[at] != _OPEN or data[end - 1] != _CLOSE:
        return -1
    values[:] = 0
    seen, expected = 0, 0
    at += 1
    end -= 1  # the brace, at which every look ahead stops
    while True:
        field = _field(data, at, end, expected)
        if field >= 0:
            if seen & (1 << field):
                return -1  # twice
            seen |= 1 << field
            expected = field + 1
            at += _KEY_ENDS[field + 1] - _KEY_ENDS[field]
        if field < 0:
            at = after_key(data, at, end)
            if at < 0:
                return -1
            at = after_value(data, at, end)
            if at < 0:
                return -1
        elif field < _FIRST_NAME:
            number = 0
            first = at
            if field == LEAVING:
                if data[at] != _TRUE and data[at] != _FALSE:
                    return -1
                number = int(data[at] == _TRUE)
                at = after_word(data, at, end)
                if at < 0:
                    return -1
            else:
                while _ZERO <= data[at] <= _NINE:
                    number = 10 * number + int(data[at]) - _ZERO
                    at += 1
                digits = at - first
                if digits < 1 or digits > _MOST_DIGITS or (digits > 1 and data[first] == _ZERO):
                    return -1
            if number < _RANGE[field, 0] or number > _RANGE[field, 1]:
                return -1
            values[field] = number
        elif field == _SENT:
            if data[at] != _OPEN or data[at + 1] != _CLOSE or at + 1 >= end:
                return -1
            at += 2
        elif field < _SENT:
            spans[2 * (field - _FIRST_NAME)] = at + 1
            at = after_text(data, at, end)
            if at < 0:
                return -1
            spans[2 * (field - _FIRST_NAME) + 1] = at - 1
        else:
            first = at + 1
            if data[at] != _QUOTE:
                return -1
            at = first
            while at < end:
                high, low = _DIGIT[data[at]], _DIGIT[data[at + 1]]
                if high < 0 or low < 0:
                    break
                cells[said] = _BASE * int(high) + int(low)
                said += 1
                at += 2
            if at >= end or data[at] != _QUOTE or (at - first) % CELL_CHARS:
                return -1
            at += 1
        if at == end:
            break
        if data[at] != _COMMA:
            return -1
        at += 1
    return said if seen & _NEEDED == _NEEDED else -1


@compiled
def _field(data: NDArray[np.uint8], at: int, end: int, expected: int) -> int:
    """The number of the field whose key begins at `at`; -1 where none does."""
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
