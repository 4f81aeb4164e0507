"""One request, one plan: the only way by which the control loop gets a plan.

Owns the translation of a request into a planning problem and of a plan into an answer. Pure; the
caller decides where it runs (a process that can be killed, a thread, or in place in a simulation).
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster
from autoscaler.performance.profile import Profile
from autoscaler.planning.combos import combo_named, parse_combo_id
from autoscaler.planning.plan import PlanStatus, Strategy, plan
from autoscaler.planning.problem import PlanOptions, make_problem
from autoscaler.planning.request import Outcome, PlanAnswer, PlanRequest, unanswered

GAP = 0.005
"""Searches stop here: half a per cent of the bill is below what a change costs."""


def answer(
    request: PlanRequest,
    cluster: Cluster,
    profile: Profile,
    strategy: Strategy,
    options: PlanOptions | None = None,
) -> PlanAnswer:
    """The plan that `request` asks for. cluster: as declared; prices come with the request."""
    out = dict(request.unusable_nodes)
    cluster = replace(
        cluster,
        pools=tuple(
            replace(pool, max_nodes=max(0, pool.max_nodes - out.get(pool.id, 0)))
            for pool in cluster.pools
        ),
    )
    demands = {demand.model: demand for demand in request.demands}
    fleet = {}
    for combo_id, count in request.fleet:
        try:
            model, _ = parse_combo_id(combo_id)
            combo_named(combo_id, cluster, cluster.service(model), demands[model].lengths, profile)
        except (InvalidValue, KeyError):
            continue  # what is declared now no longer allows it
        fleet[combo_id] = count
    made = plan(
        make_problem(
            cluster,
            demands,
            profile,
            fleet=fleet,
            rented_nodes=dict(request.rented_nodes),
            obtainable=dict(request.obtainable),
            prices_usd_per_h=dict(request.prices_usd_per_h),
            scope=request.scope,
            options=options or PlanOptions(gap=GAP),
        ),
        strategy,
    )
    if made.status is PlanStatus.FAILED:
        return unanswered(request, made.notes[-1] if made.notes else "no plan came out")
    short = tuple(sorted((m, r) for m, r in made.shortfall_req_per_s.items() if r > 0))
    best_effort = made.status is PlanStatus.BEST_EFFORT or bool(short)
    return PlanAnswer(
        number=request.number,
        urgency=request.urgency,
        outcome=Outcome.BEST_EFFORT if best_effort else Outcome.PLANNED,
        scope=request.scope,
        counts=tuple(
            (target.combo.id, target.count)
            for target in made.targets
            if target.count and target.combo.model in request.scope
        ),
        strategy=made.strategy,
        cost_usd_per_h=made.cost_usd_per_h,
        now_usd_per_h=made.now_usd_per_h,
        objective_usd_per_h=made.objective_usd_per_h,
        lower_bound_usd_per_h=made.lower_bound_usd_per_h,
        gap=made.gap,
        shortfall_req_per_s=short,
        binding=tuple((b.what, b.subject, b.detail) for b in made.binding),
        notes=made.notes,
    )
