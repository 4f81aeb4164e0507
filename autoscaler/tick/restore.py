"""Restore the controller's state from the topics: after a start, a crash or a change of leader.

The ledger holds the memory of the last leader. A part without a readable entry is rebuilt from
assignments, routes, statuses and decisions. Windows are restored elsewhere, from telemetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from autoscaler.apply.approvals import without_ended_proposal
from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.estimate.forecast.history import restore_history
from autoscaler.rollout.serving_group import ServingGroup, serial_of
from autoscaler.sizing.capacity_derating import LEAST
from autoscaler.sizing.prediction_drift import basis
from autoscaler.sizing.scale_in.reversals import after_move
from autoscaler.state.controller_state import (
    ControllerState,
    Declared,
    Evaluated,
    FullPlans,
    Numbers,
    ObservedFleet,
    Published,
    Term,
)
from autoscaler.state.ledger import FleetMemory, Memory, ModelMemory, read_ledger
from autoscaler.state.model_state import (
    Capacity,
    DemandEstimate,
    Hysteresis,
    ModelState,
    Reversals,
    Target,
)
from autoscaler.tick.rebuild_groups import rebuild_groups, with_memory
from autoscaler.tick.record_ledger import service_digest
from autoscaler.tick.route_hooks import RESTORED_SPLITS
from topics.checks import MAX_RESTORED_COUNT
from topics.decisions import Decision
from topics.fleet import Assignment, Status
from topics.ledger import LedgerEntry
from topics.reason_codes import ReasonCode
from topics.routing import Routes

Told = TypeVar("Told", Assignment, Routes)
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
    ledger: Iterable[LedgerEntry] = (),
) -> ControllerState:
    """The state for the next tick. assignments and statuses by node, routes by model.

    Assignments decide which instances shall run; the ledger remembers everything else. Requests to
    the planner without an answer are forgotten, and made again if their causes remain. plan_number,
    next_serial: numbers of the last plan. At a first start, all inputs are empty.

    Of a model without memory, a removal that has not begun to drain is cancelled, and running
    instances are held until its demand is measured (`Target.restart_hold`). If the topics were
    lost, the fleet follows from the statuses alone.
    """
    assignments = {node: _within_bounds(record) for node, record in assignments.items()}
    routes = {model: _within_bounds(record) for model, record in routes.items()}
    memory = read_ledger(ledger, now_ms)
    groups = with_memory(
        rebuild_groups(cluster, assignments, routes, statuses, now_ms),
        [group for part in memory.groups.values() for group in part.groups],
    )
    running = {group.model for group in groups}
    turns: dict[str, Reversals] = {}
    added_ms: dict[str, int] = {}
    ends: dict[int, Decision] = {}
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
        if decision.proposal:
            ends[decision.proposal] = decision
    models = {}
    for service in cluster.services:
        model, known = service.model, memory.models.get(service.model)
        hours = ((part.hour, part.arrivals) for part in memory.arrivals.get(model, ()))
        history = restore_history(hours, now_ms)
        if known is None:
            hysteresis = Hysteresis(turns.get(model, Reversals()), added_ms.get(model, 0))
            models[model] = _forgotten(service, model in running, hysteresis)
        else:
            remembered = _remembered(known, known.basis == basis(service, cluster))
            models[model] = without_ended_proposal(remembered, ends)
        estimate = models[model].estimate
        estimate = replace(estimate, forecast=replace(estimate.forecast, history=history))
        models[model] = replace(models[model], estimate=estimate)
    fleet = memory.fleet or FleetMemory(now_ms, numbers=Numbers())
    forgotten = any(
        service.model in running and service.model not in memory.models
        for service in cluster.services
    )
    serials = [serial_of(group.name) for group in groups]
    serials += [serial_of(route.group) for record in routes.values() for route in record.groups]
    serials += [serial_of(seen.group) for status in statuses.values() for seen in status.instances]
    return ControllerState(
        term=Term(
            # Without a model's memory, evidence counts from now on.
            started_ms=now_ms if forgotten or not fleet.started_ms else fleet.started_ms,
            leader_token=leader_token,
            ticked_ms=memory.written_ms,
            listens_since_ms=fleet.listens_since_ms,
            announce=_announcement(cluster, groups) if groups or number else None,
        ),
        groups=groups,
        observed=_observed(fleet, cluster),
        published=Published(assignments=dict(assignments), routes=dict(routes)),
        models=models,
        evaluated=_evaluated(memory, cluster),
        declared=_declared(memory, fleet, cluster),
        supply=fleet.supply,
        full=_full_plans(memory, fleet, cluster),
        splits=RESTORED_SPLITS(cluster, routes, fleet.splits, now_ms) if cluster.routes else {},
        numbers=Numbers(
            group=max(fleet.numbers.group, next_serial, max(serials, default=0) + 1),
            request=fleet.numbers.request,
            decision=max(fleet.numbers.decision, number),
            plan=max(fleet.numbers.plan, plan_number),
        ),
    )


def _within_bounds(record: Told) -> Told:
    """`record` with a generation that can still be increased. A lower generation is safe, because
    the new leader token makes later records newer."""
    if record.generation <= MAX_RESTORED_COUNT:
        return record
    return replace(record, generation=MAX_RESTORED_COUNT)


def _forgotten(service: Service, is_running: bool, hysteresis: Hysteresis) -> ModelState:
    """The state of a model without memory. is_running: whether it has instances."""
    return ModelState(
        estimate=DemandEstimate(lengths=service.lengths, rate_observed=is_running),
        target=Target(restart_hold=is_running),
        hysteresis=hysteresis,
    )


def _remembered(memory: ModelMemory, is_valid: bool) -> ModelState:
    """The remembered state of a model. is_valid: whether the predictions have the same basis, so
    that measured capacity can be compared with them."""
    state = memory.state
    if not is_valid:
        lost = state.capacity
        return replace(state, capacity=Capacity(lost_ms=lost.lost_ms, lost_nodes=lost.lost_nodes))
    derate = max(LEAST, state.capacity.derate)
    return replace(state, capacity=replace(state.capacity, derate=derate))


def _observed(fleet: FleetMemory, cluster: Cluster) -> ObservedFleet:
    pools = {pool.id for pool in cluster.pools}
    backoff = {node: mark for node, mark in fleet.observed.backoff.items() if mark.pool in pools}
    return replace(fleet.observed, backoff=backoff)


def _evaluated(memory: Memory, cluster: Cluster) -> Evaluated:
    """The evaluations that are valid for the present predictions and pools."""
    pools = {pool.id for pool in cluster.pools}
    combos: dict[str, Combo] = {}
    demands: dict[str, Demand] = {}
    for service in cluster.services:
        known = memory.models.get(service.model)
        if known is None or known.basis != basis(service, cluster):
            continue
        evaluated = memory.combos.get(service.model)
        if evaluated is None or known.evaluated is None:
            continue
        if any(member.pool not in pools for one in evaluated.combos for member in one.members):
            continue
        combos |= {combo.id: combo for combo in evaluated.combos}
        demands[service.model] = known.evaluated
    return Evaluated(combos, demands)


def _declared(memory: Memory, fleet: FleetMemory, cluster: Cluster) -> Declared:
    """The declarations at the last tick, of services that have not changed since."""
    services = {}
    for service in cluster.services:
        known = memory.models.get(service.model)
        if known is not None and known.service == service_digest(service):
            least = min(known.min_instances, service.max_instances or known.min_instances)
            services[service.model] = replace(service, mode=known.mode, min_instances=least)
    return Declared(services, fleet.controls)


def _full_plans(memory: Memory, fleet: FleetMemory, cluster: Cluster) -> FullPlans:
    """The memory of full plans, with the lengths at each model's last request."""
    declared = {service.model for service in cluster.services}
    lengths = {
        model: known.planned_lengths
        for model, known in memory.models.items()
        if known.planned_lengths is not None and model in declared
    }
    due = tuple(trigger for trigger in fleet.full.due if declared.issuperset(trigger.scope))
    return replace(fleet.full, due=due, last=replace(fleet.full.last, lengths=lengths))


def _announcement(cluster: Cluster, groups: tuple[ServingGroup, ...]) -> Reason:
    models = {group.model for group in groups}
    instances = sum(len(group.placed) for group in groups)
    counts = instances, len(models), len(cluster.services)
    return Reason(ReasonCode.REBUILT, "*", quantities=counts)
