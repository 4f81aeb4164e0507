"""How much is wanted of each model; and what is under way moves on towards it.

Owns the order in which states, views and targets follow from each other. Knows no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.model.prediction_drift import said as uncertain_said
from autoscaler.model.unmanaged_servers import said as unmanaged_said
from autoscaler.model.update import known, seen_again, silences, views, with_states
from autoscaler.rollout.fleet_snapshot import Sight
from autoscaler.rollout.serving_group import Group
from autoscaler.sizing.rules import retarget
from autoscaler.state.controller_state import ModelState
from autoscaler.state.model_view import ModelView
from autoscaler.tick.advance_rollout import revive, waves, withdraw
from autoscaler.tick.observe import Found
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class Wanted:
    """Every model with its target, and the fleet after what was under way has moved on."""

    groups: tuple[Group, ...]
    models: Mapping[str, ModelState]
    views: Mapping[str, ModelView]
    sight: Sight
    decisions: tuple[Decision, ...]


def want(found: Found) -> Wanted:
    """Targets of all models, and the next step of what is under way."""
    inputs, sight = found.inputs, found.sight
    now_ms, before = inputs.now_ms, inputs.state.models
    models = known(inputs, found.faults, sight)
    decisions = [
        *unmanaged_said(before, models, found.cluster, now_ms),
        *uncertain_said(before, models, now_ms),
    ]
    groups = withdraw(found.faults.groups, inputs)
    seen = views(inputs, groups, models, sight)
    seen = with_states(seen, {model: retarget(view) for model, view in seen.items()})
    models, said = silences(seen)
    decisions += said
    seen = with_states(seen, models)

    moved = waves(revive(groups, seen, sight, now_ms), seen, sight, inputs)
    sight = sight.with_undone(groups, moved)
    seen = seen_again(seen, inputs, groups, moved, models, sight)
    return Wanted(moved, models, seen, sight, tuple(decisions))
