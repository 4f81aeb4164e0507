"""Decisions of kind `infeasible`: demand, SLOs and constraints that no plan can meet.

The state remembers each case, so that it is not planned again at once and not reported too
often.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.apply.decision import decision_about
from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason, about
from autoscaler.estimate.slo_evidence import is_kept
from autoscaler.estimate.window_stats import Stats
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.planner_messages import PlanAnswer
from autoscaler.state.decision_record import NOTICE_INTERVAL_MS
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import RATE_EPSILON
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

ASK_AGAIN_MS = 30_000
"""Time in ms after which demand that could not be served is requested again."""
# time between two reports; with the default period, every second full plan repeats the report
_PROMISE_AGAIN_MS = 540_000


def unmet_demand(
    answer: PlanAnswer,
    short: float,
    sought: float,
    runs: int,
    state: ModelState,
    service: Service,
    fleet: TickFleet,
) -> tuple[list[Decision], ModelState]:
    """Store in the state that no more capacity is available, and report it periodically. short,
    sought: unserved and requested demand in requests/s; both include the derating, which is removed
    here. runs: number of planned combos now. If the target has risen since the request, the
    difference is requested at once.
    """
    now_ms = fleet.now_ms
    short, sought = short * state.capacity.derate, sought * state.capacity.derate
    served = short <= RATE_EPSILON
    known = replace(
        state.infeasibility,
        attempted_req_per_s=sought,
        retry_at_ms=now_ms + ASK_AGAIN_MS,
        has_unserved=not served,
    )
    state = replace(state, infeasibility=known)
    if served and runs >= service.min_instances:
        return [], state
    noticed_ms = known.shortage_noticed_ms
    if noticed_ms and now_ms - noticed_ms < NOTICE_INTERVAL_MS:
        return [], state
    model = service.model
    bound = (why for why in answer.binding if _concerns(why.subject, service, fleet))
    limits = (*about(answer.notes, model), *bound) or (Reason(ReasonCode.NOTHING_MORE, model),)
    state = replace(state, infeasibility=replace(known, shortage_noticed_ms=now_ms))
    code, figures = ReasonCode.UNSERVED, (short, sought)
    if served:
        code, figures = ReasonCode.FLOOR_UNMET, (float(service.min_instances), float(runs))
    why = Reason(code, model, quantities=figures, because=limits)
    over_ms = state.target.overload_since_ms
    decision = decision_about(
        fleet, model, "infeasible", [why], state, applied=False, over_since_ms=over_ms
    )
    return [decision], state


def slo_unattainable(
    answer: PlanAnswer,
    target: Iterable[str],
    state: ModelState,
    service: Service,
    fleet: TickFleet,
) -> tuple[list[Decision], ModelState]:
    """Report periodically that no available GPU meets the SLO at the present request lengths,
    except while measurements show that it is met.

    target: the planned combos of `service`.
    """
    late = any(not fleet.combos[i].meets_slo for i in target if i in fleet.combos)
    noticed_ms = state.infeasibility.slo_noticed_ms
    if not late or (noticed_ms and fleet.now_ms < noticed_ms + NOTICE_INTERVAL_MS):
        return [], state
    local = fleet.views[service.model].demand.local
    if isinstance(local, Stats) and is_kept(local, service.percentile):
        return [], state
    why = about(answer.notes, service.model) or (Reason(ReasonCode.OUTSIDE_SLO, service.model),)
    decision = decision_about(fleet, service.model, "infeasible", why, state, applied=False)
    noticed = replace(state.infeasibility, slo_noticed_ms=fleet.now_ms)
    return [decision], replace(state, infeasibility=noticed)


def constraints_violated(
    answer: PlanAnswer, state: ModelState, service: Service, fleet: TickFleet
) -> tuple[list[Decision], ModelState]:
    """Report the constraints that the plan violates, except demand: survival, the spot limit.

    The report is repeated periodically, and at once if another constraint is violated.
    `unmet_demand` reports unmet floors.
    """
    broken = [
        promise
        for promise in answer.violations
        if promise.subject == service.model and promise.code is not ReasonCode.PROMISED_FLOOR
    ]
    told = tuple(promise.code for promise in broken)
    known = state.infeasibility
    noticed_ms = known.violations_noticed_ms
    again = not noticed_ms or fleet.now_ms >= noticed_ms + _PROMISE_AGAIN_MS
    if told == known.violations_noticed and not (broken and again):
        return [], state
    if not broken or not (again or set(told) - set(known.violations_noticed)):
        return [], replace(state, infeasibility=replace(known, violations_noticed=told))
    decision = decision_about(fleet, service.model, "infeasible", broken, state, applied=False)
    known = replace(known, violations_noticed_ms=fleet.now_ms, violations_noticed=told)
    return [decision], replace(state, infeasibility=known)


def _concerns(subject: str, service: Service, fleet: TickFleet) -> bool:
    if subject in ("*", service.model):
        return True
    pool = next((p for p in fleet.cluster.pools if p.id == subject), None)
    return pool is not None and (not service.regions or pool.region in service.regions)
