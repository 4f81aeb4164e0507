"""Port: who starts and stops instances. First implementation: our executors, by assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streams.ports.seal import Seal
from topics.records import Assignment


class Actuator(Protocol):
    """Carries desired state to where it becomes real. It is told states, not orders."""

    def apply(self, desired: Assignment) -> None:
        """Make `desired` what its node should run; returns at once, a copy does no harm."""


class Records(Protocol):
    """Where records go (the controller's outbox)."""

    def put(self, record: Any) -> None:
        """Queue a record of `topics.records`."""


class ExecutorActuator:
    """Our executors: the assignment is published for the node's executor to reconcile.

    acting: whether anything may be changed now; while it says no, assignments are withheld.
    seal: dates and signs them.
    """

    def __init__(self, records: Records, acting: Callable[[], bool], seal: Seal) -> None:
        self._records = records
        self._acting = acting
        self._seal = seal

    def apply(self, desired: Assignment) -> None:
        """Publish it."""
        if self._acting():
            self._records.put(self._seal(desired))
