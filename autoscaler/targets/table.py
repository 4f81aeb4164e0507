"""All target rules, listed once, and how their proposals become a model's target.

The highest proposal raises the target at once; only where none does, lasting evidence lowers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoscaler.demand.windows import Stats
from autoscaler.state import ModelState
from autoscaler.targets import backlog, burst, declared, excess, slo, surge, wake
from autoscaler.targets.view import ModelView, Proposal

Rule = Callable[[ModelView], Proposal | None]

RAISING: tuple[Rule, ...] = (
    declared.propose,
    wake.propose,
    surge.propose,
    burst.propose,
    backlog.propose,
)
LOWERING: tuple[Rule, ...] = (excess.propose,)


def retarget(view: ModelView) -> ModelState:
    """The model's state with the target, and the derating, that its view speaks for."""
    state = slo.derated(view)
    view = replace(view, state=state)
    state = _informed(view)
    proposals = [proposal for rule in RAISING if (proposal := rule(view)) is not None]
    raised = max(proposals, key=_size(view), default=None)
    planned = view.planned_req_per_s
    if raised is not None:
        rate = raised.req_per_s if raised.evident else min(raised.req_per_s, planned)
        if rate > state.target_req_per_s:
            over_ms = state.over_since_ms
            if rate > planned:
                over_ms = over_ms or raised.since_ms or view.now_ms
            why = raised.why or state.target_why
            return replace(
                state, target_req_per_s=rate, target_why=why, over_since_ms=over_ms, informed=True
            ) if raised.rule != "declared" else replace(
                state, target_req_per_s=rate, target_why=why
            )
        if raised.evident and raised.rule != "declared":
            return state  # still asked for: nothing lowers it meanwhile
    lowered = [proposal for rule in LOWERING if (proposal := rule(view)) is not None]
    if lowered:
        lowest = max(lowered, key=lambda proposal: proposal.req_per_s)
        return replace(
            state,
            target_req_per_s=lowest.req_per_s,
            target_why=lowest.why,
            over_since_ms=0,
            informed=True,
        )
    if state.over_since_ms and state.target_req_per_s <= planned:
        return replace(state, over_since_ms=0)
    return state


def _size(view: ModelView) -> Callable[[Proposal], float]:
    planned = view.planned_req_per_s
    return lambda p: p.req_per_s if p.evident else min(p.req_per_s, planned)


def _informed(view: ModelView) -> ModelState:
    """From a full local window with arrivals on, the declared rate is only a memory."""
    state, seen = view.state, view.demand.local
    enough = isinstance(seen, Stats) and seen.covered_s >= 0.9 * view.policy.local_window_s
    if state.informed or not enough or not view.settled:
        return state
    return replace(state, informed=True)
