"""Deciding is a fold: (state, observation) -> (state, effects). The heart of the controller.

Owns the order of a tick. Pure: no I/O, no clock, no randomness; the same inputs give the same
effects byte for byte. The edge calls it once per domain second and carries the effects out.

A tick: take in answers -> notice broken groups -> move waves -> per model, by priority: floors,
replacements, scale-out, else scale-in -> refine -> project groups onto assignments and routes.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.controller_state import (
    ControllerState,
    ModelState,
    Observation,
    Refinement,
    Scarcity,
)
from autoscaler.demand.lengths import estimate
from autoscaler.domain.cluster import Cluster
from autoscaler.effects import (
    Effect,
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
    RefinementRequested,
    ScaleOutTablesRequested,
)
from autoscaler.rebuild import rebuild
from autoscaler.scaling.health import move_waves, notice_broken, notice_silence
from autoscaler.scaling.publish import publish
from autoscaler.scaling.refinement import refine, request_refinement, watch_steadiness
from autoscaler.scaling.scale_out import scale_out
from autoscaler.scaling.shrink import shrink
from autoscaler.scaling.tick import Tick

__all__ = [
    "ControllerState",
    "Effect",
    "ModelState",
    "Observation",
    "PublishAssignment",
    "PublishDecision",
    "PublishPlan",
    "PublishRoutes",
    "Refinement",
    "RefinementRequested",
    "ScaleOutTablesRequested",
    "Scarcity",
    "decide",
    "rebuild",
]

TABLES_AGAIN_MS = 300_000
BUCKET_LEAST_MS = 120_000


def decide(
    state: ControllerState, observation: Observation, cluster: Cluster, now_ms: int
) -> tuple[ControllerState, tuple[Effect, ...]]:
    """One tick. `now_ms` is domain time; it should rise by about 1000 from call to call.

    Models in mode recommend or approve get decisions with `applied` False and nothing else.
    """
    tick = Tick(state, observation, cluster, now_ms)
    if state.announce:
        tick.say("*", "rebuilt", state.announce)
    notice_broken(tick)
    move_waves(tick)
    for service in sorted(cluster.services, key=lambda s: (-s.priority, s.model)):
        notice_silence(tick, service)
        watch_steadiness(tick, service)
        if not scale_out(tick, service):
            shrink(tick, service)
    for answer in observation.refinements:
        refine(tick, answer)
    asked: list[ScaleOutTablesRequested | RefinementRequested] = []
    asked += _ask_for_tables(tick)
    asked += request_refinement(tick)
    new_state, published = publish(tick)
    for effect in asked:
        if isinstance(effect, ScaleOutTablesRequested):
            new_state = replace(new_state, tables_asked_ms=now_ms)
        else:
            new_state = replace(
                new_state, refinement_request=effect.request, refinement_asked_ms=now_ms
            )
    return new_state, (*published, *asked)


def _ask_for_tables(tick: Tick) -> list[ScaleOutTablesRequested]:
    """Ask for tables that are missing, or are for a lengths the workload has left."""
    missing = False
    for service in tick.cluster.services:
        remembered = tick.models[service.model]
        lengths = estimate(remembered.lengths, service.lengths, tick.demand(service.model))
        settled = tick.now_ms - remembered.lengths_ms >= BUCKET_LEAST_MS
        if lengths != remembered.lengths and settled:
            tick.update(service.model, lengths=lengths, lengths_ms=tick.now_ms)
            missing = True
    wanted = []
    for service in tick.cluster.services:
        lengths = tick.models[service.model].lengths
        table = tick.tables.get(service.model)
        if table is None or table.lengths != lengths:
            wanted.append((service.model, lengths))
    asked_ms = tick.state.tables_asked_ms
    due = missing or not asked_ms or tick.now_ms - asked_ms >= TABLES_AGAIN_MS
    return [ScaleOutTablesRequested(tuple(wanted))] if wanted and due else []
