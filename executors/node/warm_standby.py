"""Warm standby: a drained instance sleeps instead of being stopped and is woken for a later launch.

Decides which instances may sleep, which are woken and which are evicted. Pure. A sleeper must not
cause any cost: an instance sleeps only if its node stays, the controller counts it as gone, and it
is evicted as soon as another instance needs its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoscaler.serving.lifecycle import LifecycleEvent
from executors.node import instance_lifecycle
from executors.node.node_state import Command, InstanceRecord, Rules, Terminate, Wake
from topics.fleet import Assignment, InstanceState

_PENDING_STATES = (InstanceState.STARTING, InstanceState.SWITCHING)
_SERVING_STATES = (*_PENDING_STATES, InstanceState.READY)


def node_stays(records: Sequence[InstanceRecord], pool: str, rules: Rules) -> bool:
    """Whether the node stays after its drains, because it is owned or because other instances serve
    on it."""
    owned = pool.rpartition("/")[2] == "owned"
    return not rules.drain_by_ms and (
        owned or any(item.state in _SERVING_STATES for item in records)
    )


def evict_sleepers(
    records: Sequence[InstanceRecord],
    assignment: Assignment,
    now_ms: int,
    rules: Rules,
    commands: list[Command],
) -> list[InstanceRecord]:
    """`records`, in which sleepers are terminated if their GPUs or names are needed, or if their
    node may be released. Adds the SIGTERMs to `commands`."""
    stays = node_stays(records, assignment.pool, rules)
    named = {wish.instance for wish in assignment.instances if not wish.drain}
    waiting = [item for item in records if item.state in _PENDING_STATES and not item.has_process]
    after = []
    for item in records:
        wanted = item.instance in named or any(
            {*other.desired.gpus} & {*item.desired.gpus} and not _can_become(item, other, rules)
            for other in waiting
        )
        asleep = item.state is InstanceState.ASLEEP and item.has_process
        if asleep and (wanted or not stays or item.desired.engine not in rules.standby_engines):
            commands.append(Terminate(item.instance))
            why = "its GPUs are needed" if wanted else "its node may be released"
            item = instance_lifecycle.apply_event(item, LifecycleEvent.STOP_SENT, now_ms, why)
            item = replace(item, terminated_ms=now_ms)
        after.append(item)
    return after


def wake_sleeper(
    item: InstanceRecord,
    records: Sequence[InstanceRecord],
    now_ms: int,
    rules: Rules,
    commands: list[Command],
) -> tuple[InstanceRecord, str]:
    """`item` with the process of a matching sleeper, and the id of that sleeper. If no sleeper
    matches: `item` and ""."""
    for sleeper in records:
        if (
            sleeper.state is InstanceState.ASLEEP
            and sleeper.has_process
            and _can_become(sleeper, item, rules)
        ):
            commands.append(Wake(sleeper.instance, item.instance))
            taken = instance_lifecycle.begin_wake(sleeper, item.desired, now_ms)
            phase = item.phase or item.desired.phase
            return replace(taken, phase=phase, restarts=item.restarts), sleeper.instance
    return item, ""


def _can_become(sleeper: InstanceRecord, item: InstanceRecord, rules: Rules) -> bool:
    """Whether the process of `sleeper` can serve `item`."""
    engine = item.desired.engine
    any_phase = engine in rules.live_switch_engines
    return (
        instance_lifecycle.can_reuse_process(sleeper.desired, item.desired)
        and engine in rules.standby_engines
        and item.state is InstanceState.STARTING
        and (any_phase or sleeper.phase == (item.phase or item.desired.phase))
    )
