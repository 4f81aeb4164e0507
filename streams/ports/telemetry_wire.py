"""Parse telemetry from the wire: compiled code scans whole batches, without an object per record.

This is the fast path for `telemetry`, the only topic with thousands of records a second. It accepts
compact JSON as our gateways write it, in older and newer versions too: optional fields may be
missing, and unknown fields are skipped. The scan locates `sent`, and orjson reads it. Records in
another form (spaces, escapes, non-ASCII) take the slow path through `topics.codec`, which accepts
them or gives the reason. The rest of the batch stays on the fast path.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import orjson

from streams.ports.telemetry_scan import scan
from topics import checks
from topics.checks import InvalidValue
from topics.codec import decode_as, read_value
from topics.telemetry import Telemetry, check_sent
from topics.telemetry_columns import (
    SentByKind,
    SourceName,
    TelemetryBatch,
    batch_of,
    requests_by_kind,
)

_MOST_NAMES = 100_000
_SENT = dict[str, dict[str, int]]
_BETWEEN = len('","gateway":"","boot":"')

_known: dict[bytes, SourceName] = {}
"""Validated names of models, gateways and boots, by their text on the wire."""


def read_reported(batch: Sequence[bytes]) -> tuple[TelemetryBatch, dict[int, InvalidValue]]:
    """The valid records of `batch` in order, and the errors of invalid records (as from
    `codec.decode`) by position in `batch`."""
    data = b"".join(batch)
    ends = np.append(0, np.cumsum([len(one) for one in batch], dtype=np.int64))
    numbers, spans, cells, cell_ends = scan(np.frombuffer(data, np.uint8), ends)
    pairs, odd = cells.tobytes(), []
    names: list[SourceName] = []
    said: dict[int, SentByKind] = {}
    for at, (start, end) in enumerate(zip(spans[:, 0].tolist(), spans[:, 5].tolist(), strict=True)):
        name = _known.get(data[start:end]) or _learn(data, spans[at, :6].tolist())
        names.append(name or ("", "", ""))
        if not name:
            odd.append(at)
    for at in np.flatnonzero(spans[:, 7] - spans[:, 6] > len("{}")).tolist():
        try:
            sent = read_value(_SENT, orjson.loads(data[spans[at, 6] : spans[at, 7]]))
            check_sent(sent)
        except InvalidValue:
            odd.append(at)
        else:
            said[at] = requests_by_kind(sent)
    upto = (2 * cell_ends).tolist()
    found = TelemetryBatch(names, numbers, [pairs[a:b] for a, b in pairwise(upto)], said)
    return _with_odd(found, batch, odd) if odd else (found, {})


def _with_odd(
    plain: TelemetryBatch, batch: Sequence[bytes], odd: Sequence[int]
) -> tuple[TelemetryBatch, dict[int, InvalidValue]]:
    """`plain`, with the records at the positions `odd` read by `codec`.

    Also returns the errors of invalid records by position; these records are removed.
    """
    names, numbers, cells = [*plain.names], plain.numbers, [*plain.cells]
    kinds = dict(plain.kinds)
    bad: dict[int, InvalidValue] = {}
    for at in odd:
        try:
            one = batch_of([decode_as(Telemetry, batch[at])])
        except InvalidValue as error:
            bad[at] = error
            continue
        names[at], numbers[at], cells[at] = one.names[0], one.numbers[0], one.cells[0]
        if one.kinds:
            kinds[at] = one.kinds[0]
    found = TelemetryBatch(names, numbers, cells, kinds)
    return found.select([at for at in range(len(batch)) if at not in bad]), bad


def _learn(data: bytes, spans: Sequence[int]) -> SourceName | None:
    """The model, gateway and boot of a record. `spans`: their positions in `data`, from `scan`.

    None if one of them is missing or invalid. If the three names are adjacent in `data`, they are
    stored in `_known`, so that the next record with the same bytes needs no parsing.
    """
    start, end = spans[0], spans[5]
    if start < 0 or not start < spans[1] < spans[2] < spans[3] < spans[4] < end:
        return None
    model, gateway, boot = (
        data[a:b].decode() for a, b in zip(spans[::2], spans[1::2], strict=True)
    )
    try:
        for one in (model, gateway, boot):
            checks.name("", one)
    except InvalidValue:
        return None
    if end - start == len(model) + len(gateway) + len(boot) + _BETWEEN:
        if len(_known) >= _MOST_NAMES:
            _known.clear()
        _known[data[start:end]] = model, gateway, boot
    return model, gateway, boot
