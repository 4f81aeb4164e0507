"""Guard of scale-in: models of which a plan may remove nothing, and the reason why a change may
remove nothing of a model at this moment. The reason is checked when a removal begins, for planner
answers and approved proposals alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autoscaler.domain.cluster import Mode
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.estimate.change_point import sizing_rate
from autoscaler.sizing.scale_in.conditions import (
    EXCHANGE,
    NO_LOSS,
    REALLOCATION,
    REMOVAL,
    failed_condition,
)
from autoscaler.state.model_view import RATE_EPSILON, ModelView
from topics.reason_codes import ReasonCode

_EXCHANGE = 0.1  # a net change below this share of the capacity counts as an exchange
NOT_COVERED = Reason(ReasonCode.NOT_COVERED)  # since the plan, demand rose or capacity was derated


def scale_in_veto(
    view: ModelView,
    adds: Counter[str],
    removes: Counter[str],
    short: float,
    combos: Mapping[str, Combo],
) -> Reason | None:
    """The reason why nothing of the model may be removed now; None if the removal is allowed."""
    frozen = failed_condition(view, NO_LOSS)
    if frozen is not None:
        return frozen
    # Use the real fleet, because the view counts an open proposal as applied.
    proposal = view.state.advisory.proposal
    waiting = dict(proposal.change) if proposal is not None and not proposal.rejected else {}
    raw = view.raw_req_per_s - raw_req_per_s_of(waiting, combos)
    change = raw_req_per_s_of(adds, combos) - raw_req_per_s_of(removes, combos)
    # Even an increase within the planned capacity may need the capacity that would be removed.
    target = view.state.target
    kept = max(target.needed_req_per_s, min(target.req_per_s, view.planned_req_per_s))
    present = max(kept, sizing_rate(view.demand, view.policy).req_per_s)
    if short <= RATE_EPSILON and raw + change < view.raw_for(present) * (1 - RATE_EPSILON):
        return NOT_COVERED
    if change >= -RATE_EPSILON:
        return None  # the capacity does not shrink, so this is no removal
    if view.policy.spends_budget:
        return failed_condition(view, REALLOCATION)
    return failed_condition(view, EXCHANGE if adds and is_exchange(change, view) else REMOVAL)


def fixed_models(views: Iterable[ModelView]) -> tuple[str, ...]:
    """Models from which nothing may be removed, so that an urgent answer only adds to them."""
    fixed = (v for v in views if v.frozen is not None or v.service.mode is not Mode.ACT)
    return tuple(view.service.model for view in fixed)


def models_that_may_not_shrink(views: Sequence[ModelView]) -> tuple[str, ...]:
    """Models whose capacity may not shrink now by a full plan for the models of `views`. While the
    models share a budget, or one of them is short, capacity may move from one to another."""
    if any(view.policy.spends_budget or not view.covers for view in views):
        return ()
    return tuple(view.service.model for view in views if failed_condition(view, REMOVAL))


def raw_req_per_s_of(counts: Mapping[str, int], combos: Mapping[str, Combo]) -> float:
    """Raw capacity of the combos in `counts`, in requests/s."""
    return sum(combos[i].req_per_s * count for i, count in counts.items() if i in combos)


def is_exchange(net_req_per_s: float, view: ModelView) -> bool:
    """Whether additions and removals leave the capacity about equal."""
    return abs(net_req_per_s) / max(view.raw_req_per_s, RATE_EPSILON) <= _EXCHANGE
