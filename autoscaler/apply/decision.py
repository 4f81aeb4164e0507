"""The decision about a change of one model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.domain.reason import Reason, codes_of
from autoscaler.explain.reason_texts import joined
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.state.model_state import ModelState
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


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
    If it changes something, the first reason that is no approval is the cause. Its number and
    leader follow when it is published."""
    why = tuple(why)
    plans = (one for one in why if one.code is ReasonCode.REPLANNED)
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
        cause=cause_code(why) if kind != "infeasible" else "",
        triggers=codes_of(trigger for one in plans for trigger in one.because),
    )


def with_reasons(decision: Decision, why: tuple[Reason, ...]) -> Decision:
    """`decision` with the sentence and codes of `why`."""
    return replace(decision, reason=joined(why), codes=codes_of(why))


def cause_code(why: Iterable[Reason]) -> str:
    """The code of the cause among the reasons `why` of a change; the limit if one requires it."""
    cause = next((one for one in why if one.code is not ReasonCode.PROPOSAL_APPROVED), None)
    if cause is not None and cause.code is ReasonCode.REQUIRED:
        cause = next(iter(cause.because), cause)
    return cause.code if cause is not None else ""
