"""What an executor knows of one node: values only.

Holds `NodeState`, the observations that enter it and the commands that leave it. Knows no process
and no clock; all times are domain ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topics.fleet import Assignment, DesiredInstance, InstanceState


@dataclass(frozen=True, slots=True)
class Held:
    """One instance of the node.

    desired: as the assignment in force wants it. phase: the one its process serves, or will when
    it is started. process: a process of it is believed to live. endpoint: "host:port" under which
    that process is reached; ports: on which it listens. answered: it was ready once.
    failures: starts in a row that did not last; retry_ms: not launched before. drain_ms,
    terminated_ms, killed_ms: when that was begun, 0 = not. sick_ms: since when a ready engine
    shows no sign of life, 0 = it does. switch_ms: when a role switch was begun, 0 = none is under
    way; from_phase: to go back to if it fails; refused_phase: a switch to it failed and is not
    tried again before another one is wanted. sleep_ms: when it was told to sleep, or to wake where
    it is starting; 0 = it was not. in_flight, held_kv: as last seen.
    """

    desired: DesiredInstance
    state: InstanceState
    since_ms: int
    phase: str = ""
    process: bool = False
    answered: bool = False
    endpoint: str = ""
    ports: tuple[int, ...] = ()
    launched_ms: int = 0
    restarts: int = 0
    failures: int = 0
    retry_ms: int = 0
    drain_ms: int = 0
    terminated_ms: int = 0
    killed_ms: int = 0
    sick_ms: int = 0
    switch_ms: int = 0
    from_phase: str = ""
    refused_phase: str = ""
    sleep_ms: int = 0
    in_flight: int = 0
    held_kv: int = 0
    reason: str = ""

    @property
    def instance(self) -> str:
        """Its id."""
        return self.desired.instance


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: the assignment in force (None: never seen one) and its instances by id.

    expires_ms: when it stops being in force, by this executor's own clock; 0 = never.
    refused: assignments refused, by reason ("leader token", "generation", "node", ...).
    """

    node: str
    pool: str
    assignment: Assignment | None = None
    held: tuple[Held, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of an instance's process since the last step.

    alive: it runs. healthy: it showed that it can serve (True), or was asked and did not (False);
    None = not asked. in_flight: None = not known. probed_ms: when it was asked. note: why it ended,
    where that is known. asleep: it was told to sleep, and does.
    """

    alive: bool
    healthy: bool | None = None
    in_flight: int | None = None
    held_kv: int = 0
    probed_ms: int = 0
    note: str = ""
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Deadlines and bounds, in domain ms (the runner stretches those of real processes).

    drain_timeout_ms: where the assignment names none. stop_ms: from SIGTERM to SIGKILL, by engine;
    kill_after_ms: of engines not named there, and between two SIGKILLs. max_attempts: launches in a
    row that may fail before the instance is given up; switch_attempts: before a switch is rolled
    back. stable_ms: an instance that was ready so long begins to count failures anew. routing:
    engines whose instances switch roles without a restart. sleeping: engines whose instances sleep
    instead of being stopped, where the node stays. leave_by_ms: when drains must be over
    because the node is taken away, 0 = it is not.
    """

    start_timeout_ms: int = 600_000
    drain_timeout_ms: int = 120_000
    kill_after_ms: int = 15_000
    sick_after_ms: int = 30_000
    backoff_ms: int = 5_000
    max_backoff_ms: int = 60_000
    max_attempts: int = 3
    switch_attempts: int = 2
    stable_ms: int = 300_000
    stop_ms: Mapping[str, int] = field(default_factory=dict)
    routing: frozenset[str] = frozenset()
    sleeping: frozenset[str] = frozenset()
    leave_by_ms: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for this instance, in this phase."""

    desired: DesiredInstance
    phase: str


@dataclass(frozen=True, slots=True)
class Wake:
    """The process of `sleeper` is that of `instance` from now on, and shall wake."""

    sleeper: str
    instance: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM: it may finish what it has."""

    instance: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to it and everything it started."""

    instance: str


Command = Launch | Wake | Terminate | Kill
