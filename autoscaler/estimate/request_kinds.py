"""Counts of requests per second and kind, for models with several request kinds, and of the
versions of a model that are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.estimate.arrival_counts import BLOCK_S
from topics.version_counts import VersionCounts, is_version_kind, read_counts

_LATE_S = 10
"""Age in seconds at which the counts of a second are complete. Later records are not compared."""
_KEPT_S = 300
"""Age in seconds of the oldest block. A reader that pauses for longer misses blocks."""


@dataclass(frozen=True, slots=True)
class VersionBlock:
    """Counts by version in the block of `BLOCK_S` seconds that ends at `end_ms`."""

    end_ms: int
    counts: Mapping[str, VersionCounts]


@dataclass(slots=True)
class KindCounts:
    """Requests by kind in the last `horizon_s` seconds before the newest second."""

    horizon_s: int
    _seconds: dict[int, Counter[str]] = field(default_factory=dict)
    _versions: tuple[int, tuple[VersionBlock, ...]] = (0, ())

    def add(self, second: int, kinds: Iterable[tuple[str, int]]) -> None:
        """Add `kinds`, (kind, requests) pairs that were counted in `second`."""
        counts = self._seconds.get(second)
        if counts is None:
            counts = self._seconds[second] = Counter()
            oldest = max(self._seconds) - self.horizon_s
            for old in [s for s in self._seconds if s < oldest]:
                del self._seconds[old]
        for kind, requests in kinds:
            counts[kind] += requests

    def counts_between(self, from_s: int, until_s: int) -> dict[str, int]:
        """Requests by kind from second `from_s` until before second `until_s`."""
        total: Counter[str] = Counter()
        for second in range(from_s, until_s):
            total.update(self._seconds.get(second, ()))
        return {kind: n for kind, n in sorted(total.items()) if n and not is_version_kind(kind)}

    def versions_until(self, now_s: int) -> tuple[VersionBlock, ...]:
        """The blocks with counts by version that are complete at second `now_s`, oldest first."""
        last_s = (now_s - _LATE_S) // BLOCK_S * BLOCK_S
        if self._versions[0] == last_s:
            return self._versions[1]
        blocks: list[VersionBlock] = []
        for start_s in range(last_s - _KEPT_S, last_s, BLOCK_S):
            seconds = (self._seconds.get(start_s + at, {}).items() for at in range(BLOCK_S))
            said = read_counts(one for counts in seconds for one in counts)
            if said:
                blocks.append(VersionBlock((start_s + BLOCK_S) * 1000, said))
        self._versions = last_s, tuple(blocks)
        return self._versions[1]
