"""The life cycle of an instance as one table of transitions.

Executors convert their observations to these events. The diagram in the documentation is drawn from
the table.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from topics.fleet import InstanceState

__all__ = ["TRANSITIONS", "IllegalEvent", "InstanceState", "LifecycleEvent", "after", "diagram"]


class LifecycleEvent(StrEnum):
    """Events in the life of an instance."""

    ANSWERED = "answered"
    DIED = "died"
    GAVE_UP = "gave up"
    SWITCH_ASKED = "switch asked"
    SWITCHED = "switched"
    ROLLED_BACK = "rolled back"
    DRAIN_ASKED = "drain asked"
    DRAIN_REVOKED = "drain revoked"
    STOP_SENT = "stop sent"
    FELL_ASLEEP = "fell asleep"
    WOKEN = "woken"
    ENDED = "ended"
    ASKED_AGAIN = "asked again"


_S, _E = InstanceState, LifecycleEvent

TRANSITIONS = MappingProxyType(
    {
        (_S.STARTING, _E.ANSWERED): _S.READY,
        # After a failed start or a time-out, the executor pauses and starts the process again; the
        # state stays.
        (_S.STARTING, _E.DIED): _S.STARTING,
        (_S.STARTING, _E.GAVE_UP): _S.FAILED,
        (_S.STARTING, _E.DRAIN_ASKED): _S.DRAINING,
        (_S.READY, _E.DIED): _S.STARTING,
        (_S.READY, _E.GAVE_UP): _S.FAILED,
        (_S.READY, _E.SWITCH_ASKED): _S.SWITCHING,
        (_S.READY, _E.DRAIN_ASKED): _S.DRAINING,
        (_S.SWITCHING, _E.SWITCHED): _S.READY,
        # The instance did not answer in the new role, so it serves in its old role again.
        (_S.SWITCHING, _E.ROLLED_BACK): _S.READY,
        # A switch by relaunch ends one process and starts the next.
        (_S.SWITCHING, _E.DIED): _S.SWITCHING,
        (_S.SWITCHING, _E.GAVE_UP): _S.FAILED,
        (_S.SWITCHING, _E.DRAIN_ASKED): _S.DRAINING,
        # The drain may have begun while the instance was starting, so it must answer a probe first.
        (_S.DRAINING, _E.DRAIN_REVOKED): _S.STARTING,
        (_S.DRAINING, _E.STOP_SENT): _S.STOPPING,
        (_S.DRAINING, _E.ENDED): _S.STOPPED,
        (_S.STOPPING, _E.ENDED): _S.STOPPED,
        # The process of a standby holds no GPU memory. Waking it replaces a new launch.
        (_S.DRAINING, _E.FELL_ASLEEP): _S.ASLEEP,
        (_S.ASLEEP, _E.WOKEN): _S.STARTING,
        (_S.ASLEEP, _E.STOP_SENT): _S.STOPPING,
        (_S.ASLEEP, _E.ENDED): _S.STOPPED,
        (_S.STOPPED, _E.ASKED_AGAIN): _S.STARTING,
        # A failed instance has no process left to drain.
        (_S.FAILED, _E.DRAIN_ASKED): _S.STOPPED,
    }
)


class IllegalEvent(ValueError):
    """An event that is not legal in the current state, which is a bug. The state does not
    change."""

    def __init__(self, state: InstanceState, event: LifecycleEvent) -> None:
        legal = ", ".join(e for s, e in TRANSITIONS if s is state)
        super().__init__(f"{event!s} cannot happen to a {state!s} instance; possible: {legal}")
        self.state = state
        self.event = event


def after(state: InstanceState, event: LifecycleEvent) -> InstanceState:
    """The state after `event` in `state`. Raises IllegalEvent if the table has no such
    transition."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise IllegalEvent(state, event)
    return found


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> starting"]
    lines += [f"    {s} --> {to}: {event}" for (s, event), to in TRANSITIONS.items()]
    lines += ["    stopped --> [*]", "    failed --> [*]"]
    return "\n".join(lines) + "\n"
