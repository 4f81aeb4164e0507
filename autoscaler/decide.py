"""One tick of the controller: (state, observation) -> (new state, effects).

`decide` lists the steps of a tick in their order. It is pure: equal inputs give equal effects, byte
for byte. The caller (`streams`, or a simulation) calls it once per domain second and whenever a
planner answer arrives, and executes the effects.

The rules in `replan` decide when to plan, the rules in `sizing` for how much demand. The planner
chooses the instances. `rollout` changes the fleet step by step to the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.planning.time_limits import drain_warnings
from autoscaler.state.controller_state import ControllerState, ModelState, Observation
from autoscaler.state.decision_record import notice
from autoscaler.state.effects import Effect, SolveRequested
from autoscaler.state.operator_controls import active_controls, retained_notices
from autoscaler.state.operator_controls import control_notices as guards_said
from autoscaler.tick.apply_plans import apply_plans
from autoscaler.tick.observe import observe
from autoscaler.tick.publish import FrozenRoutes, publish
from autoscaler.tick.request_plans import request_plans
from autoscaler.tick.restore import restore
from autoscaler.tick.size import size

__all__ = ["ControllerState", "Effect", "ModelState", "Observation", "decide", "restore"]


def decide(
    state: ControllerState, observation: Observation, cluster: Cluster, now_ms: int
) -> tuple[ControllerState, tuple[Effect, ...]]:
    """One tick. `now_ms` is domain time and never decreases; `cluster` is the present declaration.

    For models in mode recommend, the only effects are decisions with `applied` False. Models in
    mode approve get proposals; approved proposals are applied.
    """
    announced = (
        [] if state.announce is None else [notice("*", state.announce, now_ms, kind="rebuilt")]
    )
    # Pauses, freezes, scheduled floors and the reader's lag restrict this tick.
    guarded = active_controls(cluster, observation.controls, now_ms, observation.lag_ms)
    found = observe(state, observation, guarded, now_ms)
    wanted = size(found)
    done = apply_plans(found, wanted)
    asked = request_plans(found, done)

    ground = done.ground
    held = {
        **guarded.reasons,
        **retained_notices(found.inputs.retained_models, guarded),
        **_drains_too_short(guarded.cluster, ground.models),
    }
    after = replace(
        state,
        groups=ground.groups,
        models={model: view.state for model, view in ground.views.items()},
        combos=ground.combos,
        evaluated_at=found.evaluated_at,
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
        active_controls=held,
        unassigned=found.unassigned,
        splits=done.splits,
        ticked_ms=now_ms,
        listens_since_ms=found.listens_since_ms,
    )
    decisions = (
        *announced,
        *guards_said(state.active_controls, held, now_ms),
        *found.decisions,
        *wanted.decisions,
        *done.decisions,
        *asked.decisions,
    )
    stands = FrozenRoutes(guarded.advised, found.inputs.retained_models)
    new_state, published = publish(
        state, after, ground.sight, ground.cluster, decisions, now_ms, stands
    )
    return new_state, (*published, *(SolveRequested(one.request) for one in asked.requests))


def _drains_too_short(cluster: Cluster, models: Mapping[str, ModelState]) -> dict[str, Reason]:
    if cluster.policy.drain_timeout_s <= 0.0:
        return {}
    acting = {service.model: service for service in cluster.services if service.managed}
    return drain_warnings(acting, cluster.policy, {m: state.lengths for m, state in models.items()})
