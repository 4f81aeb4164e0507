"""The decision about a change of one model."""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.reason import Reason, codes_of
from autoscaler.explain.reason_texts import joined
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.state.model_state import ModelState
from topics.decisions import Decision


def decision_about(
    fleet: TickFleet,
    model: str,
    kind: str,
    why: Iterable[Reason],
    state: ModelState,
    applied: bool,
    usd_per_h: float = 0.0,
    over_since_ms: int = 0,
    change: tuple[tuple[str, int], ...] = (),
) -> Decision:
    """A decision about `model` for the reasons `why`, with the model's target and present capacity.
    Its number and leader follow when it is published."""
    why = tuple(why)
    return Decision(
        number=0,
        leader_token=0,
        model=model,
        kind=kind,
        at_ms=fleet.now_ms,
        applied=applied,
        reason=joined(why),
        codes=codes_of(why),
        demand_req_per_s=round(state.target.req_per_s, 4),
        capacity_req_per_s=round(fleet.views[model].raw_req_per_s, 4),
        cost_delta_usd_per_h=round(usd_per_h, 4),
        over_since_ms=over_since_ms,
        change=change,
    )
