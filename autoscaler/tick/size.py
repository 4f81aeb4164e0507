"""Size every model, and advance its rollout by one step."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.model.tick_fleet import TickFleet, tick_fleet
from autoscaler.model.unmanaged_servers import unmanaged_notices as unmanaged_said
from autoscaler.model.update import data_notices, update_models
from autoscaler.sizing.prediction_drift import drift_notices as uncertain_said
from autoscaler.sizing.rules import update_target
from autoscaler.tick.advance_rollout import advance_waves, keep_needed, retire_undeclared
from autoscaler.tick.observe import ObservedTick
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class SizedTick:
    """All models with their targets, and the fleet after one step of every rollout."""

    fleet: TickFleet
    decisions: tuple[Decision, ...]


def size(observed: ObservedTick) -> SizedTick:
    """Update all models, set their targets, and advance their rollouts by one step."""
    inputs, sight = observed.inputs, observed.sight
    now_ms, before = inputs.now_ms, inputs.state.models
    models, rooms_said = update_models(inputs, observed.faults, sight)
    decisions = [
        *unmanaged_said(before, models, inputs.declared, now_ms),
        *uncertain_said(before, models, now_ms),
        *rooms_said,
    ]
    fleet = tick_fleet(inputs, retire_undeclared(observed.faults.groups, inputs), models, sight)
    sized = {model: update_target(view) for model, view in fleet.views.items()}
    models, said = data_notices(fleet.views, sized)
    decisions += said
    fleet = fleet.with_states(models)

    moved = advance_waves(keep_needed(fleet), fleet)
    fleet = fleet.changed(moved, models, sight.with_undone(fleet.groups, moved))
    return SizedTick(fleet, tuple(decisions))
