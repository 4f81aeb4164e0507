"""Plans of the strategy `shoal`, compared with a brute force over all transitions of small fleets.

The brute force uses no arrays. It tries every combination of kept, switched, loaded and started
instances. It rents the fewest nodes and calculates prices from the rules of the domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Demand, Lengths, Phase, Slo
from autoscaler.planning.candidate_combos import ranking_usd_per_h
from autoscaler.planning.combo_usage import is_spot, slices_of
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, fewest_nodes
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.planning_clusters import combo, pool, service

BUCKET = Lengths(1000.0, 200.0)
POOLS = (
    pool("r", "own", "H100", 2, 1, Market.OWNED, 0.0),
    pool("r", "rent", "L40S", 2, 2, Market.ON_DEMAND, 4.0),
    pool("r", "rent", "L40S", 2, 2, Market.SPOT, 1.5),
)
SHARED = tuple(replace(p, max_of_both=2) for p in POOLS[1:])
"""The limit of nodes that two rented pools share over both markets."""
POLICY = Policy(k_start=0.3, k_load=0.1, k_switch=0.02)


@dataclass(frozen=True)
class Step:
    """One way to get an instance of a combo: keep, load or start it, or switch it from `source`."""

    combo: Combo
    kind: str
    source: str
    most: int


def steps(problem: PlanningProblem, models: tuple[str, ...]) -> list[Step]:
    found = []
    for model in models:
        offered = problem.candidates[model]
        for combo_id, count in problem.fleet.items():
            running = problem.running[combo_id]
            if running.model != model:
                continue
            found.append(Step(running, "keep", combo_id, count))
            found += [
                Step(other, "switch", combo_id, count)
                for other in offered
                if other.id != combo_id and slices_of(other) == slices_of(running)
            ]
        for one in offered:
            most = min(
                (problem.nodes_now(p) + problem.rentable_nodes(p)) * p.per_node // gpus
                for p, gpus in (
                    (problem.cluster.pool(name), gpus) for name, gpus in one.gpus_by_pool().items()
                )
            )
            found.append(Step(one, "load", "", most))
            found.append(Step(one, "start", "", most))
    return found


def allocations(problem: PlanningProblem) -> Iterator[tuple[float, dict[str, float], bool]]:
    """Every allocation within the available nodes and the budget.

    For each: the cost including penalties, the capacity per model, and whether all constraints
    hold.
    """
    models = problem.planned_models()
    options = steps(problem, models)
    fixed = [(problem.running[i], n) for i, n in problem.fixed_fleet().items()]
    policy = problem.cluster.policy
    k = {"keep": 0.0, "switch": policy.k_switch, "load": policy.k_load, "start": policy.k_start}
    for counts in product(*(range(step.most + 1) for step in options)):
        chosen = [(s, n) for s, n in zip(options, counts, strict=True) if n]
        if not _sources_suffice(problem, chosen):
            continue
        everything = fixed + [(s.combo, n) for s, n in chosen]
        nodes = fewest_nodes(problem.cluster, everything)
        if not _nodes_suffice(problem, nodes, fixed, chosen):
            continue
        capacity = dict.fromkeys(models, 0.0)
        firm = dict.fromkeys(models, 0.0)
        number = dict.fromkeys(models, 0)
        firm_number = dict.fromkeys(models, 0)
        for step, n in chosen:
            capacity[step.combo.model] += n * step.combo.req_per_s
            number[step.combo.model] += n
            if not is_spot(step.combo):
                firm[step.combo.model] += n * step.combo.req_per_s
                firm_number[step.combo.model] += n
        promised = allowed = True
        for model in models:
            declared = problem.cluster.service(model)
            offered = [*problem.candidates[model], *(c for c, _ in problem.running_combos(model))]
            off_spot = 1.0 - declared.spot_share
            if not all(is_spot(one) for one in offered):
                needed = off_spot * min(problem.needed_req_per_s(model), capacity[model])
                promised = promised and firm[model] >= needed - 1e-9
                least = math.floor(off_spot * declared.min_instances + 1e-9)
                promised = promised and firm_number[model] >= least
            promised = promised and number[model] >= declared.min_instances
            allowed = allowed and not 0 < declared.max_instances < number[model]
        if not allowed:
            continue
        bill = sum(n * problem.cluster.pool(p).price_usd_per_h for p, n in nodes.items())
        budget = policy.budget_usd_per_h
        if budget and bill > budget + 1e-9:
            continue
        penalty = sum(
            n * k[s.kind] * ranking_usd_per_h(s.combo, problem.pools()) for s, n in chosen
        )
        yield bill + penalty, capacity, promised


def _sources_suffice(problem: PlanningProblem, chosen: list[tuple[Step, int]]) -> bool:
    used: dict[str, int] = {}
    for step, n in chosen:
        if step.source:
            used[step.source] = used.get(step.source, 0) + n
    return all(n <= problem.fleet[i] for i, n in used.items())


def _nodes_suffice(
    problem: PlanningProblem,
    nodes: dict[str, int],
    fixed: list[tuple[Combo, int]],
    chosen: list[tuple[Step, int]],
) -> bool:
    """Whether the pools have enough nodes.

    Instances that do not wait for a node start must also fit on the present nodes.
    """
    for name, count in nodes.items():
        declared = problem.cluster.pool(name)
        if count > problem.nodes_now(declared) + problem.rentable_nodes(declared):
            return False
    for shared in problem.cluster.pools_by_shared_limit().values():
        if sum(nodes.get(p.id, 0) for p in shared) > shared[0].max_of_both:
            return False
    settled = fixed + [(s.combo, n) for s, n in chosen if s.kind != "start"]
    return all(
        count <= problem.nodes_now(problem.cluster.pool(name))
        for name, count in fewest_nodes(problem.cluster, settled).items()
    )


def build(
    services: tuple[Service, ...],
    candidates: dict[str, tuple[Combo, ...]],
    demands: dict[str, float],
    fleet: dict[str, int],
    pools: tuple[Pool, ...] = POOLS,
    policy: Policy = POLICY,
    scope: tuple[str, ...] = (),
    options: PlanOptions | None = None,
) -> PlanningProblem:
    cluster = Cluster(pools, services, policy)
    running = {c.id: c for combos in candidates.values() for c in combos if c.id in fleet}
    nodes = fewest_nodes(cluster, [(running[i], n) for i, n in fleet.items()])
    rented = {p.id: nodes.get(p.id, 0) for p in pools if p.market is not Market.OWNED}
    return PlanningProblem(
        cluster=cluster,
        demands={m: Demand(m, rate, BUCKET) for m, rate in demands.items()},
        candidates=candidates,
        fleet=fleet,
        running=running,
        rented_nodes=rented,
        scope=scope,
        options=options or PlanOptions(gap=0.0),
    )


def pair(name: str, req_per_s: float) -> Combo:
    """A prefill instance on the owned node together with a decode instance on a rented one."""
    members = (
        ComboMember(Phase.PREFILL, "r/own/owned", 1, 1, req_per_s),
        ComboMember(Phase.DECODE, "r/rent/on-demand", 1, 1, req_per_s),
    )
    return Combo(name, name.split(":")[0], "r", members, req_per_s, 0.0, 100.0, 20.0, 60.0)


def declared(name: str, **more: object) -> Service:
    base = service(name, "meta-llama/Llama-3.1-8B-Instruct", Slo(1000.0, 50.0), lengths=BUCKET)
    return replace(base, utilization=0.8, **more)  # type: ignore[arg-type]


@st.composite
def problems(
    draw: st.DrawFn, most_models: int = 2, least_demand: int = 0, pools: tuple[Pool, ...] = POOLS
) -> PlanningProblem:
    """Problems with one or two models, up to two combos each, three pools and a running fleet."""
    names = ["m", "n"][: draw(st.integers(1, most_models))]
    services, candidates, demands = [], {}, {}
    fleet: dict[str, int] = {}
    free = {p.id: p.max_nodes * p.per_node for p in pools}
    for name in names:
        combos = tuple(
            combo(
                f"{name}:{index}",
                req_per_s=draw(st.integers(2, 12)) / 2,
                usd_per_h=0.0,
                pool_id=draw(st.sampled_from([p.id for p in pools])),
                gpus=draw(st.sampled_from((1, 2))),
            )
            for index in range(draw(st.integers(1, 3 - len(names))))
        )
        if pools is POOLS and draw(st.booleans()):
            combos = (*combos[:-1], pair(f"{name}:pair", draw(st.integers(2, 12)) / 2))
        candidates[name] = combos
        for one in combos:
            taken = one.gpus_by_pool()
            count = draw(st.integers(0, min(2, *(free[w] // g for w, g in taken.items()))))
            if count:
                fleet[one.id] = count
                for where, gpus in taken.items():
                    free[where] -= count * gpus
        services.append(
            declared(
                name,
                spot_share=draw(st.sampled_from((0.0, 0.5, 1.0))),
                min_instances=draw(st.integers(0, 1)),
                priority=draw(st.integers(0, 1)),
            )
        )
        demands[name] = draw(st.integers(least_demand, least_demand + 16)) / 2
    scope = tuple(names[:1]) if draw(st.booleans()) else ()
    budget = draw(st.sampled_from((0.0, 0.0, 6.0)))
    made = build(
        tuple(services),
        candidates,
        demands,
        fleet,
        pools,
        replace(POLICY, budget_usd_per_h=budget),
        scope=scope,
    )
    # Small enough for a brute force.
    assume(math.prod(s.most + 1 for s in steps(made, made.planned_models())) <= 6000)
    return made


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(problems())
def test_no_allocation_is_cheaper_than_the_plan(problem: PlanningProblem) -> None:
    """The plan's objective equals that of the brute force, and its bounds and
    status are correct.
    """
    needed = {m: problem.needed_req_per_s(m) for m in problem.planned_models()}
    best, most = math.inf, 0.0
    for cost, capacity, promised in allocations(problem):
        fraction = min(
            (min(1.0, capacity[m] / need) for m, need in needed.items() if need), default=1.0
        )
        most = max(most, fraction)
        if promised and fraction >= 1.0 - 1e-9:
            best = min(best, cost)
    plan = ShoalStrategy().solve(problem)
    if math.isinf(best):
        assert plan.status is PlanStatus.BEST_EFFORT
        assert plan.served_fraction_bound >= most - 1e-6
        return
    assert plan.status in (PlanStatus.OPTIMAL, PlanStatus.WITHIN_GAP)
    # Owned GPUs have a tiny cost in the objective, which orders plans of equal price.
    assert plan.objective_usd_per_h == pytest.approx(best, abs=2e-3)
    assert plan.lower_bound_usd_per_h <= best + 2e-3
    assert plan.gap <= 1e-3
    assert not plan.shortfall_req_per_s


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(problems(most_models=1, least_demand=12, pools=SHARED))
def test_no_allocation_that_serves_as_much_is_cheaper_under_shortage(
    problem: PlanningProblem,
) -> None:
    """Among the allocations that serve most, the plan is the cheapest one that keeps the
    constraints, if any does.
    """
    needed = problem.needed_req_per_s("m")
    found = [(capacity["m"], cost, kept) for cost, capacity, kept in allocations(problem)]
    most = max((rate for rate, _, _ in found), default=0.0)
    assume(0.0 < most < needed)
    best = min((cost for rate, cost, kept in found if kept and rate > most - 1e-9), default=None)
    plan = ShoalStrategy().solve(problem)
    assert plan.status is PlanStatus.BEST_EFFORT
    assert plan.capacity_req_per_s["m"] == pytest.approx(most)
    assert bool(plan.violations) == (best is None)
    if best is not None:
        assert plan.objective_usd_per_h == pytest.approx(best, abs=2e-3)
