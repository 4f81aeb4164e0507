"""Port: what runs. First implementation: the statuses of our executors.

Servers that Shoal sees but does not manage will come through the same port, as statuses of
nodes that no pool declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from topics.records import Status


class ObservedInstances(Protocol):
    """What runs, as whoever runs it says."""

    def statuses(self) -> Mapping[str, Status]:
        """The latest status per node."""


class ExecutorStatuses:
    """Statuses that executors published, as the control topics' reader keeps them up to date."""

    def __init__(self, latest: Mapping[str, Status]) -> None:
        self._latest = latest

    def statuses(self) -> Mapping[str, Status]:
        """A copy: the snapshot must not change mid-tick."""
        return dict(self._latest)
