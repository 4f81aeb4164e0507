"""Restore the controller's state from the topics: after a start, a crash or a change of leader.

Windows are restored elsewhere, from telemetry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.estimate.forecast.forecast_state import ForecastState
from autoscaler.estimate.forecast.history import restore_history
from autoscaler.modes.quality.thresholds import from_routes
from autoscaler.planning.combo_names import combo_id, parse_combo_id
from autoscaler.rollout.reversal_limit import Reversals, after_move
from autoscaler.rollout.serving_group import (
    Life,
    Placed,
    RouteExit,
    ServingGroup,
    Switch,
    combo_id_of,
    serial_of,
)
from autoscaler.sizing.capacity_derating import LEAST
from autoscaler.sizing.prediction_drift import basis
from autoscaler.state.controller_state import ControllerState, FullPlans, Numbers, Published, Term
from autoscaler.state.model_state import Capacity, DemandEstimate, Hysteresis, ModelState, Target
from topics.checks import MAX_RESTORED_COUNT, InvalidRecord
from topics.decisions import Decision
from topics.fleet import Assignment, DesiredInstance, InstanceState, Status
from topics.hourly_rates import HOUR_MS, PredictionDrift, RateHour
from topics.reason_codes import ReasonCode
from topics.routing import Routes

_NEVER_SERVED = (InstanceState.STARTING, InstanceState.FAILED, InstanceState.STOPPED)
Told = TypeVar("Told", Assignment, Routes)
_Member = tuple[Placed, DesiredInstance]
"""One instance of a group: its place, and its entry in the assignment."""
_MOVES = {"scale_out": "out", "replace": "out", "scale_in": "in"}


def restore(
    cluster: Cluster,
    assignments: Mapping[str, Assignment],
    routes: Mapping[str, Routes],
    statuses: Mapping[str, Status],
    decisions: Iterable[Decision],
    now_ms: int,
    *,
    leader_token: int = 0,
    plan_number: int = 0,
    next_serial: int = 1,
    rates: Iterable[RateHour] = (),
    full_ms: tuple[int, ...] = (),
) -> ControllerState:
    """The state for the next tick. assignments and statuses by node, routes by model.

    A removal that has not begun to drain is cancelled, because removals need new evidence. A role
    switch continues. Reversals, the last addition and decision numbers are restored. The capacity
    of combos is unknown until the planner's first answer. plan_number, next_serial: numbers of the
    last plan. rates: requests of past hours, and start times measured under the present
    predictions. full_ms: time of the last request for a full plan, if this process was the leader
    before. At a first start, all inputs are empty. If the topics were lost, the fleet follows from
    the statuses alone.
    """
    assignments = {node: _within_bounds(record) for node, record in assignments.items()}
    routes = {model: _within_bounds(record) for model, record in routes.items()}
    groups = _groups(cluster, assignments, routes, statuses, now_ms)
    running = {group.model for group in groups}
    turns: dict[str, Reversals] = {}
    added_ms: dict[str, int] = {}
    number = 0
    for decision in sorted(decisions, key=lambda d: (d.at_ms, d.number)):
        if decision.number <= MAX_RESTORED_COUNT:
            number = max(number, decision.number)
        move = _MOVES.get(decision.kind) if decision.applied else None
        if move is not None:
            turns[decision.model] = after_move(
                turns.get(decision.model, Reversals()), move, decision.at_ms
            )
        if move == "out":
            added_ms[decision.model] = min(decision.at_ms, now_ms)
    hours: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    last: dict[str, RateHour] = {}
    bases = {service.model: basis(service, cluster) for service in cluster.services}
    for record in sorted(rates, key=lambda record: record.hour):
        hours.setdefault(record.model, []).append((record.hour, record.arrivals))
        # ignore records of future hours: their clock was wrong
        past = record.hour <= now_ms // HOUR_MS
        if past and record.basis == bases.get(record.model):
            last[record.model] = record
    models = {
        service.model: ModelState(
            estimate=DemandEstimate(
                lengths=service.lengths,
                rate_observed=service.model in running,
                forecast=ForecastState(restore_history(hours.get(service.model, ()), now_ms)),
            ),
            target=Target(restart_hold=service.model in running),
            hysteresis=Hysteresis(
                reversals=turns.get(service.model, Reversals()),
                last_out_ms=added_ms.get(service.model, 0),
            ),
            capacity=Capacity(
                derate=max(LEAST, last[service.model].derate) if service.model in last else 1.0,
                derated_ms=now_ms if service.model in last else 0,
                drift=last[service.model].learnt if service.model in last else PredictionDrift(),
            ),
        )
        for service in cluster.services
    }
    serials = [serial_of(group.name) for group in groups]
    serials += [serial_of(route.group) for record in routes.values() for route in record.groups]
    serials += [serial_of(seen.group) for status in statuses.values() for seen in status.instances]
    return ControllerState(
        term=Term(
            started_ms=now_ms,
            leader_token=leader_token,
            announce=_announcement(cluster, groups) if groups or number else None,
        ),
        published=Published(assignments=dict(assignments), routes=dict(routes)),
        numbers=Numbers(
            group=max(next_serial, max(serials, default=0) + 1), decision=number, plan=plan_number
        ),
        groups=groups,
        models=models,
        full=FullPlans(asked_ms=full_ms),
        splits=from_routes(cluster, routes, now_ms),
    )


def _within_bounds(record: Told) -> Told:
    """`record` with a generation that can still be increased. A lower generation is safe, because
    the new leader token makes later records newer."""
    if record.generation <= MAX_RESTORED_COUNT:
        return record
    return replace(record, generation=MAX_RESTORED_COUNT)


def _groups(
    cluster: Cluster,
    assignments: Mapping[str, Assignment],
    routes: Mapping[str, Routes],
    statuses: Mapping[str, Status],
    now_ms: int,
) -> tuple[ServingGroup, ...]:
    """The groups that the assignments describe, and those of running instances without an
    assignment. A group with a missing member serves no requests, so it is drained, and the next
    plan replaces it. A drain in progress still counts against the disruption budget."""
    served = {
        seen.instance
        for status in statuses.values()
        for seen in status.instances
        if seen.state not in _NEVER_SERVED
    }
    launched = {
        seen.instance: seen.launched_ms
        for status in statuses.values()
        for seen in status.instances
        if seen.launched_ms
    }
    parts: dict[str, list[_Member]] = {}
    for node in sorted(assignments):
        for instance in assignments[node].instances:
            parts.setdefault(instance.group, []).append(
                (_placed(instance, node, assignments[node].pool), instance)
            )
    since_ms = now_ms - int(cluster.policy.node_silent_s * 1000)
    for name, found in _unassigned(assignments, statuses, since_ms).items():
        assigned = parts.setdefault(name, [])
        draining = any(instance.drain for _, instance in assigned)
        if not assigned or not (draining or _is_complete(name, assigned)):
            assigned += found
    phases = {
        seen.instance: Phase(seen.phase)
        for status in statuses.values()
        for seen in status.instances
    }
    groups = []
    for name, members in parts.items():
        first = members[0][1]
        placed = sorted((member for member, _ in members), key=lambda member: member.instance)
        draining = any(wanted.drain for _, wanted in members) or not _is_complete(name, members)
        known = routes.get(first.model)
        generation = max(1, known.generation) if known else 1
        leaves = draining and any(p.instance in served for p in placed)
        created = min((launched[p.instance] for p in placed if p.instance in launched), default=0)
        groups.append(
            ServingGroup(
                name=name,
                model=first.model,
                combo_id=combo_id_of(name),
                engine=first.engine,
                placed=tuple(placed),
                # A start without a reported launch time counts from now.
                created_ms=min(created or now_ms, now_ms),
                life=Life.DRAINING if draining else Life.ACTIVE,
                since_ms=now_ms,
                exit=RouteExit(generation=generation if leaves else 0),
                switch=None if draining else _switch(name, first.model, placed, phases),
            )
        )
    return tuple(sorted(groups, key=lambda group: (group.created_ms, group.name)))


def _placed(instance: DesiredInstance, node: str, pool: str) -> Placed:
    return Placed(
        instance.instance, Phase(instance.phase), node, pool, instance.gpus, instance.gang
    )


def _switch(
    name: str, model: str, placed: list[Placed], phases: Mapping[str, Phase]
) -> Switch | None:
    """The role switch of the group called `name`, if a member serves in another phase than its
    assignment: that member's executor completes the switch or rolls it back. phases: the phase in
    which each instance serves. None if part of the switch is complete, so that the present roles
    form no combo to return to.
    """
    before = tuple(replace(p, phase=phases.get(p.instance, p.phase)) for p in placed)
    serving = {p.phase for p in before}
    apart = serving in ({Phase.PREFILL, Phase.DECODE}, {Phase.AGGREGATED})
    if list(before) == placed or not apart or any(p.gang or p.deployment for p in placed):
        return None
    made_of: Counter[tuple[Phase, int, str]] = Counter()
    for phase in Phase:
        made_of.update((phase, len(p.gpus), p.pool) for p in before if p.phase is phase)
    members = [(*member, count) for member, count in made_of.items()]
    return Switch(f"{combo_id(model, members)}:{serial_of(name)}", before, asked=True)


def _unassigned(
    assignments: Mapping[str, Assignment], statuses: Mapping[str, Status], since_ms: int
) -> dict[str, list[_Member]]:
    """By group, the instances on nodes without a published assignment. If they are assigned again,
    they keep running unchanged."""
    found: dict[str, list[_Member]] = {}
    for node, status in sorted(statuses.items()):
        if node in assignments or status.at_ms < since_ms:
            continue
        busy = set[int]()
        for seen in status.instances:
            runs = seen.state in (InstanceState.STARTING, InstanceState.READY)
            if not runs or busy.intersection(seen.gpus):
                continue
            try:
                wanted = DesiredInstance(
                    seen.instance, seen.model, seen.phase, seen.group, seen.gpus, seen.engine,
                    gang=seen.gang,
                )  # fmt: skip
            except InvalidRecord:  # no assignment can contain it
                continue
            busy.update(seen.gpus)
            member = _placed(wanted, node, status.pool), wanted
            found.setdefault(seen.group, []).append(member)
    return found


def _is_complete(name: str, placed: Iterable[_Member]) -> bool:
    """Whether the group called `name` has all its members. The name lists the members."""
    try:
        _, members = parse_combo_id(combo_id_of(name))
    except InvalidValue:
        return True  # names of other forms list no members
    wanted: Counter[tuple[Phase, int, str]] = Counter()
    for phase, gpus, pool, count in members:
        wanted[phase, gpus, pool] += count
    there = Counter((member.phase, len(member.gpus), member.pool) for member, _ in placed)
    return wanted <= there


def _announcement(cluster: Cluster, groups: tuple[ServingGroup, ...]) -> Reason:
    models = {group.model for group in groups}
    instances = sum(len(group.placed) for group in groups)
    counts = instances, len(models), len(cluster.services)
    return Reason(ReasonCode.REBUILT, "*", quantities=counts)
