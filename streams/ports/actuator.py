"""Port: who starts and stops instances. First implementation: our executors, by assignments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from topics.records import Assignment


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an actuator can be asked for; the planner respects what it cannot.

    choose_victim: which instance is to go. place: on which node and GPUs one is to start.
    switch_role: make a prefill instance a decode one, or back, without a new start.
    """

    choose_victim: bool
    place: bool
    switch_role: bool


class Actuator(Protocol):
    """Carries desired state to where it becomes real. It is told states, not orders."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def apply(self, desired: Assignment) -> None:
        """Make `desired` what its node should run; returns at once, a copy does no harm."""


class Records(Protocol):
    """Where records go (the controller's outbox)."""

    def put(self, record: Any) -> None:
        """Queue a record of `topics.records`."""


class ExecutorActuator:
    """Our executors: the assignment is published for the node's executor to reconcile."""

    capabilities = Capabilities(choose_victim=True, place=True, switch_role=False)

    def __init__(self, records: Records) -> None:
        self._records = records

    def apply(self, desired: Assignment) -> None:
        """Publish it."""
        self._records.put(desired)


class WithheldActuator:
    """Mode recommend: nothing leaves. withheld: how many assignments would have."""

    capabilities = ExecutorActuator.capabilities

    def __init__(self) -> None:
        self.withheld = 0

    def apply(self, desired: Assignment) -> None:
        """Count it."""
        self.withheld += 1
