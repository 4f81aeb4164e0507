"""Port: starts and stops instances, and distributes requests over them.

It receives desired states, not commands, so a duplicate is harmless. The first implementation
publishes records, which our executors and gateways apply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streams.ports.record_signing import Seal
from topics.records import Assignment, Routes


class Actuator(Protocol):
    """Applies desired state: the instances of a node, or the routes of a model."""

    def apply(self, desired: Assignment | Routes) -> None:
        """Start to apply `desired` to its node or to the routes of its model; returns at once."""


class Publisher(Protocol):
    """Destination of records: the controller's outbox, or a list in tests."""

    def put(self, record: Any) -> None:
        """Accept a record of `topics.records`; returns at once, before delivery."""


class PublishingActuator:
    """Publishes desired state for our executors and gateways.

    acting: whether changes are allowed now; while it is false, records are withheld. seal: dates
    and signs the records.
    """

    def __init__(self, publisher: Publisher, acting: Callable[[], bool], seal: Seal) -> None:
        self._publisher = publisher
        self._acting = acting
        self._seal = seal

    def apply(self, desired: Assignment | Routes) -> None:
        """Publish `desired`."""
        if self._acting():
            self._publisher.put(self._seal(desired))
