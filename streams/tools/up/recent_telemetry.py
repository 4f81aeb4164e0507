"""The recent telemetry of a model, in which a copy of a record counts once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from topics.records import Telemetry

T = TypeVar("T")

_MOST_TELEMETRY = 10_000
"""Identities of a model's records that are remembered; a gateway buffers as many in memory."""


class Identities(Generic[T]):
    """The identities of the last `most` records."""

    def __init__(self, most: int) -> None:
        self._last: dict[T, None] = {}
        self._most = most

    def is_new(self, identity: T) -> bool:
        """Whether `identity` is not among them; it is from now on."""
        if identity in self._last:
            return False
        self._last[identity] = None
        if len(self._last) > self._most:
            del self._last[next(iter(self._last))]
        return True


@dataclass(slots=True)
class RecentTelemetry:
    """The recent telemetry of one model."""

    spans: deque[Telemetry] = field(default_factory=lambda: deque(maxlen=600))
    identities: Identities[tuple[str, str, int]] = field(
        default_factory=lambda: Identities(_MOST_TELEMETRY)
    )

    def is_new(self, record: Telemetry) -> bool:
        """Whether `record` is no copy of an earlier one."""
        return self.identities.is_new((record.gateway, record.boot, record.sequence))
