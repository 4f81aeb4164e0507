"""Reconciling one node: desired and seen in, commands out. Pure.

Holds the comparison of an assignment with what runs. It must not know processes, sockets or Kafka.
A message that comes twice, late or out of order changes nothing; a step with nothing new yields
no command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from executors.engines.engine_protocol import rendezvous
from executors.node import instance_lifecycle, warm_standby
from executors.node.node_state import Command, Held, Launch, NodeState, Rules, Seen
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance
from topics.instance_ranks import GangRank


def expiry_ms(assignment: Assignment, now_ms: int, age_ms: int) -> int:
    """Until when, by the clock of `now_ms`, an assignment is in force that the broker took `age_ms`
    ago; 0 = for ever. Whatever its leader's clock says: only how long it is valid counts."""
    return now_ms - age_ms + assignment.valid_ms if assignment.valid_ms else 0


def accept(state: NodeState, assignment: Assignment, expires_ms: int = 0) -> NodeState:
    """Take an assignment over, unless it is older than the one in force (refused, counted).

    The order is (leader_token, generation). The same one, said again later, only moves the expiry
    on: what it says was said the first time. expires_ms: see `expiry_ms`.
    """
    if assignment.node != state.node:
        return refused(state, "node")
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
            return refused(state, "leader token" if older else "generation")
    return replace(state, assignment=assignment, expires_ms=expires_ms)


def refused(state: NodeState, why: str) -> NodeState:
    """`state` with one more refusal counted."""
    return replace(state, refused={**state.refused, why: state.refused.get(why, 0) + 1})


def expired(state: NodeState, now_ms: int) -> bool:
    """Whether the assignment in force may start nothing new any more."""
    return state.assignment is not None and 0 < state.expires_ms <= now_ms


def reconcile(
    state: NodeState,
    seen: Mapping[str, Seen],
    now_ms: int,
    rules: Rules,
    blocked_gpus: Collection[int] = (),
) -> tuple[NodeState, tuple[Command, ...]]:
    """One step: what was seen, then what is desired, then what follows from both.

    seen: by instance; an instance that has a process and is missing there was not looked at.
    blocked_gpus: on which something still runs that is none of these instances.
    """
    commands: list[Command] = []
    assignment = state.assignment
    late = expired(state, now_ms)
    held = [
        instance_lifecycle.observe(item, seen[item.instance], now_ms, rules)
        if item.instance in seen
        else item
        for item in state.held
    ]
    # Past its expiry an assignment starts nothing and stops nothing: what runs goes on.
    if assignment is not None and not late:
        held = _compare(held, assignment, now_ms)
        held = warm_standby.evict(held, assignment, now_ms, rules, commands)
    stays = warm_standby.kept(held, state.pool, rules)
    drain_ms = (assignment.drain_timeout_ms if assignment else 0) or rules.drain_timeout_ms
    held = [
        instance_lifecycle.end(
            item, seen.get(item.instance), now_ms, drain_ms, rules, commands, stays
        )
        for item in held
    ]
    held = _launch(held, now_ms, rules, late, blocked_gpus, commands)
    return replace(state, held=tuple(held)), tuple(commands)


def launched(state: NodeState, instance: str, endpoint: str, ports: tuple[int, ...]) -> NodeState:
    """The process of `instance` was started and will be reached at `endpoint`."""
    return replace(
        state,
        held=tuple(
            replace(item, endpoint=endpoint, ports=ports) if item.instance == instance else item
            for item in state.held
        ),
    )


def observed(state: NodeState) -> tuple[ObservedInstance, ...]:
    """The instances of a node as others may see them."""
    return tuple(
        ObservedInstance(
            instance=item.instance,
            model=item.desired.model,
            phase=item.phase or item.desired.phase,
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
            gang=_told(item),
        )
        for item in state.held
    )


def _told(item: Held) -> GangRank | None:
    """Its place in its gang; of rank 0 with where it waits for the others."""
    gang = item.desired.gang
    if gang is None or not (gang.leads and item.process and item.ports):
        return gang
    return replace(gang, rendezvous=rendezvous(item.endpoint.rpartition(":")[0], item.ports))


def _compare(held: list[Held], assignment: Assignment, now_ms: int) -> list[Held]:
    """Bring the wishes of the assignment to the instances."""
    desired = {item.instance: item for item in assignment.instances}
    kept = []
    for item in held:
        wanted = desired.get(item.instance)
        compared = instance_lifecycle.wish(item, wanted, now_ms)
        over = compared.state in (InstanceState.STOPPED, InstanceState.FAILED)
        if wanted is None and over and not compared.process:
            continue
        kept.append(compared)
    known = {item.instance for item in held}
    for wanted in assignment.instances:
        if wanted.instance in known:
            continue
        # Never started here, and should end: it has ended.
        state, reason = InstanceState.STOPPED if wanted.drain else InstanceState.STARTING, ""
        if _ran_here(wanted):
            state, reason = InstanceState.FAILED, "it ran here and is gone"
        kept.append(Held(wanted, state, now_ms, wanted.phase, retry_ms=now_ms, reason=reason))
    return kept


def _ran_here(wanted: DesiredInstance) -> bool:
    """Whether only a start here can have made the place at which its gang meets: what is not known
    here any more is gone, and is not started again alone."""
    gang = wanted.gang
    return gang is not None and gang.leads and bool(gang.rendezvous) and not wanted.drain


def _launch(
    held: list[Held],
    now_ms: int,
    rules: Rules,
    late: bool,
    blocked_gpus: Collection[int],
    commands: list[Command],
) -> list[Held]:
    """Start what should run and whose GPUs are free: a GPU belongs to one process at a time. Where
    a sleeper has them that fits, it is woken instead.

    late: the assignment has expired; what served before is started again, nothing else.
    """
    busy = {gpu for item in held if item.process for gpu in item.desired.gpus} | {*blocked_gpus}
    result: list[Held] = []
    taken = set[str]()
    for item in held:
        comes = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
        waits = comes and not item.process
        if not waits or now_ms < item.retry_ms or (late and not item.launched_ms):
            result.append(item)
            continue
        gang = item.desired.gang
        if gang is not None and not (gang.leads or gang.rendezvous):
            result.append(replace(item, reason="waits for rank 0"))
            continue
        item, sleeper = warm_standby.woken(item, held, now_ms, rules, commands)
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
                item, phase=phase, process=True, answered=False, launched_ms=now_ms, reason=reason
            )
        )
    return [item for item in result if item.instance not in taken]
