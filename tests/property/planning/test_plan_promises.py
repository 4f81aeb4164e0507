"""For any declaration and demand, a plan keeps its constraints or names those that it breaks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaler.domain.cluster import Market
from autoscaler.domain.reason import about
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.planning_clusters import small_cluster

PROFILE = default_profile()
FLEET = {
    "chat:a4@us-east/h100/owned": 1,
    "code:a4@us-east/l40s/on-demand": 2,
    "mini:a1@us-east/l40s/spot": 5,
    "mini:a2@us-east/l40s/on-demand": 3,
}


@st.composite
def problems(draw: st.DrawFn) -> PlanningProblem:
    cluster = small_cluster()
    services = tuple(
        replace(
            service,
            survive=draw(st.sampled_from(("none", "none", "one-node", "all-spot"))),
            min_instances=draw(st.integers(0, 2)),
            max_instances=draw(st.sampled_from((0, 0, 6))),
            priority=draw(st.integers(0, 1)),
            spot_share=draw(st.sampled_from((0.0, 0.5, 1.0))),
        )
        for service in cluster.services
    )
    budget = draw(st.sampled_from((0.0, 0.0, 40.0)))
    policy = replace(cluster.policy, budget_usd_per_h=budget)
    lengths = Lengths(
        draw(st.sampled_from((200.0, 1155.0, 4000.0))), draw(st.sampled_from((50.0, 211.0)))
    )
    rates = {s.model: draw(st.sampled_from((0.0, 0.3, 2.0, 9.0, 60.0, 500.0))) for s in services}
    models = [s.model for s in services]
    return make_problem(
        replace(cluster, services=services, policy=policy),
        {model: Demand(model, rate, lengths) for model, rate in rates.items()},
        PROFILE,
        fleet=FLEET if draw(st.booleans()) else {},
        obtainable={"us-east/l40s/spot": draw(st.sampled_from((0, 2, 8)))},
        scope=tuple(draw(st.sampled_from(((), models[2:], models[1:])))),
        additions_only=draw(st.booleans()),
        options=PlanOptions(gap=1e-3),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from(sorted(STRATEGIES)))
def test_a_plan_keeps_or_names_its_constraints(problem: PlanningProblem, name: str) -> None:
    made = STRATEGIES[name].solve(problem)
    assert made.status is not PlanStatus.FAILED
    _check_pools(problem, made)
    for target in made.targets:
        if not problem.is_planned(target.combo.model):
            assert target.count == target.now
        assert not problem.additions_only or target.count >= target.now
    for model in problem.planned_models():
        _check_model(problem, made, model, promises=name == "shoal")
    if name == "shoal":
        assert made.lower_bound_usd_per_h <= made.objective_usd_per_h + 1e-6
        assert made.gap <= 1e-3 + 1e-9 or made.objective_usd_per_h < 1e-2
        budget = problem.cluster.policy.budget_usd_per_h
        fixed = made.now_usd_per_h if problem.scope or problem.additions_only else 0.0
        assert not budget or made.cost_usd_per_h <= max(budget, fixed) + 1e-6


def _check_pools(problem: PlanningProblem, made: Plan) -> None:
    used: dict[str, int] = {}
    for target in made.targets:
        for pool_id, gpus in target.combo.gpus_by_pool().items():
            used[pool_id] = used.get(pool_id, 0) + gpus * target.count
    for node in made.nodes:
        pool = problem.cluster.pool(node.pool)
        assert used.get(pool.id, 0) <= node.count * pool.per_node
        assert node.count <= pool.max_nodes
        if pool.market is not Market.OWNED:
            more = problem.obtainable.get(pool.id, pool.max_nodes)
            assert node.count <= node.now + more


def _check_model(problem: PlanningProblem, made: Plan, model: str, promises: bool) -> None:
    service = problem.cluster.service(model)
    targets = [target for target in made.targets_of(model) if target.count]
    capacity = sum(t.count * t.combo.req_per_s for t in targets)
    needed = problem.needed_req_per_s(model)
    short = made.shortfall_req_per_s.get(model, 0.0)
    assert capacity * service.utilization + short >= problem.demands[model].req_per_s - 1e-4
    spot = sum(t.count * t.combo.req_per_s for t in targets if is_spot(t.combo))
    number = sum(t.count for t in targets)
    runs = sum(t.now for t in targets) if problem.additions_only else 0
    assert not 0 < max(service.max_instances, runs) < number or not service.max_instances
    if promises:
        said = bool(about(made.notes, model))
        assert said or number >= service.min_instances
        off_spot = (1.0 - service.spot_share) * needed
        assert said or short or capacity - spot >= off_spot * (1 - 1e-6) - 1e-6
        if service.survive == "all-spot":
            assert said or short or capacity - spot >= problem.demands[model].req_per_s - 1e-4
