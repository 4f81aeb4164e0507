"""Ejected instances of one model, and the time of the next probe of each.

Callers pass the time (`now_ms`, domain ms) and report the result of a probe.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from topics.records import Endpoint

PROBE_FIRST_MS = 1_000
PROBE_LAST_MS = 30_000


@dataclass(slots=True)
class _Ejection:
    """An ejected instance. due_ms: time of the next probe."""

    attempts: int
    due_ms: int


@dataclass(slots=True)
class Ejections:
    """The ejected instances of one model."""

    _why: dict[Endpoint, _Ejection] = field(default_factory=dict)

    @property
    def out(self) -> frozenset[Endpoint]:
        """The instances that receive no requests now."""
        return frozenset(self._why)

    def keep(self, live: Collection[Endpoint]) -> None:
        """Forget instances that are not in `live`."""
        self._why = {at: why for at, why in self._why.items() if at in live}

    def eject(self, endpoint: Endpoint, now_ms: int) -> bool:
        """Send no requests to `endpoint` until `readmit`. False if it is already ejected."""
        if endpoint in self._why:
            return False
        self._why[endpoint] = _Ejection(0, now_ms + PROBE_FIRST_MS)
        return True

    def due(self, now_ms: int) -> tuple[Endpoint, ...]:
        """Instances to probe now; the wait until the next probe doubles each time."""
        found = tuple(at for at, why in self._why.items() if why.due_ms <= now_ms)
        for endpoint in found:
            why = self._why[endpoint]
            why.attempts += 1
            why.due_ms = now_ms + min(PROBE_LAST_MS, PROBE_FIRST_MS << min(why.attempts, 10))
        return found

    def readmit(self, endpoint: Endpoint) -> bool:
        """Use `endpoint` again after a successful probe. False if it was not ejected."""
        return self._why.pop(endpoint, None) is not None
