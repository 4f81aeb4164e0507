"""The kind, cause and reasons of a change that a planner answer makes, when it is applied.

The planner names the cause of the planned change. This module compares it with the applied part,
its cost and the present state of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.apply.model_change import AppliedChange
from autoscaler.apply.requested_answer import RequestedAnswer
from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.sizing.prediction_drift import expected_s
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

_CENT = 0.005
"""Half a cent per hour in USD/h, because costs are shown in cents."""
_EVIDENCE = frozenset(
    {
        ReasonCode.DECLARED,
        ReasonCode.BURST,
        ReasonCode.BACKLOG,
        ReasonCode.ROUTED,
        ReasonCode.FORECAST,
        ReasonCode.RISING,
        ReasonCode.OVERESTIMATED,
        ReasonCode.SLOW_ENGINES,
        ReasonCode.EXTENSION,
    }
)
"""Evidence for a demand above the capacity that is stated as it is."""
_LOWER = (ReasonCode.LOWER_DEMAND, ReasonCode.WORTH_ITS_RENT, ReasonCode.IDLE)
"""Evidence for a demand below the capacity."""
Counts = Iterable[tuple[str, int]]


def decision_kind(asked: RequestedAnswer, state: ModelState, done: AppliedChange) -> str:
    """The kind of the decision. An urgent change counts as an addition, even if other combos become
    superfluous."""
    outward = bool(done.started or done.switched) and not asked.is_full
    kind = "scale_out" if outward else done.kind
    return "replace" if kind == "scale_out" and state.capacity.lost_ms else kind


def change_reasons(
    asked: RequestedAnswer,
    state: ModelState,
    fleet: TickFleet,
    service: Service,
    done: AppliedChange,
) -> tuple[Reason, ...]:
    """The cause of the change, its cost, when and how it takes effect, and the plan's trigger."""
    view, usd = fleet.views[service.model], done.delta_usd_per_h
    cause = change_cause(asked, view, done.change, usd, fleet.cluster, fleet.combos)
    parts = [cause, Reason(ReasonCode.COST, quantities=(usd,))]
    if done.started:
        slowest_s = max(fleet.combos[g.combo_id].start_s for g in done.started)
        parts.append(Reason(ReasonCode.SERVING_IN, quantities=(expected_s(state, slowest_s),)))
    if done.switched:
        parts.append(Reason(ReasonCode.ROLE_SWITCHES, quantities=(len(done.switched),)))
    if asked.is_full and asked.answer.gap >= 0.0:
        parts.append(Reason(ReasonCode.PLAN_GAP, quantities=(asked.answer.gap,)))
    return (*parts, *asked.trigger)


def change_cause(
    asked: RequestedAnswer,
    view: ModelView,
    change: Counts,
    usd_per_h: float,
    cluster: Cluster,
    combos: Mapping[str, Combo],
) -> Reason:
    """The cause of `change`: combos added (+) and removed (-). view: the model before the change.
    usd_per_h: change of the bill. cluster: with present prices."""
    change = tuple(change)
    planned = asked.cause(view.service.model)
    adds = any(count > 0 for _, count in change)
    cause = _evident(planned, view, adds)
    if cause.code is not ReasonCode.CHEAPER:
        return cause
    if usd_per_h > _CENT:
        return replace(cause, code=ReasonCode.PLAN_SAVES)
    prices = (why for why in asked.pending.reasons if why.code is ReasonCode.PRICE)
    return next((why for why in prices if _decides(why, change, cluster, combos)), cause)


def _evident(planned: Reason | None, view: ModelView, adds: bool) -> Reason:
    """The cause according to the model's state, if its demand, floor or surplus is the cause."""
    state, model, why = view.state, view.service.model, view.state.target.why
    code = planned.code if planned is not None else None
    if not adds and code in (None, ReasonCode.EXCESS, ReasonCode.CHEAPER):
        is_lower = why is not None and why.code in _LOWER
        return why if why is not None and is_lower else Reason(ReasonCode.EXCESS, model)
    if planned is not None and code not in (ReasonCode.SURGE, ReasonCode.FLOOR):
        return planned
    if state.capacity.lost_ms:
        return Reason(ReasonCode.CAPACITY_LOST, model, state.capacity.lost_nodes)
    if code is ReasonCode.FLOOR or (planned is None and view.groups < view.service.min_instances):
        return Reason(ReasonCode.FLOOR, model, quantities=(view.service.min_instances,))
    return _demand_cause(planned, view)


def _demand_cause(planned: Reason | None, view: ModelView) -> Reason:
    """The evidence for a demand above the capacity; otherwise both figures. planned: demand, its
    utilization, raw capacity and number of instances for which the plan was made."""
    state, model, why = view.state, view.service.model, view.state.target.why
    derate, utilization = state.capacity.derate, view.service.utilization
    demand, raw = view.required_req_per_s, view.raw_req_per_s * derate
    count = float(view.groups)
    if planned is not None:
        demand, utilization, raw, count = planned.quantities
        demand, raw = demand * derate, raw * derate
    if why is not None and why.code in (_EVIDENCE if count else {*_EVIDENCE, ReasonCode.WAKE}):
        return why
    because = why.because if why is not None else ()
    figures = demand, utilization, raw, count
    return Reason(ReasonCode.SURGE, model, quantities=figures, because=because)


def _decides(why: Reason, change: Counts, cluster: Cluster, combos: Mapping[str, Combo]) -> bool:
    """Whether the change saves money at the present prices, and would not at the former price of
    the trigger `why`."""
    now, before = why.quantities
    prices = cluster.prices_usd_per_h()
    usd = nodes = 0.0
    for combo_id, count in change:
        if combo_id not in combos:
            continue
        for pool, gpus in combos[combo_id].gpus_by_pool().items():
            share = count * gpus / cluster.pool(pool).per_node
            usd += share * prices.get(pool, 0.0)
            nodes += share if pool == why.subject else 0.0
    return nodes != 0.0 and usd < 0.0 <= usd + nodes * (before - now) + 1e-9
