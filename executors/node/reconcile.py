"""Reconciling one node: desired and seen in, commands out. Pure.

Owns the comparison of an assignment with what runs. It must not know processes, sockets or Kafka.
A message that comes twice, late or out of order changes nothing; a step with nothing new yields
no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.serving.lifecycle import LifecycleEvent, after
from executors.node.state import Command, Held, Kill, Launch, NodeState, Rules, Seen, Terminate
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status


def accept(state: NodeState, assignment: Assignment) -> NodeState:
    """Take an assignment over, unless it is older than the one in force (refused, counted).

    The order is (leader_token, generation); the same one again changes nothing.
    """
    if assignment.node != state.node:
        return replace(state, refused=state.refused + 1)
    if state.assignment is not None:
        current = (state.assignment.leader_token, state.assignment.generation)
        offered = (assignment.leader_token, assignment.generation)
        if offered == current:
            return state
        if offered < current:
            return replace(state, refused=state.refused + 1)
    return replace(state, assignment=assignment)


def reconcile(
    state: NodeState, seen: Mapping[str, Seen], now_ms: int, rules: Rules
) -> tuple[NodeState, tuple[Command, ...]]:
    """One step: what was seen, then what is desired, then what follows from both.

    seen: by instance; an instance that has a process and is missing there was not looked at.
    """
    commands: list[Command] = []
    held = [
        _observe(item, seen[item.instance], now_ms, rules) if item.instance in seen else item
        for item in state.held
    ]
    held = _compare(held, state.assignment, now_ms)
    held = [_end(item, seen.get(item.instance), now_ms, rules, commands) for item in held]
    held = _launch(held, now_ms, commands)
    return replace(state, held=tuple(held)), tuple(commands)


def launched(state: NodeState, instance: str, endpoint: str) -> NodeState:
    """The process of `instance` was started and will listen at `endpoint`."""
    return replace(
        state,
        held=tuple(
            replace(item, endpoint=endpoint) if item.instance == instance else item
            for item in state.held
        ),
    )


def status(state: NodeState, executor: str, now_ms: int) -> Status:
    """The node as others may see it."""
    return Status(
        node=state.node,
        pool=state.pool,
        executor=executor,
        observed_generation=state.assignment.generation if state.assignment else 0,
        at_ms=now_ms,
        instances=tuple(
            ObservedInstance(
                instance=item.instance,
                model=item.desired.model,
                phase=item.desired.phase,
                group=item.desired.group,
                state=item.state,
                gpus=item.desired.gpus,
                endpoint=item.endpoint if item.process else "",
                since_ms=item.since_ms,
                launched_ms=item.launched_ms,
                restarts=item.restarts,
                in_flight=item.in_flight,
                held_kv=item.held_kv,
                reason=item.reason[:2000],
            )
            for item in state.held
        ),
    )


def _happens(item: Held, event: LifecycleEvent, now_ms: int, reason: str = "") -> Held:
    to = after(item.state, event)
    since_ms = now_ms if to is not item.state else item.since_ms
    return replace(item, state=to, since_ms=since_ms, reason=reason)


def _observe(item: Held, seen: Seen, now_ms: int, rules: Rules) -> Held:
    if not item.process:
        return item
    if not seen.alive:
        return _died(item, seen.note, now_ms, rules)
    if seen.in_flight is not None:
        item = replace(item, in_flight=seen.in_flight, held_kv=seen.held_kv)
    if seen.healthy:
        item = replace(item, sick_ms=0)
        if item.state is InstanceState.STARTING and not item.killed_ms:
            item = replace(_happens(item, LifecycleEvent.ANSWERED, now_ms), answered=True)
    elif seen.healthy is False and item.state is InstanceState.READY and not item.sick_ms:
        item = replace(item, sick_ms=now_ms)
    return item


def _died(item: Held, note: str, now_ms: int, rules: Rules) -> Held:
    gone = replace(
        item,
        process=False,
        endpoint="",
        in_flight=0,
        held_kv=0,
        sick_ms=0,
        terminated_ms=0,
        killed_ms=0,
    )
    if item.state is InstanceState.DRAINING:
        return replace(_happens(gone, LifecycleEvent.ENDED, now_ms), drain_ms=0)
    lasted = item.state is InstanceState.READY and now_ms - item.since_ms >= rules.stable_ms
    failures = 1 if lasted else item.failures + 1
    # Where we killed it, our reason says more than its exit code.
    why = item.reason if item.killed_ms and item.reason else note or "the process ended"
    if failures >= rules.max_attempts:
        text = f"given up after {failures} attempts: {why}"
        return replace(_happens(gone, LifecycleEvent.GAVE_UP, now_ms, text), failures=failures)
    pause_ms = min(rules.max_backoff_ms, rules.backoff_ms * 2 ** (failures - 1))
    # A first loss of a proven instance is replaced at once; capacity is missing.
    retry_ms = now_ms if lasted else now_ms + pause_ms
    gone = _happens(gone, LifecycleEvent.DIED, now_ms, why)
    return replace(gone, failures=failures, restarts=item.restarts + 1, retry_ms=retry_ms)


def _compare(held: list[Held], assignment: Assignment | None, now_ms: int) -> list[Held]:
    """Bring the wishes of the assignment to the instances; without one, nothing changes."""
    if assignment is None:
        return held
    desired = {item.instance: item for item in assignment.instances}
    kept = []
    for item in held:
        wish = desired.get(item.instance)
        compared = _wish(item, wish, now_ms)
        over = compared.state in (InstanceState.STOPPED, InstanceState.FAILED)
        if wish is None and over and not compared.process:
            continue
        kept.append(compared)
    known = {item.instance for item in held}
    for wish in assignment.instances:
        if wish.instance not in known and not wish.drain:
            kept.append(Held(wish, InstanceState.STARTING, now_ms, retry_ms=now_ms))
        elif wish.instance not in known:
            # Never started here, and should end: it has ended.
            kept.append(Held(wish, InstanceState.STOPPED, now_ms))
    return kept


def _wish(item: Held, wish: DesiredInstance | None, now_ms: int) -> Held:
    if wish is not None and _runs_as(wish) == _runs_as(item.desired):
        item = replace(item, desired=wish)
        going = wish.drain
    else:
        # Not wanted, or wanted as something else: then it ends first and starts anew.
        going = True
    if item.state is InstanceState.STOPPED:
        if wish is None or wish.drain:
            return item
        item = _happens(item, LifecycleEvent.ASKED_AGAIN, now_ms)
        return replace(item, desired=wish, failures=0, retry_ms=now_ms)
    if going and item.state in (InstanceState.STARTING, InstanceState.READY):
        item = replace(_happens(item, LifecycleEvent.DRAIN_ASKED, now_ms), drain_ms=now_ms)
        if not item.process:
            item = replace(_happens(item, LifecycleEvent.ENDED, now_ms), drain_ms=0)
        return item
    if going and item.state is InstanceState.FAILED:
        return _happens(item, LifecycleEvent.DRAIN_ASKED, now_ms, item.reason)
    if not going and item.state is InstanceState.DRAINING and not item.terminated_ms:
        # What it missed before says nothing about whether it answers now.
        return replace(_happens(item, LifecycleEvent.DRAIN_REVOKED, now_ms), drain_ms=0, sick_ms=0)
    return item


def _runs_as(desired: DesiredInstance) -> tuple[str, str, tuple[int, ...], str]:
    """What cannot be changed while a process runs; the group is only a label of the routes."""
    return desired.model, desired.phase, desired.gpus, desired.engine


def _end(item: Held, seen: Seen | None, now_ms: int, rules: Rules, commands: list[Command]) -> Held:
    """Terminate what has drained; kill what does not end, start or answer in time."""
    if not item.process:
        return item
    if item.killed_ms or item.terminated_ms:
        begun_ms = item.killed_ms or item.terminated_ms
        if now_ms - begun_ms >= rules.kill_after_ms:
            commands.append(Kill(item.instance))
            return replace(item, killed_ms=now_ms)
        return item
    if item.state is InstanceState.DRAINING:
        late = now_ms - item.drain_ms >= rules.drain_timeout_ms
        known = seen is not None and seen.in_flight is not None and seen.probed_ms >= item.drain_ms
        idle = known and item.in_flight == 0 and item.held_kv == 0
        # One that never answered was in no route and holds nothing.
        if idle or late or not item.answered:
            commands.append(Terminate(item.instance))
            reason = f"drain deadline with {item.in_flight} in flight" if late else "drained"
            return replace(item, terminated_ms=now_ms, reason=reason)
        return item
    reason = _hopeless(item, now_ms, rules)
    if not reason:
        return item
    commands.append(Kill(item.instance))
    return replace(item, killed_ms=now_ms, reason=reason)


def _hopeless(item: Held, now_ms: int, rules: Rules) -> str:
    # An instance whose drain was revoked is starting too, though it was launched long ago.
    starting_ms = now_ms - max(item.launched_ms, item.since_ms)
    if item.state is InstanceState.STARTING and starting_ms >= rules.start_timeout_ms:
        return f"not ready {starting_ms / 1e3:.0f} s after it began to start"
    if item.sick_ms and now_ms - item.sick_ms >= rules.sick_after_ms:
        return f"no answer for {(now_ms - item.sick_ms) / 1e3:.0f} s"
    return ""


def _launch(held: list[Held], now_ms: int, commands: list[Command]) -> list[Held]:
    """Start what should run and whose GPUs are free: a GPU belongs to one process at a time."""
    busy = {gpu for item in held if item.process for gpu in item.desired.gpus}
    result = []
    for item in held:
        waits = item.state is InstanceState.STARTING and not item.process
        if not waits or now_ms < item.retry_ms:
            result.append(item)
            continue
        if busy.intersection(item.desired.gpus):
            result.append(item if item.reason else replace(item, reason="waits for its GPUs"))
            continue
        busy.update(item.desired.gpus)
        commands.append(Launch(item.desired))
        result.append(replace(item, process=True, answered=False, launched_ms=now_ms, reason=""))
    return result
