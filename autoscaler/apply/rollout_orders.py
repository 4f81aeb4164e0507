"""Commands of operators about rollouts: pause, resume, back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.state.rollout_state import RolloutState
from topics.controls import ALL_MODELS, ROLLOUT_BACK, ROLLOUT_PAUSE, Control
from topics.reason_codes import ReasonCode


def is_paused(model: str, fleet: TickFleet) -> Reason | None:
    """The reason why the rollout of `model` is paused; None if it is not."""
    for control in _commands(ROLLOUT_PAUSE, model, fleet):
        lasts = not control.until_ms or fleet.now_ms < control.until_ms
        if control.active and lasts:
            return Reason(ReasonCode.PAUSED, model, (control.who,), quoted=control.why)
    return None


def ordered_back(state: RolloutState, model: str, fleet: TickFleet) -> Reason | None:
    """The reason to take back the present rollout, if an operator ordered it since its begin."""
    if not state.target:
        return None
    for control in _commands(ROLLOUT_BACK, model, fleet):
        if control.active and control.at_ms >= state.began_ms:
            return Reason(ReasonCode.ORDERED_BACK, model, (control.who,), quoted=control.why)
    return None


def ordered_again(state: RolloutState, model: str, fleet: TickFleet) -> RolloutState:
    """`state` without a refused version if an operator resumed the rollout since then."""
    if not state.refused:
        return state
    for control in _commands(ROLLOUT_PAUSE, model, fleet):
        if not control.active and control.at_ms > state.refused_ms:
            return replace(state, refused="", refused_ms=0, why=None, target="")
    return state


def _commands(kind: str, model: str, fleet: TickFleet) -> Iterator[Control]:
    controls = fleet.inputs.observation.controls
    for scope in (model, ALL_MODELS):
        control = controls.get(f"{kind}/{scope}")
        if control is not None:
            yield control
