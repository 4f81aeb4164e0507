"""How the spans of records fall on seconds.

Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.demand.cells import Kept, merged
from topics.reported import Reported

_FAR = 2**40  # seconds: more than any time has


def spread(
    spans: Sequence[tuple[Reported, int]],
) -> Iterator[tuple[str, int, NDArray[np.int64], Kept]]:
    """(model, second, counts, sketches): what `spans` (records and the event times of their ends)
    say together, by model, then by second.

    Each second gets counts in proportion to time, rounded so that they add up exactly; sketches go
    to the last second. A span of 0 ms falls on the second before its end.
    """
    if not spans:
        return
    records, ends_ms = zip(*spans, strict=True)
    names = [record.model for record in records]
    models = list(dict.fromkeys(names))
    place = {model: number for number, model in enumerate(models)}
    owners = np.array([place[name] for name in names], np.int64)
    counts = np.array([record.values for record in records], np.int64)
    ends = np.array(ends_ms, np.int64)
    lengths = np.maximum(1, np.array([record.span_ms for record in records], np.int64))
    starts = ends - lengths
    firsts, lasts = starts // 1000, (ends - 1) // 1000
    touched = lasts - firsts + 1
    # A row for each second that a span touches.
    of = np.arange(len(records)).repeat(touched)
    second = np.arange(len(of)) - (touched.cumsum() - touched - firsts)[of]
    until = np.minimum((second + 1) * 1000, ends[of]) - starts[of]
    upto = counts[of] * until[:, None] // lengths[of][:, None]
    part = upto.copy()
    part[1:] -= np.where((of[1:] == of[:-1])[:, None], upto[:-1], 0)
    # Rows of the same model and second are added up.
    row_keys = _key(owners[of], second)
    order = row_keys.argsort(kind="stable")
    keys, begins = np.unique(row_keys[order], return_index=True)
    totals = np.add.reduceat(part[order], begins)
    last_keys = _key(owners, lasts)
    order = last_keys.argsort(kind="stable")
    ends, group = np.unique(last_keys[order], return_inverse=True)
    sketches = merged([records[at].cells for at in order.tolist()], group, len(ends))
    kept = dict(zip(ends.tolist(), sketches, strict=True))
    for key, total in zip(keys.tolist(), totals, strict=True):
        owner, number = divmod(key, _FAR)
        yield models[owner], number - _FAR // 2, total, kept.get(key, b"")


def _key(owners: NDArray[np.int64], seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = owners * _FAR + seconds + _FAR // 2
    return found
