"""Reconciliation of one node: assignment and observations in, commands out. Pure.

A message that arrives twice, late or out of order changes nothing, and a step without news yields
no command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from executors.engines.engine_protocol import rendezvous
from executors.node import instance_lifecycle, warm_standby
from executors.node.node_state import (
    Command,
    InstanceRecord,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
)
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance
from topics.instance_ranks import GangRank


def expires_at_ms(assignment: Assignment, now_ms: int, age_ms: int) -> int:
    """Time at which an assignment expires, in ms by the clock of `now_ms`; 0 = never. age_ms: time
    since the broker appended the assignment. The result follows from the assignment's validity
    period, not from the leader's clock."""
    return now_ms - age_ms + assignment.valid_ms if assignment.valid_ms else 0


def accept(state: NodeState, assignment: Assignment, expires_ms: int = 0) -> NodeState:
    """Make an assignment the current one. If it is older than the current one, by (leader_token,
    generation), it is refused and counted. If it is the current one published again, only its
    expiry is extended. expires_ms: see `expires_at_ms`.
    """
    if assignment.node != state.node:
        return count_refusal(state, "node")
    if state.assignment is not None:
        current = (state.assignment.leader_token, state.assignment.generation)
        offered = (assignment.leader_token, assignment.generation)
        if offered == current:
            if assignment.said_ms <= state.assignment.said_ms:
                return state
            again = replace(state.assignment, said_ms=assignment.said_ms)
            return replace(state, assignment=again, expires_ms=expires_ms)
        if offered < current:
            older = assignment.leader_token < state.assignment.leader_token
            return count_refusal(state, "leader token" if older else "generation")
    return replace(state, assignment=assignment, expires_ms=expires_ms)


def count_refusal(state: NodeState, why: str) -> NodeState:
    """`state` with one more refusal counted under `why`."""
    return replace(state, refused={**state.refused, why: state.refused.get(why, 0) + 1})


def is_expired(state: NodeState, now_ms: int) -> bool:
    """Whether the current assignment has expired, so that it may start nothing new."""
    return state.assignment is not None and 0 < state.expires_ms <= now_ms


def reconcile(
    state: NodeState,
    seen: Mapping[str, ProcessObservation],
    now_ms: int,
    rules: Rules,
    blocked_gpus: Collection[int] = (),
) -> tuple[NodeState, tuple[Command, ...]]:
    """One step: apply observations, then the assignment, then derive commands.

    seen: observations by instance; an instance without an entry was not observed. blocked_gpus:
    GPUs held by processes that belong to no instance in `state`.
    """
    commands: list[Command] = []
    assignment = state.assignment
    late = is_expired(state, now_ms)
    records = [
        instance_lifecycle.apply_observation(item, seen[item.instance], now_ms, rules)
        if item.instance in seen
        else item
        for item in state.instances
    ]
    # An expired assignment starts and stops nothing: existing instances keep running.
    if assignment is not None and not late:
        records = _apply_assignment(records, assignment, now_ms)
        records = warm_standby.evict_sleepers(records, assignment, now_ms, rules, commands)
    stays = warm_standby.node_stays(records, state.pool, rules)
    drain_ms = (assignment.drain_timeout_ms if assignment else 0) or rules.drain_timeout_ms
    records = [
        instance_lifecycle.stop_if_due(
            item, seen.get(item.instance), now_ms, drain_ms, rules, commands, stays
        )
        for item in records
    ]
    records = _launch(records, now_ms, rules, late, blocked_gpus, commands)
    return replace(state, instances=tuple(records)), tuple(commands)


def record_launch(
    state: NodeState, instance: str, endpoint: str, ports: tuple[int, ...]
) -> NodeState:
    """`state` after a process of `instance` was started with `endpoint` and `ports`."""
    return replace(
        state,
        instances=tuple(
            replace(item, endpoint=endpoint, ports=ports) if item.instance == instance else item
            for item in state.instances
        ),
    )


def observed_instances(state: NodeState) -> tuple[ObservedInstance, ...]:
    """The instances of a node as its status publishes them."""
    return tuple(
        ObservedInstance(
            instance=item.instance,
            model=item.desired.model,
            phase=item.phase or item.desired.phase,
            group=item.desired.group,
            state=item.state,
            gpus=item.desired.gpus,
            endpoint=item.endpoint if item.has_process else "",
            since_ms=item.since_ms,
            launched_ms=item.launched_ms,
            restarts=item.restarts,
            in_flight=item.in_flight,
            held_kv=item.held_kv,
            reason=item.reason[:2000],
            gang=_published_gang(item),
            pool_full=item.pool_full,
            engine=item.desired.engine,
            finished=item.finished,
            start=item.start,
            version=item.desired.version,
            code=item.code,
        )
        for item in state.instances
    )


def _published_gang(item: InstanceRecord) -> GangRank | None:
    """The gang rank of `item`; for rank 0 with its rendezvous address."""
    gang = item.desired.gang
    if gang is None or not (gang.leads and item.has_process and item.ports and item.endpoint):
        return gang
    return replace(gang, rendezvous=rendezvous(item.endpoint.rpartition(":")[0], item.ports))


def _apply_assignment(
    records: list[InstanceRecord], assignment: Assignment, now_ms: int
) -> list[InstanceRecord]:
    """Apply the assignment to the instances: drop finished ones without an entry, add new ones."""
    desired = {item.instance: item for item in assignment.instances}
    kept = []
    for item in records:
        wanted = desired.get(item.instance)
        compared = instance_lifecycle.apply_desired(item, wanted, now_ms)
        over = compared.state in (InstanceState.STOPPED, InstanceState.FAILED)
        if wanted is None and over and not compared.has_process:
            continue
        kept.append(compared)
    known = {item.instance for item in records}
    for wanted in assignment.instances:
        if wanted.instance in known:
            continue
        # An instance that never started here needs no drain.
        state, reason = InstanceState.STOPPED if wanted.drain else InstanceState.STARTING, ""
        if _was_started_here(wanted):
            state, reason = InstanceState.FAILED, "its process on this node is gone"
        kept.append(
            InstanceRecord(wanted, state, now_ms, wanted.phase, retry_ms=now_ms, reason=reason)
        )
    return kept


def _was_started_here(wanted: DesiredInstance) -> bool:
    """Whether `wanted` is rank 0 of a gang with a rendezvous, which only a launch on this node
    sets. If such an entry has no record here, its process is gone; rank 0 is not restarted
    alone."""
    gang = wanted.gang
    return gang is not None and gang.leads and bool(gang.rendezvous) and not wanted.drain


def _launch(
    records: list[InstanceRecord],
    now_ms: int,
    rules: Rules,
    late: bool,
    blocked_gpus: Collection[int],
    commands: list[Command],
) -> list[InstanceRecord]:
    """Launch instances whose GPUs are free; a GPU belongs to one process at a time. If a matching
    standby sleeps on the GPUs, wake the standby instead.

    late: whether the assignment has expired, so that only instances that were launched before are
    restarted.
    """
    busy = {gpu for item in records if item.has_process for gpu in item.desired.gpus} | {
        *blocked_gpus
    }
    result: list[InstanceRecord] = []
    taken = set[str]()
    for item in records:
        comes = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
        waits = comes and not item.has_process
        if not waits or now_ms < item.retry_ms or (late and not item.launched_ms):
            result.append(item)
            continue
        gang = item.desired.gang
        if gang is not None and not (gang.leads or gang.rendezvous):
            result.append(replace(item, reason="waits for rank 0"))
            continue
        item, sleeper = warm_standby.wake_sleeper(item, records, now_ms, rules, commands)
        if sleeper:
            taken.add(sleeper)
            result.append(item)
            continue
        if busy.intersection(item.desired.gpus):
            result.append(item if item.reason else replace(item, reason="waits for its GPUs"))
            continue
        busy.update(item.desired.gpus)
        phase = item.phase or item.desired.phase
        commands.append(Launch(item.desired, phase))
        reason = item.reason if item.refused_phase else ""
        result.append(
            replace(
                item,
                phase=phase,
                has_process=True,
                was_ready=False,
                launched_ms=now_ms,
                reason=reason,
                start=None,
            )
        )
    return [item for item in result if item.instance not in taken]
