"""Record the changed parts of the state in the ledger, from which the next leader continues.

A part is recorded when it changes. Estimates that change with every second of telemetry are
recorded with the model's next other change, and at least once a minute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.burstiness import BurstinessSums
from autoscaler.estimate.forecast.forecast_state import ForecastState
from autoscaler.estimate.forecast.history import MINUTES, History
from autoscaler.planning.planner_messages import Urgency
from autoscaler.rollout.capacity_and_cost import by_model
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.sizing.prediction_drift import basis
from autoscaler.state.controller_state import ControllerState, FullPlans
from autoscaler.state.effects import PublishLedger
from autoscaler.state.ledger import (
    ArrivalsHour,
    CombosMemory,
    FleetMemory,
    GroupsMemory,
    ModelMemory,
    Part,
    write_part,
)
from autoscaler.state.model_state import ModelState
from autoscaler.state.replan_trigger import Trigger
from topics.codec import write_value

_ESTIMATES_EVERY_MS = 60_000
_CONFIRMED_WITHIN_MS = 10_000
"""Resolution of recorded proofs of an increase, which may come with every tick."""
_ARRIVALS_EVERY_MIN = 10
_NO_SUMS, _NO_FORECAST = BurstinessSums(), ForecastState()


def record_ledger(
    before: ControllerState, after: ControllerState, cluster: Cluster, now_ms: int
) -> list[PublishLedger]:
    """The entries of all parts of `after` that differ from `before`; of all parts at the first tick
    of a leader."""
    token = after.term.leader_token
    return [
        PublishLedger(write_part(model, part, token, now_ms))
        for model, part in _changed(before, after, cluster, now_ms)
    ]


def service_digest(service: Service) -> str:
    """Hash of a declaration."""
    return _digest(service)


@TICK_CACHES.by_identity
def _digest(service: Service) -> str:
    return hashlib.sha256(write_value(service)).hexdigest()[:16]


def _changed(
    before: ControllerState, after: ControllerState, cluster: Cluster, now_ms: int
) -> Iterator[tuple[str, Part]]:
    new = not before.term.begun
    if new or _of_fleet(before) != _of_fleet(after):
        yield "", fleet_memory(after)
    services = {service.model: service for service in cluster.services}
    for model, service in services.items():
        state = after.models[model]
        known = None if new else before.models.get(model)
        if (
            known is None
            or (
                known is not state
                and (
                    _lasting(known) != _lasting(state)
                    or _estimates_due(model, before.term.ticked_ms, now_ms)
                )
            )
            or before.evaluated.demands.get(model) != after.evaluated.demands.get(model)
            or (before.full.last.lengths.get(model) != after.full.last.lengths.get(model))
        ):
            yield model, model_memory(after, service, cluster)
        yield from _arrivals(model, known, state)
    if new or before.groups != after.groups:
        was, now = by_model(before.groups), by_model(after.groups)
        for model in sorted(was.keys() | now.keys() | (services.keys() if new else set())):
            if new or was.get(model) != now.get(model):
                yield model, groups_memory(now.get(model, ()))
    if new or before.evaluated.combos != after.evaluated.combos:
        for model in services:
            combos = _combos(after, model)
            if new or combos != _combos(before, model):
                yield model, combos


def fleet_memory(state: ControllerState) -> FleetMemory:
    """The memory about the whole fleet. A full plan without an answer counts as not requested yet,
    because a new leader gets no answer to it."""
    full, last = state.full, replace(state.full.last, lengths={})
    pending = state.pending.get(Urgency.FULL)
    if pending is not None:
        again = (Trigger(pending.request.scope, why) for why in pending.reasons)
        asked_ms = tuple(at_ms for at_ms in full.asked_ms if at_ms != pending.request.at_ms)
        full = replace(full, due=(*full.due, *again), asked_ms=asked_ms)
        last = replace(last, already_tried=())
    return FleetMemory(
        started_ms=state.term.started_ms,
        listens_since_ms=state.term.listens_since_ms,
        observed=state.observed,
        controls=state.declared.controls,
        supply=state.supply,
        full=replace(full, last=last),
        splits=state.splits,
        numbers=state.numbers,
    )


def model_memory(state: ControllerState, service: Service, cluster: Cluster) -> ModelMemory:
    """The memory about the model of `service`."""
    model = service.model
    known = state.models[model]
    guarded = state.declared.services.get(model, service)
    forecast = replace(known.estimate.forecast, history=History())
    known = replace(known, estimate=replace(known.estimate, forecast=forecast))
    return ModelMemory(
        known,
        basis(service, cluster),
        service_digest(service),
        guarded.mode,
        guarded.min_instances,
        state.evaluated.demands.get(model),
        state.full.last.lengths.get(model),
    )


def groups_memory(groups: tuple[ServingGroup, ...] | list[ServingGroup]) -> GroupsMemory:
    """The memory about the groups of one model."""
    return GroupsMemory(
        tuple(
            group if group.switch is not None or group.replaces else replace(group, placed=())
            for group in groups
        )
    )


def _combos(state: ControllerState, model: str) -> CombosMemory:
    named = sorted(state.evaluated.combos.items())
    return CombosMemory(tuple(combo for _, combo in named if combo.model == model))


def _of_fleet(state: ControllerState) -> tuple[Any, ...]:
    """The parts of the state that `FleetMemory` holds."""
    full: FullPlans = state.full
    return (
        state.term.started_ms,
        state.term.listens_since_ms,
        state.observed,
        state.declared.controls,
        state.supply,
        full.due,
        full.asked_ms,
        full.made_ms,
        full.gap,
        full.failed_ms,
        full.failure_noticed_ms,
        state.pending.keys() & {Urgency.FULL},
        state.splits,
        state.numbers,
    )


def _lasting(state: ModelState) -> ModelState:
    """`state` without the sums, forecasts and figures that change all the time."""
    estimate, target = state.estimate, state.target
    confirmed_ms = target.increase_confirmed_ms // _CONFIRMED_WITHIN_MS
    return replace(
        state,
        estimate=replace(estimate, burstiness=_NO_SUMS, moments=(), forecast=_NO_FORECAST),
        target=replace(target, need_req_per_s=None, why=None, increase_confirmed_ms=confirmed_ms),
    )


def _estimates_due(model: str, before_ms: int, now_ms: int) -> bool:
    """Whether the estimates of `model` are recorded now: once a minute, at a second that depends on
    the model."""
    own_ms = sum(model.encode()) * 1000
    return (now_ms + own_ms) // _ESTIMATES_EVERY_MS != (before_ms + own_ms) // _ESTIMATES_EVERY_MS


def _arrivals(
    model: str, known: ModelState | None, state: ModelState
) -> Iterator[tuple[str, Part]]:
    """The hours with new minutes, every ten minutes. A new leader counts the minutes after the last
    record again from its windows."""
    history = state.estimate.forecast.history
    said = known.estimate.forecast.history.end_minute if known else 0
    if history.end_minute // _ARRIVALS_EVERY_MIN == said // _ARRIVALS_EVERY_MIN:
        return
    last = (history.end_minute - 1) // MINUTES
    first = max(last - 1, (said - 1) // MINUTES, history.first_hour)
    for hour in range(first, last + 1):
        yield model, ArrivalsHour(hour, history.hour(hour))
