"""State of one node, observations that change the state, and the resulting commands. Values only.

All times are domain ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topics.engine_start import EngineStart
from topics.fleet import Assignment, DesiredInstance, InstanceState


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One instance of the node.

    desired: the instance's entry in the current assignment. since_ms: time at which the instance
    entered `state`. phase: the phase that its process serves, or will serve once launched.
    has_process: whether its process is believed to be alive. was_ready: whether the instance was
    ready at least once since that launch. endpoint: "host:port" of the process; ports: on which the
    process listens. failures: consecutive starts that failed or did not last; retry_ms: earliest
    next launch. restarts: launches after the first. drain_ms, terminated_ms, killed_ms: times at
    which the drain began and SIGTERM and SIGKILL were sent, 0 = not yet. unhealthy_since_ms: time
    since which a ready engine has failed its probes, 0 = healthy. switch_ms: time at which a role
    switch began, 0 = no switch in progress; from_phase: the phase to return to if the switch fails;
    refused_phase: a phase to which a switch failed, which is not retried until the assignment
    requests another phase. sleep_ms: time at which the executor put the engine to sleep or, in a
    starting instance, woke it; 0 = neither. in_flight, held_kv, finished: as last observed.
    code: kind of `reason`, see `ObservedInstance`.
    pool_full: whether the last launch failed because the pool has no room for any further node.
    starved_ms: as last observed; this time does not count against the deadlines of a start and of
    an answer. start: the memory of its engine, None = unknown; kept from a refusal to the next
    launch.
    """

    desired: DesiredInstance
    state: InstanceState
    since_ms: int
    phase: str = ""
    has_process: bool = False
    was_ready: bool = False
    endpoint: str = ""
    ports: tuple[int, ...] = ()
    launched_ms: int = 0
    restarts: int = 0
    failures: int = 0
    retry_ms: int = 0
    drain_ms: int = 0
    terminated_ms: int = 0
    killed_ms: int = 0
    unhealthy_since_ms: int = 0
    switch_ms: int = 0
    from_phase: str = ""
    refused_phase: str = ""
    sleep_ms: int = 0
    in_flight: int = 0
    held_kv: int = 0
    finished: int = 0
    reason: str = ""
    code: str = ""
    pool_full: bool = False
    starved_ms: int = 0
    start: EngineStart | None = None

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self.desired.instance


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: the current assignment (None = none received yet) and its instances. expires_ms:
    time at which the assignment expires, by this executor's clock; 0 = never. refused: number of
    refused assignments by reason ("leader token", "generation", "node", ...).
    """

    node: str
    pool: str
    assignment: Assignment | None = None
    instances: tuple[InstanceRecord, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProcessObservation:
    """An instance's process as observed since the last step.

    alive: whether the process is running. healthy: whether a probe showed that the engine can
    serve; None = not probed. in_flight: None = unknown, as are held_kv and finished then.
    probed_ms: begin of the probe. end_reason: the reason why the process ended, if known. asleep:
    whether the engine confirmed that it sleeps. endpoint: "host:port", if it became known after the
    launch. hopeless: another attempt on this node would fail too, so the instance is given up at
    once. pool_full: the pool has no room for any further node. starved_ms: domain ms since its
    start in which it had no processor. start: the memory of the engine, None = nothing new.
    waiting: the reason why it does not start yet, "" = it starts. code: kind of `waiting` or of
    `end_reason`, see `ObservedInstance`.
    """

    alive: bool
    healthy: bool | None = None
    in_flight: int | None = None
    held_kv: int = 0
    probed_ms: int = 0
    end_reason: str = ""
    asleep: bool = False
    endpoint: str = ""
    hopeless: bool = False
    pool_full: bool = False
    finished: int = 0
    starved_ms: int = 0
    start: EngineStart | None = None
    code: str = ""
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """Deadlines and limits, in domain ms (`rules_for` extends them for real processes).

    drain_timeout_ms: used if the assignment sets no timeout. stop_ms: time from SIGTERM to SIGKILL
    by engine; kill_after_ms: the same for all other engines, and the time between two SIGKILLs.
    max_attempts: consecutive failed launches before the instance is given up; switch_attempts:
    failed launches before a switch is rolled back. stable_ms: once an instance has been ready for
    this time, earlier failures no longer count. live_switch_engines: engines that switch roles
    without a restart. standby_engines: engines whose drained instances sleep instead of being
    stopped if the node stays. drain_by_ms: deadline of all drains if the node is reclaimed, 0 =
    none.
    """

    start_timeout_ms: int = 600_000
    drain_timeout_ms: int = 120_000
    kill_after_ms: int = 15_000
    unhealthy_after_ms: int = 30_000
    backoff_ms: int = 5_000
    max_backoff_ms: int = 60_000
    max_attempts: int = 3
    switch_attempts: int = 2
    stable_ms: int = 300_000
    stop_ms: Mapping[str, int] = field(default_factory=dict)
    live_switch_engines: frozenset[str] = frozenset()
    standby_engines: frozenset[str] = frozenset()
    drain_by_ms: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for this instance in `phase`."""

    desired: DesiredInstance
    phase: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Assign the process of `sleeper` to `instance` and wake it."""

    sleeper: str
    instance: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send SIGTERM: requests in flight may finish."""

    instance: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the process and all its descendants."""

    instance: str


Command = Launch | Wake | Terminate | Kill
