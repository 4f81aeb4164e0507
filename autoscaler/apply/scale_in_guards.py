"""Guards of scale-in: reasons why nothing of a model may be removed at this moment.

The guards are checked when a removal begins, for planner answers and approved proposals alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from autoscaler.domain.cluster import Mode
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.estimate.scale_in_evidence import is_stale, scale_in_paused, slo_pressure
from autoscaler.estimate.windows import Stats
from autoscaler.model.prediction_drift import drift_veto
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.reversal_limit import scale_in_within_limit
from autoscaler.sizing.scale_in import stale_evidence
from autoscaler.sizing.sizing_rate import sizing_rate
from autoscaler.state.model_view import RATE_EPSILON, ModelView
from topics.reason_codes import ReasonCode

_EXCHANGE = 0.1  # a net change below this share of the capacity counts as an exchange
NOT_COVERED = Reason(ReasonCode.NOT_COVERED)  # since the plan, demand rose or capacity was derated


def scale_in_veto(
    view: ModelView, adds: Counter[str], removes: Counter[str], short: float, fleet: TickFleet
) -> Reason | None:
    """The reason why nothing of the model may be removed now; None if the removal is allowed."""
    if view.frozen is not None:
        return scale_in_paused(view.frozen)
    # Use the real fleet, because the view counts an open proposal as applied.
    proposal = view.state.advisory.proposal
    waiting = dict(proposal.change) if proposal is not None and not proposal.rejected else {}
    raw = view.raw_req_per_s - raw_req_per_s_of(waiting, fleet.combos)
    change = raw_req_per_s_of(adds, fleet.combos) - raw_req_per_s_of(removes, fleet.combos)
    # Even an increase within the planned capacity may need the capacity that would be removed.
    present = max(view.state.target.req_per_s, sizing_rate(view.demand, view.policy).req_per_s)
    if short <= RATE_EPSILON and raw + change < view.raw_for(present) * (1 - RATE_EPSILON):
        return NOT_COVERED
    if change >= -RATE_EPSILON:
        return None  # the capacity does not shrink, so this is no removal
    if view.policy.spends_budget:
        # The capacity goes to another model, so fresh data is enough and no excess must be proven.
        return (
            scale_in_paused(Reason(ReasonCode.TELEMETRY_STALE)) if is_stale(view.demand) else None
        )
    # An exchange is no reversal, but needs the evidence of a removal.
    exchange = adds and is_exchange(change, view)
    return (None if exchange else reversal_veto(view, fleet.now_ms)) or insufficient_evidence(
        view, fleet.now_ms
    )


def scale_in_allowed(view: ModelView, now_ms: int) -> bool:
    """Whether the model's capacity may shrink now. If not, an exchange is still allowed."""
    return not (view.frozen or reversal_veto(view, now_ms) or insufficient_evidence(view, now_ms))


def reversal_veto(view: ModelView, now_ms: int) -> Reason | None:
    """The reason why a removal is not allowed: it is too soon after the last addition, or exceeds
    the limit of reversals. None if it is allowed."""
    since_s = (now_ms - view.state.hysteresis.last_out_ms) / 1000
    if view.state.hysteresis.last_out_ms and since_s < view.service.cooldown_s:
        return scale_in_paused(Reason(ReasonCode.COOLDOWN, quantities=(since_s,)))
    if not scale_in_within_limit(
        view.state.hysteresis.reversals, now_ms, view.policy.reversals_per_h
    ):
        return scale_in_paused(Reason(ReasonCode.TOO_MANY_REVERSALS))
    return None


def insufficient_evidence(view: ModelView, now_ms: int) -> Reason | None:
    """The reason why the data does not prove that less capacity is enough; None if it does."""
    why = stale_evidence(view) or slo_pressure(view.demand, view.service)
    if why is not None:
        return scale_in_paused(why)
    if view.service.mode is not Mode.ACT:
        return None
    seen = view.demand.local
    load = seen.req_per_s if isinstance(seen, Stats) else 0.0
    bars = drift_veto(view.state, now_ms, load, view.planned_req_per_s)
    return scale_in_paused(*bars) if bars else None


def raw_req_per_s_of(counts: Mapping[str, int], combos: Mapping[str, Combo]) -> float:
    """Raw capacity of the combos in `counts`, in requests/s."""
    return sum(combos[i].req_per_s * count for i, count in counts.items() if i in combos)


def is_exchange(net_req_per_s: float, view: ModelView) -> bool:
    """Whether additions and removals leave the capacity about equal."""
    return abs(net_req_per_s) / max(view.raw_req_per_s, RATE_EPSILON) <= _EXCHANGE
