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
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.planning.time_limits import drain_warnings
from autoscaler.state.controller_state import (
    ControllerState,
    Declared,
    Evaluated,
    Observation,
    ObservedFleet,
)
from autoscaler.state.decision_record import notice
from autoscaler.state.effects import Effect, SolveRequested
from autoscaler.state.model_state import ModelState
from autoscaler.state.operator_controls import active_controls, control_notices, retained_notices
from autoscaler.tick.apply_plans import apply_plans
from autoscaler.tick.observe import observe
from autoscaler.tick.publish import FrozenRoutes, publish
from autoscaler.tick.record_ledger import record_ledger
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
    TICK_CACHES.next_period()
    announce = state.term.announce
    announced = [] if announce is None else [notice("*", announce, now_ms, kind="rebuilt")]
    # Pauses, freezes, scheduled floors and the reader's lag restrict this tick.
    guarded = active_controls(cluster, observation.controls, now_ms, observation.lag_ms)
    observed = observe(state, observation, guarded, now_ms)
    sized = size(observed)
    applied = apply_plans(sized.fleet)
    requested = request_plans(observed, applied)

    fleet, inputs = applied.fleet, observed.inputs
    restrictions = {
        **guarded.reasons,
        **retained_notices(inputs.retained_models, guarded),
        **_drains_too_short(guarded.cluster, fleet.models),
    }
    after = replace(
        state,
        evaluated=Evaluated(fleet.combos, inputs.evaluated_at),
        declared=Declared(
            {service.model: service for service in guarded.cluster.services}, restrictions
        ),
        observed=ObservedFleet(
            fleet.sight.silent, fleet.sight.lost, observed.unassigned, inputs.backoff
        ),
        numbers=replace(state.numbers, group=applied.next_serial, request=requested.number),
        term=replace(
            state.term,
            announce=None,
            ticked_ms=now_ms,
            listens_since_ms=observed.listens_since_ms,
            begun=True,
        ),
        groups=fleet.groups,
        models={model: view.state for model, view in fleet.views.items()},
        supply=inputs.supply,
        pending={**applied.pending, **{one.request.urgency: one for one in requested.requests}},
        full=requested.full,
        splits=applied.splits,
    )
    decisions = (
        *announced,
        *control_notices(state.declared.controls, restrictions, now_ms),
        *observed.decisions,
        *sized.decisions,
        *applied.decisions,
        *requested.decisions,
    )
    frozen_routes = FrozenRoutes(guarded.advised, inputs.retained_models)
    new_state, published = publish(
        state,
        after,
        fleet.sight,
        fleet.cluster,
        decisions,
        now_ms,
        frozen_routes,
        observation.statuses,
    )
    return new_state, (
        *published,
        *record_ledger(state, new_state, cluster, now_ms),
        *(SolveRequested(one.request) for one in requested.requests),
    )


def _drains_too_short(cluster: Cluster, models: Mapping[str, ModelState]) -> dict[str, Reason]:
    if cluster.policy.drain_timeout_s <= 0.0:
        return {}
    acting = {service.model: service for service in cluster.services if service.managed}
    return drain_warnings(
        acting, cluster.policy, {m: state.estimate.lengths for m, state in models.items()}
    )
