"""The highest rate of the last while, kept in a few numbers.

Owns the sliding maximum. Knows nothing of what it is used for.
"""

from __future__ import annotations

SLOT_MS = 10_000

Peaks = tuple[tuple[int, float], ...]
"""(slot, highest requests/s in it): slots of 10 s rise, rates fall, so it stays short."""


def with_rate(peaks: Peaks, now_ms: int, req_per_s: float, keep_s: float) -> Peaks:
    """`peaks` with the rate seen now, without slots that ended more than `keep_s` ago."""
    slot = now_ms // SLOT_MS
    oldest = (now_ms - int(keep_s * 1000)) // SLOT_MS
    if peaks and peaks[-1][0] == slot:
        req_per_s = max(req_per_s, peaks[-1][1])
    kept = [peak for peak in peaks if oldest <= peak[0] < slot and peak[1] > req_per_s]
    return (*kept, (slot, req_per_s))


def highest(peaks: Peaks) -> float:
    """The highest rate kept; 0 where nothing is."""
    return peaks[0][1] if peaks else 0.0
