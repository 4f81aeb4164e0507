"""Port: who starts and stops instances, and who spreads requests over them.

They are told states, not orders; a copy does no harm. First implementation: the records are
published, for our executors to reconcile and our gateways to follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streams.ports.record_signing import Seal
from topics.records import Assignment, Routes


class Desired(Protocol):
    """Carries desired state to where it becomes real: what a node runs, and where requests go."""

    def apply(self, desired: Assignment | Routes) -> None:
        """Make `desired` what its node should run, or the routes of its model; returns at once."""


class Publisher(Protocol):
    """Where records go; the first one is the controller's outbox, tests record."""

    def put(self, record: Any) -> None:
        """Hand over a record of `topics.records`; returns at once, delivery is not this call's."""


class Published:
    """Our executors and gateways: what they should do is published for them.

    acting: whether anything may be changed now; while it says no, records are withheld.
    seal: dates and signs them.
    """

    def __init__(self, publisher: Publisher, acting: Callable[[], bool], seal: Seal) -> None:
        self._publisher = publisher
        self._acting = acting
        self._seal = seal

    def apply(self, desired: Assignment | Routes) -> None:
        """Publish it."""
        if self._acting():
            self._publisher.put(self._seal(desired))
