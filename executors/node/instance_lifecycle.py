"""The lifecycle of one instance: observations, drains, stops and role switches. Pure.

It applies the transitions of `autoscaler.serving.lifecycle` to a single instance; `reconcile`
compares a whole node with its assignment.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.serving.lifecycle import LifecycleEvent, after
from executors.node.node_state import (
    Command,
    InstanceRecord,
    Kill,
    ProcessObservation,
    Rules,
    Terminate,
)
from topics.fleet import DesiredInstance, InstanceState


def apply_event(
    item: InstanceRecord, event: LifecycleEvent, now_ms: int, reason: str = ""
) -> InstanceRecord:
    """`item` after `event`, by the transition table."""
    to = after(item.state, event)
    since_ms = now_ms if to is not item.state else item.since_ms
    return replace(item, state=to, since_ms=since_ms, reason=reason, code="")


def apply_observation(
    item: InstanceRecord, seen: ProcessObservation, now_ms: int, rules: Rules
) -> InstanceRecord:
    """`item` after an observation of its process."""
    if not item.has_process:
        return item
    if not seen.alive:
        ended = _process_ended(item, seen.end_reason, now_ms, rules, seen.hopeless)
        code = seen.code or (item.code if item.killed_ms else "")
        return replace(ended, pool_full=seen.pool_full, start=seen.start, code=code)
    if seen.start is not None:
        item = replace(item, start=seen.start)
    if item.state is InstanceState.STARTING and not item.killed_ms and (seen.code or item.code):
        item = replace(item, reason=seen.waiting, code=seen.code)
    if seen.starved_ms != item.starved_ms:
        more_ms = max(0, seen.starved_ms - item.starved_ms) if item.unhealthy_since_ms else 0
        item = replace(
            item,
            starved_ms=seen.starved_ms,
            unhealthy_since_ms=min(now_ms, item.unhealthy_since_ms + more_ms),
        )
    if seen.endpoint and seen.endpoint != item.endpoint:
        item = replace(item, endpoint=seen.endpoint)
    if seen.in_flight is not None:
        load = seen.in_flight, seen.held_kv, seen.finished
        if load != (item.in_flight, item.held_kv, item.finished):
            item = replace(
                item, in_flight=seen.in_flight, held_kv=seen.held_kv, finished=seen.finished
            )
    if seen.asleep and item.state is InstanceState.DRAINING and item.sleep_ms:
        item = apply_event(item, LifecycleEvent.FELL_ASLEEP, now_ms, "standby")
        item = replace(item, drain_ms=0, in_flight=0, held_kv=0)
    if seen.healthy:
        if item.unhealthy_since_ms:
            item = replace(item, unhealthy_since_ms=0)
        if item.state is InstanceState.STARTING and not item.killed_ms:
            # Keep the reason of a failed switch while the instance restarts in its earlier role.
            why = f"switch to {item.refused_phase} failed" if item.refused_phase else ""
            item = apply_event(item, LifecycleEvent.ANSWERED, now_ms, why)
            item = replace(item, was_ready=True, sleep_ms=0)
        elif item.state is InstanceState.SWITCHING and _switch_confirmed(item, seen, rules):
            item = _finish_switch(item, now_ms)
    elif (
        seen.healthy is False and item.state is InstanceState.READY and not item.unhealthy_since_ms
    ):
        item = replace(item, unhealthy_since_ms=now_ms)
    return item


def apply_desired(
    item: InstanceRecord, wanted: DesiredInstance | None, now_ms: int
) -> InstanceRecord:
    """`item` after a comparison with `wanted`, its entry in the assignment; None = no entry."""
    if item.state is InstanceState.ASLEEP:
        if wanted is None or wanted.drain or not can_reuse_process(item.desired, wanted):
            return item
        return begin_wake(item, wanted, now_ms)
    if wanted is not None and can_reuse_process(item.desired, wanted):
        refused = item.refused_phase if item.refused_phase == wanted.phase else ""
        if (item.desired, item.refused_phase) != (wanted, refused):
            item = replace(item, desired=wanted, refused_phase=refused)
        going = wanted.drain
        if not going and not refused:
            item, going = _change_phase(item, wanted, now_ms)
    else:
        # Without an entry, or if the entry needs another process, this process must stop first.
        going = True
    if item.state is InstanceState.STOPPED:
        if wanted is None or wanted.drain:
            return item
        item = apply_event(item, LifecycleEvent.ASKED_AGAIN, now_ms)
        return replace(
            item, desired=wanted, phase=wanted.phase, failures=0, retry_ms=now_ms, refused_phase=""
        )
    if going and item.state in _SERVING:
        item = replace(
            apply_event(item, LifecycleEvent.DRAIN_ASKED, now_ms), drain_ms=now_ms, switch_ms=0
        )
        if not item.has_process:
            item = replace(apply_event(item, LifecycleEvent.ENDED, now_ms), drain_ms=0)
        elif item.terminated_ms:  # the process is being relaunched for a role switch
            item = apply_event(item, LifecycleEvent.STOP_SENT, now_ms)
        return item
    if going and item.state is InstanceState.FAILED:
        return apply_event(item, LifecycleEvent.DRAIN_ASKED, now_ms, item.reason)
    if not going and item.state is InstanceState.DRAINING and not item.killed_ms:
        # Forget failed probes from before the drain, because they do not show the engine's present
        # health.
        return replace(
            apply_event(item, LifecycleEvent.DRAIN_REVOKED, now_ms),
            drain_ms=0,
            unhealthy_since_ms=0,
        )
    return item


def begin_wake(item: InstanceRecord, wanted: DesiredInstance, now_ms: int) -> InstanceRecord:
    """The sleeping `item` with the identity and role of `wanted`. It becomes ready once its engine
    generates a token."""
    item = apply_event(item, LifecycleEvent.WOKEN, now_ms)
    return replace(
        item, desired=wanted, sleep_ms=now_ms, launched_ms=now_ms, was_ready=False,
        unhealthy_since_ms=0, refused_phase="",
    )  # fmt: skip


_SERVING = (InstanceState.STARTING, InstanceState.READY, InstanceState.SWITCHING)


def stop_if_due(
    item: InstanceRecord,
    seen: ProcessObservation | None,
    now_ms: int,
    drain_timeout_ms: int,
    rules: Rules,
    commands: list[Command],
    stays: bool = False,
) -> InstanceRecord:
    """Terminate a drained instance; kill an instance that misses its deadline to start, stop or
    become healthy.

    stays: the node stays, so a drained instance may sleep instead of being stopped.
    """
    if not item.has_process:
        return item
    gang = item.desired.gang
    if gang is not None and gang.broken and not item.killed_ms:
        # Kill at once: a pipeline without one of its stages cannot finish any request.
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
        return item  # a sleeper is not probed; `warm_standby` evicts it when needed
    unmoved = item.state is InstanceState.SWITCHING and _started_before_switch(item)
    routed = unmoved and item.desired.engine in rules.live_switch_engines
    leaves = unmoved and not routed
    if item.state is InstanceState.DRAINING or leaves:
        begun_ms = item.drain_ms if item.state is InstanceState.DRAINING else item.switch_ms
        late = now_ms - begun_ms >= drain_timeout_ms or 0 < rules.drain_by_ms <= now_ms
        known = seen is not None and seen.in_flight is not None and seen.probed_ms >= begun_ms
        idle = known and item.in_flight == 0 and item.held_kv == 0
        # An instance that was never ready had no route, so it has no requests.
        if not (idle or late or not item.was_ready):
            return item
        if idle and stays and not (late or leaves) and _may_sleep(item, now_ms, rules):
            return item if item.sleep_ms else replace(item, sleep_ms=now_ms)
        commands.append(Terminate(item.instance))
        if leaves:
            return replace(item, terminated_ms=now_ms)
        reason = f"drain deadline with {item.in_flight} in flight" if late else "drained"
        item = apply_event(item, LifecycleEvent.STOP_SENT, now_ms, reason)
        return replace(item, terminated_ms=now_ms)
    if routed:
        waited_ms = now_ms - item.switch_ms
        if waited_ms >= rules.unhealthy_after_ms:
            refused = item.refused_phase or item.desired.phase
            why = f"switch to {refused} failed: no answer for {waited_ms / 1e3:.0f} s"
            return _roll_back(item, now_ms, why)
        return item
    reason = _kill_reason(item, now_ms, rules)
    if not reason:
        return item
    if item.code:  # the reason why the launch waits
        reason = f"{reason}: {item.reason}"
    commands.append(Kill(item.instance))
    return replace(item, killed_ms=now_ms, reason=reason)


def _change_phase(
    item: InstanceRecord, wanted: DesiredInstance, now_ms: int
) -> tuple[InstanceRecord, bool]:
    """`item` after a comparison of its phase with the phase in `wanted`, and whether its process
    must stop."""
    if wanted.phase == item.phase:
        unmoved = (
            item.state is InstanceState.SWITCHING
            and item.has_process
            and _started_before_switch(item)
        )
        if unmoved and not item.terminated_ms:  # the switch was revoked
            item = apply_event(item, LifecycleEvent.ROLLED_BACK, now_ms)
            item = replace(item, switch_ms=0, from_phase="")
        return item, False
    if item.state is InstanceState.READY:
        item = apply_event(item, LifecycleEvent.SWITCH_ASKED, now_ms)
        return replace(item, switch_ms=now_ms, from_phase=item.phase, failures=0), False
    if item.state is InstanceState.STARTING and not item.has_process:
        return replace(item, phase=wanted.phase), False
    if item.state is InstanceState.SWITCHING:
        return item, False  # the comparison is repeated after the switch
    return item, True


def _started_before_switch(item: InstanceRecord) -> bool:
    """Whether the process of an instance that switches its role was started before the switch."""
    return item.launched_ms <= item.switch_ms


def _switch_confirmed(item: InstanceRecord, seen: ProcessObservation, rules: Rules) -> bool:
    """Whether a healthy probe confirms the role switch. If the switch keeps the process, the probe
    must have started after the switch began. If it relaunches the process, the probe must be of the
    new process.
    """
    if item.killed_ms or item.terminated_ms:
        return False
    if item.desired.engine in rules.live_switch_engines:
        return seen.probed_ms >= item.switch_ms
    return not _started_before_switch(item)


def _finish_switch(item: InstanceRecord, now_ms: int) -> InstanceRecord:
    if item.refused_phase:  # relaunched in its previous role
        return replace(_roll_back(item, now_ms, item.reason), was_ready=True)
    phase = item.desired.phase if _started_before_switch(item) else item.phase
    item = apply_event(item, LifecycleEvent.SWITCHED, now_ms)
    return replace(item, phase=phase, switch_ms=0, from_phase="", failures=0, was_ready=True)


def _roll_back(item: InstanceRecord, now_ms: int, why: str) -> InstanceRecord:
    """`item` in the phase from before the switch; `why` becomes its reason."""
    refused = item.refused_phase or item.desired.phase
    item = apply_event(item, LifecycleEvent.ROLLED_BACK, now_ms, why)
    return replace(
        item, phase=item.from_phase, from_phase="", switch_ms=0, refused_phase=refused, failures=0
    )


def _process_ended(
    item: InstanceRecord, note: str, now_ms: int, rules: Rules, hopeless: bool
) -> InstanceRecord:
    gone = replace(
        item,
        has_process=False,
        endpoint="",
        ports=(),
        in_flight=0,
        held_kv=0,
        finished=0,
        unhealthy_since_ms=0,
        starved_ms=0,
        terminated_ms=0,
        killed_ms=0,
        sleep_ms=0,
    )
    if item.state in (InstanceState.DRAINING, InstanceState.ASLEEP, InstanceState.STOPPING):
        reason = item.reason if item.state is InstanceState.STOPPING else ""
        return replace(apply_event(gone, LifecycleEvent.ENDED, now_ms, reason), drain_ms=0)
    # If the executor killed the process, the executor's reason is more useful than the exit code.
    why = item.reason if item.killed_ms and item.reason else note or "the process ended"
    if item.state is InstanceState.SWITCHING:
        return _ended_while_switching(item, gone, why, now_ms, rules)
    if item.state is InstanceState.STARTING and item.sleep_ms:  # cold start without backoff
        gone = apply_event(gone, LifecycleEvent.DIED, now_ms, why)
        return replace(gone, restarts=item.restarts + 1, retry_ms=now_ms)
    lasted = item.state is InstanceState.READY and now_ms - item.since_ms >= rules.stable_ms
    failures = 1 if lasted else item.failures + 1
    gang = item.desired.gang
    if gang is not None or hopeless or failures >= rules.max_attempts:
        # Ranks of a gang cannot continue with a new rank, so the whole gang is replaced.
        text = f"{gang.place}: " if gang else f"given up after {failures} attempts: "
        text = why if hopeless and not gang else text + why
        return replace(apply_event(gone, LifecycleEvent.GAVE_UP, now_ms, text), failures=failures)
    # A stable instance is restarted without backoff after its first failure, because capacity is
    # missing.
    retry_ms = now_ms if lasted else now_ms + _backoff_ms(failures, rules)
    gone = apply_event(gone, LifecycleEvent.DIED, now_ms, why)
    return replace(gone, failures=failures, restarts=item.restarts + 1, retry_ms=retry_ms)


def _ended_while_switching(
    item: InstanceRecord, gone: InstanceRecord, why: str, now_ms: int, rules: Rules
) -> InstanceRecord:
    """`item` after its process ended during a switch: the old process ended as intended, or a new
    process failed to start."""
    gone = apply_event(gone, LifecycleEvent.DIED, now_ms, item.reason)
    if _started_before_switch(item):
        # Whether the old process was terminated or crashed, the next one has the new phase.
        return replace(gone, phase=item.desired.phase, failures=0, retry_ms=now_ms, was_ready=False)
    failures = item.failures + 1
    restarts = item.restarts + 1
    if item.refused_phase:
        if failures >= rules.max_attempts:
            text = f"{item.reason}; given up after {failures} attempts: {why}"
            gone = apply_event(gone, LifecycleEvent.GAVE_UP, now_ms, text)
            return replace(gone, failures=failures, switch_ms=0, from_phase="")
        retry_ms = now_ms + _backoff_ms(failures, rules)
    elif failures >= rules.switch_attempts:
        text = f"switch to {item.phase} failed: {why}"
        return replace(
            gone, phase=item.from_phase, refused_phase=item.phase, reason=text, failures=0,
            restarts=restarts, retry_ms=now_ms,
        )  # fmt: skip
    else:
        retry_ms = now_ms + _backoff_ms(failures, rules)
    return replace(gone, failures=failures, restarts=restarts, retry_ms=retry_ms)


def _backoff_ms(failures: int, rules: Rules) -> int:
    pause_ms: int = rules.backoff_ms * 2 ** (failures - 1)
    return min(rules.max_backoff_ms, pause_ms)


def can_reuse_process(desired: DesiredInstance, wanted: DesiredInstance) -> bool:
    """Whether a process launched for `desired` can serve `wanted`: all settings that only a launch
    sets are equal. The group is only a label of the routes. A version that an older controller did
    not name equals any other."""
    if desired.version and wanted.version and desired.version != wanted.version:
        return False
    same = (desired.model, desired.gpus, desired.engine)
    if desired.gang is None or wanted.gang is None:
        return same == (wanted.model, wanted.gpus, wanted.engine) and desired.gang is wanted.gang
    part = desired.gang.same_part(wanted.gang)
    return part and same == (wanted.model, wanted.gpus, wanted.engine)


def _may_sleep(item: InstanceRecord, now_ms: int, rules: Rules) -> bool:
    """Whether a drained instance may sleep. If it does not fall asleep in time, it is stopped
    instead."""
    tried = item.sleep_ms and now_ms - item.sleep_ms >= rules.unhealthy_after_ms
    asked = item.was_ready and item.desired.engine in rules.standby_engines
    return asked and item.desired.gang is None and not tried


def _kill_reason(item: InstanceRecord, now_ms: int, rules: Rules) -> str:
    # Not the launch time: an instance whose drain was revoked is STARTING again, long after its
    # launch.
    starting_ms = now_ms - max(item.launched_ms, item.since_ms)
    if item.state is InstanceState.SWITCHING:
        starting_ms = now_ms - item.launched_ms
    if item.sleep_ms and starting_ms >= rules.unhealthy_after_ms:
        return f"did not wake in {starting_ms / 1e3:.0f} s"
    if item.launched_ms >= item.since_ms or item.state is InstanceState.SWITCHING:
        starting_ms -= item.starved_ms
    comes_up = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
    if comes_up and starting_ms >= rules.start_timeout_ms:
        return f"not ready {starting_ms / 1e3:.0f} s after it began to start"
    if item.unhealthy_since_ms and now_ms - item.unhealthy_since_ms >= rules.unhealthy_after_ms:
        return f"no answer for {(now_ms - item.unhealthy_since_ms) / 1e3:.0f} s"
    return ""
