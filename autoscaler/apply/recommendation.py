"""The recommendation for a model in mode recommend."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoscaler.apply.change_cause import change_cause
from autoscaler.apply.decision import decision_about
from autoscaler.apply.infeasible import unmet_demand
from autoscaler.apply.model_change import after_change, kind_of
from autoscaler.apply.requested_answer import RequestedAnswer
from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.sizing.scale_in.removal import raw_req_per_s_of, scale_in_veto
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import RATE_EPSILON
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


def recommend(
    asked: RequestedAnswer, service: Service, state: ModelState, fleet: TickFleet
) -> tuple[list[Decision], ModelState]:
    """Store the recommendation in the state, from which the next plan starts."""
    model, now_ms = service.model, fleet.now_ms
    before, planned = Counter(dict(state.advisory.recommended)), asked.planned(model)
    difference = Counter(planned)
    difference.subtract(before)
    change = Counter({combo: n for combo, n in difference.items() if n})
    view = fleet.views[model]
    adds, removes = +change, -change
    if removes and scale_in_veto(view, adds, removes, 0.0, fleet.combos):
        change = adds if view.planned_req_per_s < view.required_req_per_s else Counter()
        removes = Counter()
    told: list[Decision] = []
    if change:
        outward = bool(+change)
        kind = kind_of(outward, bool(removes))
        usd = sum(fleet.combos[i].usd_per_h * n for i, n in change.items() if i in fleet.combos)
        over_ms = state.target.overload_since_ms if outward else 0
        named = tuple(sorted(change.items()))
        cause = change_cause(asked, view, named, usd, fleet.cluster, fleet.combos)
        why = cause, Reason(ReasonCode.COST, quantities=(usd,)), *asked.trigger
        told.append(decision_about(fleet, model, kind, why, state, False, usd, over_ms, named))
        after = Counter(planned) if removes else before + change
        net = raw_req_per_s_of(change, fleet.combos)
        counts = tuple(sorted((+after).items()))
        advisory = replace(state.advisory, recommended=counts, recommended_ms=now_ms)
        state = after_change(state, net, outward and bool(removes), view)
        state = replace(state, advisory=advisory)
    runs = sum(count for _, count in state.advisory.recommended)
    short = asked.short_req_per_s[model]
    if short > RATE_EPSILON or (not +change and runs < service.min_instances):
        sought = asked.demand_req_per_s[model]
        more, state = unmet_demand(asked.answer, short, sought, runs, state, service, fleet)
        told += more
    return told, state
