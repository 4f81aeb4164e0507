"""Sketches of a record, a second or a window as arrays, and packed.

Owns the two forms. Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.sketch import HIGHEST, LOWEST
from topics.telemetry import SKETCHES

WIDTH = HIGHEST - LOWEST + 1
_CELL = np.dtype([("cell", "<u2"), ("count", "<u4")])
_MOST = 2**32 - 1

Dense: TypeAlias = NDArray[np.int64]
"""(len(SKETCHES), WIDTH): counts of bucket - LOWEST of each sketch."""

Wire: TypeAlias = tuple[bytes, ...]
"""Sketches of SKETCHES as `topics.sketch` packs them."""


def nothing() -> Dense:
    """Nothing seen."""
    return np.zeros((len(SKETCHES), WIDTH), np.int64)


def merged(all_: Sequence[Wire]) -> Dense:
    """What several records saw together. A bucket beyond the last one counts as the last."""
    found = nothing()
    for counts, pairs in zip(found, zip(*all_, strict=True), strict=True):
        joined = b"".join(pairs)
        if joined:
            buckets, seen = np.frombuffer(joined, "<u2").reshape(-1, 2).T
            total = np.bincount(buckets, seen, WIDTH)
            counts[:] = total[:WIDTH]
            counts[-1] += int(total[WIDTH:].sum())
    return found


def packed(dense: Dense) -> bytes:
    """The cells of `dense` that are not empty, in 6 bytes each."""
    flat = dense.ravel()
    (at,) = flat.nonzero()
    made = np.empty(len(at), _CELL)
    made["cell"] = at
    made["count"] = np.minimum(flat[at], _MOST)
    return made.tobytes()


def unpacked(kept: bytes, into: Dense, sign: int = 1) -> Dense:
    """`into`, with what `packed` kept counted in (out with sign -1)."""
    cells = np.frombuffer(kept, _CELL)
    into.reshape(-1)[cells["cell"]] += sign * cells["count"].astype(np.int64)
    return into
