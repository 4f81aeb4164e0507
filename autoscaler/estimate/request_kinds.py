"""Counts of requests per second and kind, for models with several request kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class KindCounts:
    """Requests by kind in the last `horizon_s` seconds before the newest second."""

    horizon_s: int
    _seconds: dict[int, Counter[str]] = field(default_factory=dict)

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
        return {kind: requests for kind, requests in sorted(total.items()) if requests}
