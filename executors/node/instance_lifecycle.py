"""What becomes of one instance: seen, dying, draining, switching roles. Pure.

Holds the steps of a single instance through the table of `autoscaler.serving.lifecycle`. Comparing
a whole node with its assignment is for `reconcile`.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.serving.lifecycle import LifecycleEvent, after
from executors.node.node_state import Command, Held, Kill, Rules, Seen, Terminate
from topics.fleet import DesiredInstance, InstanceState


def happens(item: Held, event: LifecycleEvent, now_ms: int, reason: str = "") -> Held:
    """`item` after `event`, by the table."""
    to = after(item.state, event)
    since_ms = now_ms if to is not item.state else item.since_ms
    return replace(item, state=to, since_ms=since_ms, reason=reason)


def observe(item: Held, seen: Seen, now_ms: int, rules: Rules) -> Held:
    """`item` after a look at its process."""
    if not item.process:
        return item
    if not seen.alive:
        return _died(item, seen.note, now_ms, rules)
    if seen.in_flight is not None:
        load = seen.in_flight, seen.held_kv
        if load != (item.in_flight, item.held_kv):
            item = replace(item, in_flight=seen.in_flight, held_kv=seen.held_kv)
    if seen.asleep and item.state is InstanceState.DRAINING and item.sleep_ms:
        item = happens(item, LifecycleEvent.FELL_ASLEEP, now_ms, "standby")
        item = replace(item, drain_ms=0, in_flight=0, held_kv=0)
    if seen.healthy:
        if item.sick_ms:
            item = replace(item, sick_ms=0)
        if item.state is InstanceState.STARTING and not item.killed_ms:
            # Started again in the role it was rolled back to: why it is not what is wished stays.
            why = f"switch to {item.refused_phase} failed" if item.refused_phase else ""
            item = happens(item, LifecycleEvent.ANSWERED, now_ms, why)
            item = replace(item, answered=True, sleep_ms=0)
        elif item.state is InstanceState.SWITCHING and _proven(item, seen, rules):
            item = _switched(item, now_ms)
    elif seen.healthy is False and item.state is InstanceState.READY and not item.sick_ms:
        item = replace(item, sick_ms=now_ms)
    return item


def wish(item: Held, wanted: DesiredInstance | None, now_ms: int) -> Held:
    """`item` after comparing it with what the assignment wants of it, None = nothing."""
    if item.state is InstanceState.ASLEEP:
        if wanted is None or wanted.drain or not runs_as(item.desired, wanted):
            return item
        return wake(item, wanted, now_ms)
    if wanted is not None and runs_as(item.desired, wanted):
        refused = item.refused_phase if item.refused_phase == wanted.phase else ""
        if (item.desired, item.refused_phase) != (wanted, refused):
            item = replace(item, desired=wanted, refused_phase=refused)
        going = wanted.drain
        if not going and not refused:
            item, going = _change_phase(item, wanted, now_ms)
    else:
        # Not wanted, or wanted as something else: then it ends first and starts anew.
        going = True
    if item.state is InstanceState.STOPPED:
        if wanted is None or wanted.drain:
            return item
        item = happens(item, LifecycleEvent.ASKED_AGAIN, now_ms)
        return replace(
            item, desired=wanted, phase=wanted.phase, failures=0, retry_ms=now_ms, refused_phase=""
        )
    if going and item.state in _SERVING:
        item = replace(
            happens(item, LifecycleEvent.DRAIN_ASKED, now_ms), drain_ms=now_ms, switch_ms=0
        )
        if not item.process:
            item = replace(happens(item, LifecycleEvent.ENDED, now_ms), drain_ms=0)
        elif item.terminated_ms:  # in the middle of a switch by relaunch
            item = happens(item, LifecycleEvent.STOP_SENT, now_ms)
        return item
    if going and item.state is InstanceState.FAILED:
        return happens(item, LifecycleEvent.DRAIN_ASKED, now_ms, item.reason)
    if not going and item.state is InstanceState.DRAINING and not item.killed_ms:
        # What it missed before says nothing about whether it answers now.
        return replace(happens(item, LifecycleEvent.DRAIN_REVOKED, now_ms), drain_ms=0, sick_ms=0)
    return item


def wake(item: Held, wanted: DesiredInstance, now_ms: int) -> Held:
    """A sleeper as `wanted` from now on; it is ready when it has generated a token."""
    item = happens(item, LifecycleEvent.WOKEN, now_ms)
    return replace(
        item, desired=wanted, sleep_ms=now_ms, launched_ms=now_ms, answered=False, sick_ms=0,
        refused_phase="",
    )  # fmt: skip


_SERVING = (InstanceState.STARTING, InstanceState.READY, InstanceState.SWITCHING)


def end(
    item: Held,
    seen: Seen | None,
    now_ms: int,
    drain_timeout_ms: int,
    rules: Rules,
    commands: list[Command],
    stays: bool = False,
) -> Held:
    """Terminate what has drained; kill what does not end, start or answer in time.

    stays: the node does, so that what has drained may sleep there."""
    if not item.process:
        return item
    gang = item.desired.gang
    if gang is not None and gang.broken and not item.killed_ms:
        # A pipeline without one of its stages finishes nothing.
        commands.append(Kill(item.instance))
        return replace(item, killed_ms=now_ms)
    if item.killed_ms or item.terminated_ms:
        begun_ms = item.killed_ms or item.terminated_ms
        stop_ms = rules.stop_ms.get(item.desired.engine, rules.kill_after_ms)
        patience_ms = rules.kill_after_ms if item.killed_ms else stop_ms
        if now_ms - begun_ms >= patience_ms:
            commands.append(Kill(item.instance))
            return replace(item, killed_ms=now_ms)
        return item
    if item.state is InstanceState.ASLEEP:
        return item  # asked nothing; it ends when its place is wanted
    unmoved = item.state is InstanceState.SWITCHING and _predates(item)
    routed = unmoved and item.desired.engine in rules.routing
    leaves = unmoved and not routed
    if item.state is InstanceState.DRAINING or leaves:
        begun_ms = item.drain_ms if item.state is InstanceState.DRAINING else item.switch_ms
        late = now_ms - begun_ms >= drain_timeout_ms or 0 < rules.leave_by_ms <= now_ms
        known = seen is not None and seen.in_flight is not None and seen.probed_ms >= begun_ms
        idle = known and item.in_flight == 0 and item.held_kv == 0
        # One that never answered was in no route and holds nothing.
        if not (idle or late or not item.answered):
            return item
        if idle and stays and not (late or leaves) and _may_sleep(item, now_ms, rules):
            return item if item.sleep_ms else replace(item, sleep_ms=now_ms)
        commands.append(Terminate(item.instance))
        if leaves:
            return replace(item, terminated_ms=now_ms)
        reason = f"drain deadline with {item.in_flight} in flight" if late else "drained"
        item = happens(item, LifecycleEvent.STOP_SENT, now_ms, reason)
        return replace(item, terminated_ms=now_ms)
    if routed:
        waited_ms = now_ms - item.switch_ms
        if waited_ms >= rules.sick_after_ms:
            refused = item.refused_phase or item.desired.phase
            why = f"switch to {refused} failed: no answer for {waited_ms / 1e3:.0f} s"
            return _rolled_back(item, now_ms, why)
        return item
    reason = _hopeless(item, now_ms, rules)
    if not reason:
        return item
    commands.append(Kill(item.instance))
    return replace(item, killed_ms=now_ms, reason=reason)


def _change_phase(item: Held, wanted: DesiredInstance, now_ms: int) -> tuple[Held, bool]:
    """`item` after comparing its phase with what is wanted, and whether it must end for that."""
    if wanted.phase == item.phase:
        unmoved = item.state is InstanceState.SWITCHING and item.process and _predates(item)
        if unmoved and not item.terminated_ms:  # wanted as it is, after all
            item = happens(item, LifecycleEvent.ROLLED_BACK, now_ms)
            item = replace(item, switch_ms=0, from_phase="")
        return item, False
    if item.state is InstanceState.READY:
        item = happens(item, LifecycleEvent.SWITCH_ASKED, now_ms)
        return replace(item, switch_ms=now_ms, from_phase=item.phase, failures=0), False
    if item.state is InstanceState.STARTING and not item.process:
        return replace(item, phase=wanted.phase), False
    if item.state is InstanceState.SWITCHING:
        return item, False  # compared again when it has arrived where it was going
    return item, True


def _predates(item: Held) -> bool:
    """Whether the process of a switching instance is the one from before the switch."""
    return item.launched_ms <= item.switch_ms


def _proven(item: Held, seen: Seen, rules: Rules) -> bool:
    """Whether an answer says that the switch is made: it was asked for after it, in the new role.

    By routing the process is the same one; by relaunch it is the one started for the new phase.
    """
    if item.killed_ms or item.terminated_ms:
        return False
    if item.desired.engine in rules.routing:
        return seen.probed_ms >= item.switch_ms
    return not _predates(item)


def _switched(item: Held, now_ms: int) -> Held:
    if item.refused_phase:  # relaunched as what it was before
        return replace(_rolled_back(item, now_ms, item.reason), answered=True)
    phase = item.desired.phase if _predates(item) else item.phase
    item = happens(item, LifecycleEvent.SWITCHED, now_ms)
    return replace(item, phase=phase, switch_ms=0, from_phase="", failures=0, answered=True)


def _rolled_back(item: Held, now_ms: int, why: str) -> Held:
    """Back to the phase it served before; `why` stays as its reason."""
    refused = item.refused_phase or item.desired.phase
    item = happens(item, LifecycleEvent.ROLLED_BACK, now_ms, why)
    return replace(
        item, phase=item.from_phase, from_phase="", switch_ms=0, refused_phase=refused, failures=0
    )


def _died(item: Held, note: str, now_ms: int, rules: Rules) -> Held:
    gone = replace(
        item,
        process=False,
        endpoint="",
        ports=(),
        in_flight=0,
        held_kv=0,
        sick_ms=0,
        terminated_ms=0,
        killed_ms=0,
        sleep_ms=0,
    )
    if item.state in (InstanceState.DRAINING, InstanceState.ASLEEP, InstanceState.STOPPING):
        reason = item.reason if item.state is InstanceState.STOPPING else ""
        return replace(happens(gone, LifecycleEvent.ENDED, now_ms, reason), drain_ms=0)
    # Where we killed it, our reason says more than its exit code.
    why = item.reason if item.killed_ms and item.reason else note or "the process ended"
    if item.state is InstanceState.SWITCHING:
        return _died_switching(item, gone, why, now_ms, rules)
    if item.state is InstanceState.STARTING and item.sleep_ms:  # started cold, at once
        gone = happens(gone, LifecycleEvent.DIED, now_ms, why)
        return replace(gone, restarts=item.restarts + 1, retry_ms=now_ms)
    lasted = item.state is InstanceState.READY and now_ms - item.since_ms >= rules.stable_ms
    failures = 1 if lasted else item.failures + 1
    gang = item.desired.gang
    if gang is not None or failures >= rules.max_attempts:
        # The other ranks of a gang cannot go on with a new one: it is replaced as a whole.
        text = f"{gang.place}: " if gang else f"given up after {failures} attempts: "
        text += why
        return replace(happens(gone, LifecycleEvent.GAVE_UP, now_ms, text), failures=failures)
    # A first loss of a proven instance is replaced at once; capacity is missing.
    retry_ms = now_ms if lasted else now_ms + _pause_ms(failures, rules)
    gone = happens(gone, LifecycleEvent.DIED, now_ms, why)
    return replace(gone, failures=failures, restarts=item.restarts + 1, retry_ms=retry_ms)


def _died_switching(item: Held, gone: Held, why: str, now_ms: int, rules: Rules) -> Held:
    """The old process ended as it should, or a new one did not come up."""
    gone = happens(gone, LifecycleEvent.DIED, now_ms, item.reason)
    if _predates(item):
        # Its next process is of the new phase, whether it was told to end or died of itself.
        return replace(gone, phase=item.desired.phase, failures=0, retry_ms=now_ms, answered=False)
    failures = item.failures + 1
    restarts = item.restarts + 1
    if item.refused_phase:
        if failures >= rules.max_attempts:
            text = f"{item.reason}; given up after {failures} attempts: {why}"
            gone = happens(gone, LifecycleEvent.GAVE_UP, now_ms, text)
            return replace(gone, failures=failures, switch_ms=0, from_phase="")
        retry_ms = now_ms + _pause_ms(failures, rules)
    elif failures >= rules.switch_attempts:
        text = f"switch to {item.phase} failed: {why}"
        return replace(
            gone, phase=item.from_phase, refused_phase=item.phase, reason=text, failures=0,
            restarts=restarts, retry_ms=now_ms,
        )  # fmt: skip
    else:
        retry_ms = now_ms + _pause_ms(failures, rules)
    return replace(gone, failures=failures, restarts=restarts, retry_ms=retry_ms)


def _pause_ms(failures: int, rules: Rules) -> int:
    pause_ms: int = rules.backoff_ms * 2 ** (failures - 1)
    return min(rules.max_backoff_ms, pause_ms)


def runs_as(desired: DesiredInstance, wanted: DesiredInstance) -> bool:
    """Whether nothing differs that cannot be changed while a process runs; the group is only a
    label of the routes."""
    same = (desired.model, desired.gpus, desired.engine)
    if desired.gang is None or wanted.gang is None:
        return same == (wanted.model, wanted.gpus, wanted.engine) and desired.gang is wanted.gang
    part = desired.gang.same_part(wanted.gang)
    return part and same == (wanted.model, wanted.gpus, wanted.engine)


def _may_sleep(item: Held, now_ms: int, rules: Rules) -> bool:
    """Whether it may sleep; one that was told to and does not is stopped."""
    tried = item.sleep_ms and now_ms - item.sleep_ms >= rules.sick_after_ms
    asked = item.answered and item.desired.engine in rules.sleeping
    return asked and item.desired.gang is None and not tried


def _hopeless(item: Held, now_ms: int, rules: Rules) -> str:
    # An instance whose drain was revoked is starting too, though it was launched long ago.
    starting_ms = now_ms - max(item.launched_ms, item.since_ms)
    if item.state is InstanceState.SWITCHING:
        starting_ms = now_ms - item.launched_ms
    if item.sleep_ms and starting_ms >= rules.sick_after_ms:
        return f"did not wake in {starting_ms / 1e3:.0f} s"
    comes_up = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
    if comes_up and starting_ms >= rules.start_timeout_ms:
        return f"not ready {starting_ms / 1e3:.0f} s after it began to start"
    if item.sick_ms and now_ms - item.sick_ms >= rules.sick_after_ms:
        return f"no answer for {(now_ms - item.sick_ms) / 1e3:.0f} s"
    return ""
