"""Deciding is a fold: (state, observation) -> (state, effects). The heart of the controller.

Owns the order of a tick, readable as a table of contents. Pure: no I/O, no clock, no randomness;
the same inputs give the same effects byte for byte. The edge calls it once per domain second, and
whenever an answer of the planner arrives, and carries the effects out.

The rules say when to plan (`triggers`) and for how much (`targets`); what runs is always the
planner's choice; how the fleet gets there is for `transitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.planning.time_limits import short_drains
from autoscaler.state.controller_state import ControllerState, ModelState, Observation
from autoscaler.state.decision_record import hold
from autoscaler.state.effects import Effect, SolveRequested
from autoscaler.state.operator_controls import guards, left_alone
from autoscaler.state.operator_controls import said as guards_said
from autoscaler.tick.apply_plans import carry
from autoscaler.tick.observe import look
from autoscaler.tick.publish import Stands, publish
from autoscaler.tick.request_plans import ask
from autoscaler.tick.restore import rebuild
from autoscaler.tick.size import want

__all__ = ["ControllerState", "Effect", "ModelState", "Observation", "decide", "rebuild"]


def decide(
    state: ControllerState, observation: Observation, cluster: Cluster, now_ms: int
) -> tuple[ControllerState, tuple[Effect, ...]]:
    """One tick. `now_ms` is domain time and never falls; `cluster` is as declared now.

    Models in mode recommend get decisions with `applied` False and nothing else; those in mode
    approve get proposals, and what was approved of them.
    """
    announced = (
        [] if state.announce is None else [hold("*", state.announce, now_ms, kind="rebuilt")]
    )
    # What operators, schedules and this controller's own lag allow.
    guarded = guards(cluster, observation.controls, now_ms, observation.lag_ms)
    found = look(state, observation, guarded, now_ms)
    wanted = want(found)
    done = carry(found, wanted)
    asked = ask(found, done)

    ground = done.ground
    held = {
        **guarded.held,
        **left_alone(found.inputs.left_alone, guarded),
        **_drains_too_short(guarded.cluster, ground.models),
    }
    after = replace(
        state,
        groups=ground.groups,
        models={model: view.state for model, view in ground.views.items()},
        combos=ground.combos,
        valued=found.worth,
        services={service.model: service for service in guarded.cluster.services},
        supply=found.supply,
        backoff=ground.backoff,
        silent_nodes=ground.sight.silent,
        lost_nodes=ground.sight.lost,
        pending={**done.pending, **{one.request.urgency: one for one in asked.requests}},
        full=asked.full,
        next_serial=done.next_serial,
        request_number=asked.number,
        announce=None,
        held=held,
        strays=found.strays,
        splits=done.splits,
        ticked_ms=now_ms,
        listens_since_ms=found.listens_since_ms,
    )
    decisions = (
        *announced,
        *guards_said(state.held, held, now_ms),
        *found.decisions,
        *wanted.decisions,
        *done.decisions,
        *asked.decisions,
    )
    stands = Stands(guarded.advised, found.inputs.left_alone)
    new_state, published = publish(
        state, after, ground.sight, ground.cluster, decisions, now_ms, stands
    )
    return new_state, (*published, *(SolveRequested(one.request) for one in asked.requests))


def _drains_too_short(cluster: Cluster, models: Mapping[str, ModelState]) -> dict[str, Reason]:
    if cluster.policy.drain_timeout_s <= 0.0:
        return {}
    acting = {service.model: service for service in cluster.services if service.managed}
    return short_drains(acting, cluster.policy, {m: state.lengths for m, state in models.items()})
