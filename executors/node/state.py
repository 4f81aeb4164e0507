"""What an executor knows of one node: values only.

Owns `NodeState`, the observations that enter it and the commands that leave it. Knows no process
and no clock; all times are domain ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.fleet import Assignment, DesiredInstance, InstanceState


@dataclass(frozen=True, slots=True)
class Held:
    """One instance of the node.

    process: a process of it is believed to live. endpoint: "host:port" of that process;
    answered: it was ready once.
    failures: starts in a row that did not last; retry_ms: not launched before. drain_ms,
    terminated_ms, killed_ms: when that was begun, 0 = not. sick_ms: since when a ready engine
    does not answer, 0 = it does. in_flight, held_kv: as last seen.
    """

    desired: DesiredInstance
    state: InstanceState
    since_ms: int
    process: bool = False
    answered: bool = False
    endpoint: str = ""
    launched_ms: int = 0
    restarts: int = 0
    failures: int = 0
    retry_ms: int = 0
    drain_ms: int = 0
    terminated_ms: int = 0
    killed_ms: int = 0
    sick_ms: int = 0
    in_flight: int = 0
    held_kv: int = 0
    reason: str = ""

    @property
    def instance(self) -> str:
        """Its id."""
        return self.desired.instance


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: the assignment in force (None: never seen one) and its instances by id."""

    node: str
    pool: str
    assignment: Assignment | None = None
    held: tuple[Held, ...] = ()
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of an instance's process since the last step.

    alive: it runs. healthy: it answered /health with 200; None = not asked. in_flight: None =
    not known. probed_ms: when it was asked. note: why it ended, where that is known.
    """

    alive: bool
    healthy: bool | None = None
    in_flight: int | None = None
    held_kv: int = 0
    probed_ms: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Deadlines and bounds, in domain ms (the runner stretches those of real processes).

    max_attempts: launches in a row that may fail before the instance is given up.
    stable_ms: an instance that was ready so long begins to count failures anew.
    """

    start_timeout_ms: int = 600_000
    drain_timeout_ms: int = 120_000
    kill_after_ms: int = 15_000
    sick_after_ms: int = 10_000
    backoff_ms: int = 5_000
    max_backoff_ms: int = 60_000
    max_attempts: int = 3
    stable_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for this instance."""

    desired: DesiredInstance


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM: it may finish what it has."""

    instance: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to its whole process group."""

    instance: str


Command = Launch | Terminate | Kill
