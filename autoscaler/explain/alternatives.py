"""Plans variants of a problem to find the best rejected alternative, and the benefits of looser
limits. The variants have no transition costs (all K are 0) and no scale-in lock, and all other
models stay as planned. The plan of a variant is compared with a new plan without the change, not
with the given plan, which may cost more only to keep running instances. Every search has its own
time limit. If the limit ends the search, there is no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Slo
from autoscaler.explain.combo_labels import several, short_name
from autoscaler.explain.explanation import Rejected, Relief
from autoscaler.explain.plan_texts import promise
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.profile import Profile
from autoscaler.planning.binding_constraints import POOLS
from autoscaler.planning.candidate_combos import candidate_combos
from autoscaler.planning.constraint_check import violated_constraints
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.planning_problem import (
    PlanningProblem,
    PlanOptions,
    RolloutMode,
    arrivals_of,
)
from topics.reason_codes import ReasonCode

_TPOT_STRETCH = 1.25
_TTFT_STRETCH = 1.5
_CENT = 0.005
_WORTH_SAYING = 0.01
"""Smallest additional service to report, as a share of the demand of the underserved models."""
_TIME = 0.2
"""Time limit for planning one variant, as a share of the time limit of the plan."""
_KEEP = 16


def best_alternative(
    problem: PlanningProblem, plan: Plan, model: str, strategy: Strategy
) -> Rejected | None:
    """The cheapest plan of `model` without the pools of its largest combo.

    None if the model has no instances, or if the time limit ends the search.
    """
    chosen = max(plan.targets_of(model), key=lambda t: t.count * t.combo.req_per_s, default=None)
    if chosen is None or not chosen.count:
        return None
    pools = set(chosen.combo.gpus_by_pool())
    rest = tuple(c for c in problem.candidates[model] if set(c.gpus_by_pool()) != pools)
    names = " with ".join(sorted(_pool_name(problem.cluster.pool(pool)) for pool in pools))
    if not rest:
        return Rejected(f"without {names}", "no other node can serve the model")
    other = strategy.solve(changed(problem, plan, (model,), candidates={model: rest}))
    if other.limits_hit:
        return None
    if other.status is PlanStatus.FAILED or other.shortfall_req_per_s:
        missing = other.shortfall_req_per_s.get(model, 0.0)
        return Rejected(f"without {names}", f"{missing:.3g} req/s of demand unserved")
    by_id = problem.pools()
    kinds = ", ".join(several(t.count, t.combo, by_id) for t in other.targets_of(model) if t.count)
    broken = [promise(b) for b in violated_constraints(problem, other) if b.subject in (model, "*")]
    if broken:
        return Rejected(kinds, f"breaks {' and '.join(broken)}")
    more = other.cost_usd_per_h - plan.cost_usd_per_h
    if abs(more) < _CENT:
        return Rejected(kinds, "costs the same")
    if more < 0.0 and any(target.now for target in plan.targets_of(model)):
        return Rejected(kinds, f"{more:+.2f} USD/h, but running instances stay", more)
    return Rejected(kinds, f"{more:+.2f} USD/h", more)


def one_fewer(problem: PlanningProblem, plan: Plan, model: str) -> Rejected | None:
    """The reason against one instance less of the combo that serves most of `model`; None if there
    is no such reason."""
    targets = [target for target in plan.targets_of(model) if target.count]
    if not targets or model in plan.shortfall_req_per_s:
        return None
    most = max(targets, key=lambda t: t.count * t.combo.req_per_s)
    if most.count == 1 and len(targets) == 1:
        return None  # zero instances are no alternative
    left = plan.capacity_req_per_s[model] - most.combo.req_per_s
    name = short_name(most.combo, problem.pools())
    needed = problem.needed_req_per_s(model)
    if left >= needed:
        service = problem.cluster.service(model)
        if sum(target.count for target in targets) > service.min_instances:
            return None  # a constraint requires the instance, or its node is paid for in any case
        why = f"floor of {service.min_instances}"
        return Rejected(f"one instance fewer of {name}", why)
    return Rejected(f"one instance fewer of {name}", f"{left:.3g} of {needed:.3g} req/s needed")


def slo_reliefs(
    problem: PlanningProblem, plan: Plan, model: str, profile: Profile, strategy: Strategy
) -> tuple[Relief, ...]:
    """The benefits for `model` of a looser TPOT limit, a looser TTFT limit, and a larger spot
    share: a lower cost, or more service."""
    service = problem.cluster.service(model)
    if service.graph is not None:
        return ()  # components have declared rates, which do not depend on the SLO
    nearest = problem.unattainable_slos.get(model)
    tpot = round_up(max(service.slo.tpot_ms, nearest.tpot_ms if nearest else 0.0) * _TPOT_STRETCH)
    ttft = round_up(max(service.slo.ttft_ms, nearest.ttft_ms if nearest else 0.0) * _TTFT_STRETCH)
    trials = [
        ("tpot", f"TPOT limit {tpot:g} ms", replace(service, slo=Slo(service.slo.ttft_ms, tpot))),
        ("ttft", f"TTFT limit {ttft:g} ms", replace(service, slo=Slo(ttft, service.slo.tpot_ms))),
    ]
    if nearest is not None:
        both = replace(service, slo=Slo(ttft, tpot))
        trials.append(("slo", f"TPOT limit {tpot:g} ms and TTFT limit {ttft:g} ms", both))
    spot_pools = any(pool.market is Market.SPOT for pool in problem.cluster.pools)
    if spot_pools and service.spot_share < 1.0:
        more = min(1.0, service.spot_share + 0.25)
        trials.append(("spot", f"spot up to {more:.0%}", replace(service, spot_share=more)))

    def offered(cluster: Cluster) -> tuple[Combo, ...]:
        demand, own = problem.demands[model], cluster.service(model)
        arrivals = arrivals_of(demand, own)
        return candidate_combos(cluster, own, demand.lengths, profile, _KEEP, arrivals)

    as_it_is = offered(problem.cluster) or problem.candidates[model]
    now = strategy.solve(changed(problem, plan, (model,), {model: as_it_is}))
    if now.limits_hit:
        return ()
    found = []
    for kind, what, looser in trials:
        cluster = with_service(problem.cluster, looser)
        combos = offered(cluster)
        if not combos:
            continue
        relaxed = changed(problem, plan, (model,), {model: combos}, cluster)
        other = strategy.solve(relaxed)
        relief = _relief(kind, model, what, _Question(problem, plan, (model,), now), other)
        if relief is not None:
            found.append(relief)
    return tuple(sorted(found, key=lambda r: (-r.serves_req_per_s, -r.saves_usd_per_h)))


def node_reliefs(problem: PlanningProblem, plan: Plan, strategy: Strategy) -> tuple[Relief, ...]:
    """The benefits of further nodes of full pools, with all models replanned: a lower cost, or more
    service."""
    found = []
    models = problem.planned_models()
    pools = [problem.cluster.pool(b.subject) for b in plan.binding if b.code in POOLS]
    if not pools:
        return ()
    now = strategy.solve(changed(problem, plan, models))
    for pool in pools if not now.limits_hit else ():
        for more in _steps(problem, plan, pool):
            cluster = with_more(problem.cluster, pool, more)
            bigger = changed(problem, plan, models, cluster=cluster, obtainable={pool.id: more})
            other = strategy.solve(bigger)
            what = f"{more} more node{'s' if more > 1 else ''} of {pool.region}/{pool.name}"
            nodes = f"{what} ({pool.market})"
            question = _Question(problem, plan, models, now)
            relief = _relief("nodes", pool.id, nodes, question, other)
            if relief is not None:
                found.append(relief)
                break
    return tuple(sorted(found, key=lambda r: (-r.serves_req_per_s, -r.saves_usd_per_h)))


def budget_relief(problem: PlanningProblem, plan: Plan, strategy: Strategy) -> tuple[Relief, ...]:
    """If the budget binds, the benefit of planning without it: the additional service and its
    cost."""
    budget = problem.cluster.policy.budget_usd_per_h
    if not any(binding.code is ReasonCode.BUDGET for binding in plan.binding):
        return ()
    models = problem.planned_models()
    policy = replace(problem.cluster.policy, budget_usd_per_h=0.0)
    free = changed(problem, plan, models, cluster=replace(problem.cluster, policy=policy))
    now, other = strategy.solve(changed(problem, plan, models)), strategy.solve(free)
    if not is_answer(now, other) or other.cost_usd_per_h <= budget:
        return ()
    serves = _Question(problem, plan, models, now).serves(other)
    if serves <= 0.0 and len(other.violations) >= len(now.violations):
        return ()
    what = f"budget {other.cost_usd_per_h:.2f} USD/h"
    saves = now.cost_usd_per_h - other.cost_usd_per_h
    return (Relief("budget", "*", what, saves, max(0.0, serves)),)


def changed(
    problem: PlanningProblem,
    plan: Plan,
    models: tuple[str, ...],
    candidates: Mapping[str, tuple[Combo, ...]] | None = None,
    cluster: Cluster | None = None,
    obtainable: Mapping[str, int] | None = None,
) -> PlanningProblem:
    """`problem` with `models` planned again and all other models fixed as planned.

    obtainable: nodes available in addition to those of the problem, per pool.
    """
    base = cluster or problem.cluster
    free = replace(base.policy, k_start=0.0, k_load=0.0, k_switch=0.0)
    standing = {
        target.combo.id: target.count
        for target in plan.targets
        if target.count and target.combo.model not in models
    }
    running = {t.combo.id: t.combo for t in plan.targets if t.combo.id in standing}
    planned = {node.pool: node.count for node in plan.nodes}
    rented = {p.id: planned[p.id] for p in base.pools if p.market is not Market.OWNED}
    can_have = {
        p.id: problem.nodes_now(problem.cluster.pool(p.id))
        + problem.rentable_nodes(problem.cluster.pool(p.id))
        + (obtainable or {}).get(p.id, 0)
        - rented[p.id]
        for p in base.pools
        if p.id in rented
    }
    return replace(
        problem,
        cluster=replace(base, policy=free),
        candidates={**problem.candidates, **(candidates or {})},
        fleet=standing,
        running=running,
        rented_nodes=rented,
        obtainable={pool: max(0, nodes) for pool, nodes in can_have.items()},
        scope=models,
        additions_only=False,
        rollout_mode=RolloutMode.RECREATE,
        scale_in_locked=(),
        options=question_options(problem),
    )


def question_options(problem: PlanningProblem) -> PlanOptions:
    """The search limits for planning one variant of `problem`."""
    return problem.options.anew(_TIME)


def is_answer(*plans: Plan) -> bool:
    """Whether `plans` are comparable: none failed, and no limit ended their searches."""
    return all(plan.status is not PlanStatus.FAILED and not plan.limits_hit for plan in plans)


def with_service(cluster: Cluster, service: Service) -> Cluster:
    """`cluster` with `service` in place of the declared service of the same model."""
    services = tuple(service if s.model == service.model else s for s in cluster.services)
    return replace(cluster, services=services)


def with_more(cluster: Cluster, pool: Pool, more: int) -> Cluster:
    """`cluster` with `more` nodes of `pool`. A ceiling over both markets of the pool rises by the
    same number."""
    both = (pool.region, pool.name) if pool.max_of_both else None
    pools = []
    for one in cluster.pools:
        nodes = one.max_nodes + more if one.id == pool.id else one.max_nodes
        ceiling = one.max_of_both
        if both == (one.region, one.name):
            ceiling += more
        pools.append(replace(one, max_nodes=nodes, max_of_both=ceiling))
    return replace(cluster, pools=tuple(pools))


def _pool_name(pool: Pool) -> str:
    return f"{pool.region}/{pool.name} ({short_gpu_name(pool.gpu.name)}, {pool.market})"


def round_up(number: float) -> float:
    """Round up to two significant digits: 37.5 -> 38, 1250 -> 1300."""
    if number <= 0.0:
        raise InvalidValue("number", number, "above 0")
    step = 10.0 ** (len(str(int(number))) - 2)
    return -(-number // step) * step


def _steps(problem: PlanningProblem, plan: Plan, pool: Pool) -> tuple[int, ...]:
    """The numbers of additional nodes of `pool` to try: one node; if demand is unserved, first
    enough nodes to serve all of it."""
    most = 0
    for model, missing in plan.shortfall_req_per_s.items():
        per_node = max(
            (
                combo.req_per_s * pool.per_node / combo.gpus_by_pool()[pool.id]
                for combo in problem.candidates.get(model, ())
                if set(combo.gpus_by_pool()) == {pool.id}
            ),
            default=0.0,
        )
        if per_node > 0.0:
            raw = missing / problem.cluster.service(model).utilization
            most += int(-(-raw // per_node))
    return (most, 1) if most > 1 else (1,)


@dataclass(frozen=True, slots=True)
class _Question:
    """The question whether a change helps `models` of `plan`. now: a new plan of these models
    without the change."""

    problem: PlanningProblem
    plan: Plan
    models: tuple[str, ...]
    now: Plan

    def serves(self, other: Plan) -> float:
        """Requests/s of the shortfall of `plan` that `other` serves in addition to `now`; 0 if
        negligible."""
        lacks, before = self.plan.shortfall_req_per_s, self.now.shortfall_req_per_s
        after = other.shortfall_req_per_s
        more = sum(
            min(lacks.get(m, 0.0), before.get(m, 0.0) - after.get(m, 0.0)) for m in self.models
        )
        demand = sum(self.problem.demands[m].req_per_s for m in self.models if m in lacks)
        return 0.0 if 0.0 <= more <= _WORTH_SAYING * demand else more


def _relief(kind: str, subject: str, what: str, question: _Question, other: Plan) -> Relief | None:
    """The benefit of the plan `other` as a `Relief`; None if there is none."""
    if not is_answer(question.now, other):
        return None
    serves = question.serves(other)
    saves = question.now.cost_usd_per_h - other.cost_usd_per_h
    if serves > 0.0:
        return Relief(kind, subject, what, saves, serves)
    if serves >= -1e-6 and saves > _CENT:
        return Relief(kind, subject, what, saves)
    return None
