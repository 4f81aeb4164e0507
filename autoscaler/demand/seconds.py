"""How the spans of records fall on seconds.

Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoscaler.demand.cells import Dense, Wire, merged

_FAR = 2**40  # seconds: more than any time has

Values: TypeAlias = tuple[int, ...]
"""Counts of COUNTS."""

Span: TypeAlias = tuple[str, int, int, Values, Wire]
"""What one record says: model, event time of its end, its length (both ms), counts, sketches."""


def spread(spans: Sequence[Span]) -> Iterator[tuple[str, int, NDArray[np.int64], Dense | None]]:
    """(model, second, counts, sketches): what `spans` say together, by model, then by second.

    Each second gets counts in proportion to time, rounded so that they add up exactly; sketches go
    to the last second (None where none came). A span of 0 ms falls on the second before its end.
    """
    names, end, length, values, sketches = zip(*spans, strict=True)
    models = list(dict.fromkeys(names))
    place = {model: number for number, model in enumerate(models)}
    owners = np.array([place[name] for name in names], np.int64)
    counts = np.array(values, np.int64)
    ends, lengths = np.array(end, np.int64), np.maximum(1, np.array(length, np.int64))
    starts = ends - lengths
    firsts, lasts = starts // 1000, (ends - 1) // 1000
    touched = lasts - firsts + 1
    # A row for each second that a span touches.
    of = np.arange(len(spans)).repeat(touched)
    second = np.arange(len(of)) - (touched.cumsum() - touched - firsts)[of]
    until = np.minimum((second + 1) * 1000, ends[of]) - starts[of]
    upto = counts[of] * until[:, None] // lengths[of][:, None]
    part = upto.copy()
    part[1:] -= np.where((of[1:] == of[:-1])[:, None], upto[:-1], 0)
    keys, at = np.unique(_key(owners[of], second), return_inverse=True)
    totals = np.zeros((len(keys), counts.shape[1]), np.int64)
    np.add.at(totals, at, part)
    found: dict[int, list[Wire]] = {}
    for key, packed in zip(_key(owners, lasts).tolist(), sketches, strict=True):
        if any(packed):
            found.setdefault(key, []).append(packed)
    for key, total in zip(keys.tolist(), totals, strict=True):
        owner, number = divmod(key, _FAR)
        yield models[owner], number - _FAR // 2, total, merged(found[key]) if key in found else None


def _key(owners: NDArray[np.int64], seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = owners * _FAR + seconds + _FAR // 2
    return found
