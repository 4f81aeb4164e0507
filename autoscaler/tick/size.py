"""Size every model, and advance its rollout by one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.model.prediction_drift import drift_notices as uncertain_said
from autoscaler.model.unmanaged_servers import unmanaged_notices as unmanaged_said
from autoscaler.model.update import data_notices, refresh_views, update_models, views, with_states
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.sizing.rules import update_target
from autoscaler.state.controller_state import ModelState
from autoscaler.state.model_view import ModelView
from autoscaler.tick.advance_rollout import advance_waves, keep_needed, retire_undeclared
from autoscaler.tick.observe import ObservedTick
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class SizedTick:
    """All models with their targets, and the fleet after one step of every rollout."""

    groups: tuple[ServingGroup, ...]
    models: Mapping[str, ModelState]
    views: Mapping[str, ModelView]
    sight: FleetSnapshot
    decisions: tuple[Decision, ...]


def size(observed: ObservedTick) -> SizedTick:
    """Update all models, set their targets, and advance their rollouts by one step."""
    inputs, sight = observed.inputs, observed.sight
    now_ms, before = inputs.now_ms, inputs.state.models
    models = update_models(inputs, observed.faults, sight)
    decisions = [
        *unmanaged_said(before, models, observed.cluster, now_ms),
        *uncertain_said(before, models, now_ms),
    ]
    groups = retire_undeclared(observed.faults.groups, inputs)
    current_views = views(inputs, groups, models, sight)
    current_views = with_states(
        current_views, {model: update_target(view) for model, view in current_views.items()}
    )
    models, said = data_notices(current_views)
    decisions += said
    current_views = with_states(current_views, models)

    moved = advance_waves(
        keep_needed(groups, current_views, sight, now_ms), current_views, sight, inputs
    )
    sight = sight.with_undone(groups, moved)
    current_views = refresh_views(current_views, inputs, groups, moved, models, sight)
    return SizedTick(moved, models, current_views, sight, tuple(decisions))
