"""A warm standby: an instance sleeps instead of being stopped, and is woken instead of started.

Holds who may sleep, who is woken for whom, and who must go. Pure. A sleeper costs nothing that is
not paid for anyway: it is let sleep only where its node stays, it counts as gone for the
controller, and it ends as soon as its GPUs are wanted for anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoscaler.serving.lifecycle import LifecycleEvent
from executors.node import instance_lifecycle
from executors.node.node_state import Command, Held, Rules, Terminate, Wake
from topics.fleet import Assignment, InstanceState

_WAITS = (InstanceState.STARTING, InstanceState.SWITCHING)
_SERVES = (*_WAITS, InstanceState.READY)


def kept(held: Sequence[Held], pool: str, rules: Rules) -> bool:
    """Whether the node stays when what drains on it is gone: it is owned, or others serve there."""
    owned = pool.rpartition("/")[2] == "owned"
    return not rules.leave_by_ms and (owned or any(item.state in _SERVES for item in held))


def evict(
    held: Sequence[Held],
    assignment: Assignment,
    now_ms: int,
    rules: Rules,
    commands: list[Command],
) -> list[Held]:
    """`held` with the sleepers told to end whose GPUs or names are wanted for anything else, or
    whose node may go."""
    stays = kept(held, assignment.pool, rules)
    named = {wish.instance for wish in assignment.instances if not wish.drain}
    waiting = [item for item in held if item.state in _WAITS and not item.process]
    after = []
    for item in held:
        wanted = item.instance in named or any(
            {*other.desired.gpus} & {*item.desired.gpus} and not _fits(item, other, rules)
            for other in waiting
        )
        asleep = item.state is InstanceState.ASLEEP and item.process
        if asleep and (wanted or not stays or item.desired.engine not in rules.sleeping):
            commands.append(Terminate(item.instance))
            why = "its place is wanted" if wanted else "its node may go"
            item = instance_lifecycle.happens(item, LifecycleEvent.STOP_SENT, now_ms, why)
            item = replace(item, terminated_ms=now_ms)
        after.append(item)
    return after


def woken(
    item: Held, held: Sequence[Held], now_ms: int, rules: Rules, commands: list[Command]
) -> tuple[Held, str]:
    """`item`, which waits for a process, with that of a sleeper that fits; and the sleeper's name,
    "" where none does."""
    for sleeper in held:
        if (
            sleeper.state is InstanceState.ASLEEP
            and sleeper.process
            and _fits(sleeper, item, rules)
        ):
            commands.append(Wake(sleeper.instance, item.instance))
            taken = instance_lifecycle.wake(sleeper, item.desired, now_ms)
            phase = item.phase or item.desired.phase
            return replace(taken, phase=phase, restarts=item.restarts), sleeper.instance
    return item, ""


def _fits(sleeper: Held, item: Held, rules: Rules) -> bool:
    """Whether the process of `sleeper` can be that of `item`."""
    engine = item.desired.engine
    any_phase = engine in rules.routing
    return (
        instance_lifecycle.runs_as(sleeper.desired, item.desired)
        and engine in rules.sleeping
        and item.state is InstanceState.STARTING
        and (any_phase or sleeper.phase == (item.phase or item.desired.phase))
    )
