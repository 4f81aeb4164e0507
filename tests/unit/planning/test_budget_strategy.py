"""The strategy that does the most work for a budget, on the same planning problem as the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Objective, Policy, Pool, Service
from autoscaler.domain.reason import Reason, codes_of
from autoscaler.domain.workload import Demand, Lengths, Slo, WorkloadType
from autoscaler.modes.budget.budget_strategy import BudgetStrategy, Solver
from autoscaler.optimizer.activity_lp import Mix, MixProblem, Unfound, most_work
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import Outcome, PlanRequest, Urgency
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.planning.strategies.registry import strategy_for
from autoscaler.simulation.strategies.registry import STRATEGIES
from topics.codec import encode
from topics.reason_codes import ReasonCode

BUDGET_STRATEGY = BudgetStrategy()
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TYPES = (
    WorkloadType("long", 0.3, Lengths(2455, 18)),
    WorkloadType("chat", 0.7, Lengths(496, 510)),
)


def service(model: str, **more: object) -> Service:
    found = Service(
        model=model,
        architecture=catalog.model(MODEL),
        slo=Slo(2000.0, 60.0),
        max_len_tokens=8192,
        types=TYPES,
        lengths=Lengths(1084, 362),
        min_instances=1,
        utilization=0.8,
    )
    return replace(found, **more)  # type: ignore[arg-type]


def cluster(budget: float, *services: Service, nodes: int = 8) -> Cluster:
    pools = (
        Pool("r", "l40s", catalog.gpu("L40S"), 1, nodes, Market.ON_DEMAND, 1.8),
        Pool("r", "l4", catalog.gpu("L4"), 1, nodes, Market.ON_DEMAND, 0.85),
    )
    policy = Policy(budget_usd_per_h=budget, objective=Objective.THROUGHPUT)
    return Cluster(pools, services or (service("m"),), policy)


def solve(
    where: Cluster,
    rates: dict[str, float],
    fleet: dict[str, int] | None = None,
    hold: float = 0.0,
    mix: tuple[tuple[str, float], ...] = (),
    additions_only: bool = False,
    solver: Solver = most_work,
) -> Plan:
    demands = {m: Demand(m, rate, where.service(m).lengths, mix=mix) for m, rate in rates.items()}
    problem = make_problem(
        where,
        demands,
        default_profile(),
        fleet=fleet,
        options=PlanOptions(gap=1e-4, hysteresis=hold),
        additions_only=additions_only,
    )
    return BudgetStrategy(solver).solve(problem)


def test_the_policy_chooses_the_strategy() -> None:
    assert strategy_for(Policy()) is STRATEGIES["shoal"]
    spends = Policy(budget_usd_per_h=5.0, objective=Objective.MAKESPAN)
    assert strategy_for(spends).name == BUDGET_STRATEGY.name


def test_capacity_follows_the_planned_work_within_the_budget() -> None:
    """Each copy gets its part of the plan's value, so the control loop and the planner have equal
    sums.
    """
    made = solve(cluster(6.0), {"m": 2.0})
    assert made.work is not None
    assert made.cost_usd_per_h <= 6.0
    assert made.capacity_req_per_s["m"] * 0.8 == pytest.approx(2.0 * made.work.multiple, rel=1e-3)
    for name in ("long", "chat"):
        parts = [s.fraction for s in made.work.shares if s.type == name]
        assert sum(parts) == pytest.approx(1.0)


def test_the_plan_uses_the_measured_mix_instead_of_the_declared_one() -> None:
    before = solve(cluster(6.0), {"m": 2.0})
    after = solve(cluster(6.0), {"m": 2.0}, mix=(("long", 0.95), ("chat", 0.05)))
    assert before.counts() != after.counts()


def test_an_equally_good_running_fleet_stays() -> None:
    best = solve(cluster(6.0), {"m": 2.0})
    assert solve(cluster(6.0), {"m": 2.0}, best.counts(), hold=0.025).counts() == best.counts()
    worse = {"m:a1@r/l4/on-demand": 1}
    moved = solve(cluster(6.0), {"m": 2.0}, worse, hold=0.025)
    assert moved.counts() != worse


def test_an_additions_only_plan_keeps_every_running_instance() -> None:
    fleet = {"m:a1@r/l4/on-demand": 2}
    made = solve(cluster(4.0), {"m": 2.0}, fleet, additions_only=True)
    assert made.counts()["m:a1@r/l4/on-demand"] >= 2
    assert made.cost_usd_per_h <= 4.0


def test_a_fleet_above_the_budget_gets_a_plan() -> None:
    """A price rose, or the budget was lowered. The plan adds no instance and divides requests among
    the running ones.
    """
    fleet = {"m:a1@r/l40s/on-demand": 3}
    made = solve(cluster(2.0), {"m": 2.0}, fleet, additions_only=True)
    assert made.counts() == fleet
    assert made.work is not None


def test_the_least_important_model_gets_no_capacity_if_the_budget_is_too_small() -> None:
    two = cluster(1.9, service("big", priority=1), service("small"))
    made = solve(two, {"big": 2.0, "small": 1.0})
    assert {i.split(":")[0] for i in made.counts()} == {"big"}
    assert Reason(ReasonCode.BUDGET_TOO_SMALL, "small") in made.notes


def test_a_model_too_expensive_for_the_budget_takes_nothing_from_others() -> None:
    """The 70B model needs a node of H100 for 20 USD/h. Each 8B model needs one
    L40S for 1.80 USD/h.
    """
    big = service("big", architecture=catalog.model("meta-llama/Llama-3.3-70B-Instruct"))
    where = cluster(4.0, service("first", priority=2), replace(big, priority=1), service("small"))
    fast = Pool("r", "h100", catalog.gpu("H100"), 4, 2, Market.ON_DEMAND, 20.0)
    where = replace(where, pools=(fast, *where.pools))
    made = solve(where, {"first": 0.2, "big": 1.0, "small": 0.2})
    assert {i.split(":")[0] for i in made.counts()} == {"first", "small"}
    assert [n.subject for n in made.notes if n.code is ReasonCode.BUDGET_TOO_SMALL] == ["big"]
    alone = solve(replace(where, services=(big,)), {"big": 1.0})
    assert alone.status is PlanStatus.FAILED
    assert alone.notes[0].code is ReasonCode.BUDGET_WITHOUT_PLAN


def test_minimums_beyond_the_budget_are_kept_in_part_and_stated() -> None:
    """Every instance takes an L40S for 1.80 USD/h. The budget pays first for
    two, then for three.
    """
    one = solve(cluster(4.0, service("m", min_instances=3)), {"m": 2.0})
    planned = Reason(ReasonCode.INSTANCES_PLANNED, quantities=(2,))
    assert one.violations == (Reason(ReasonCode.PROMISED_FLOOR, "m", (), (3,), because=(planned,)),)
    services = service("big", priority=1, min_instances=2), service("small", min_instances=9)
    two = solve(cluster(5.5, *services), {"big": 1.0, "small": 1.0})
    assert {i.split(":")[0] for i in two.counts()} == {"big", "small"}
    assert [b.subject for b in two.violations] == ["small"]
    assert ReasonCode.BUDGET_TOO_SMALL not in codes_of((*one.notes, *two.notes))


def test_limits_below_the_running_fleet_give_a_plan() -> None:
    fleet = {"m:a1@r/l4/on-demand": 3}
    capped = cluster(4.0, service("m", max_instances=2))
    assert solve(capped, {"m": 2.0}, fleet, additions_only=True).counts() == fleet
    both = cluster(9.0, service("m", spot_share=0.5))
    pools = [replace(pool, max_of_both=1) for pool in both.pools[1:]]
    pools.append(replace(pools[0], market=Market.SPOT, price_usd_per_h=0.3))
    both = replace(both, pools=(both.pools[0], *pools))
    made = solve(both, {"m": 2.0}, fleet, additions_only=True)
    assert made.work is not None
    assert made.counts()["m:a1@r/l4/on-demand"] == 3
    assert not made.counts().get("m:a1@r/l4/spot")


def test_a_pool_with_more_used_than_available_nodes_gets_no_addition() -> None:
    base = cluster(1.8)
    owned = Pool("r", "own", catalog.gpu("L40S"), 4, 1, Market.OWNED, 0.0)
    where = replace(base, pools=(owned, *base.pools))
    demands = {"m": Demand("m", 2.0, where.service("m").lengths)}
    problem = make_problem(where, demands, default_profile(), taken_gpus={owned.id: 6})
    made = BUDGET_STRATEGY.solve(problem)
    assert made.work is not None
    assert not any(owned.id in combo_id for combo_id in made.counts())


def test_a_model_is_not_called_infeasible_because_time_ran_out() -> None:
    """The running fleet stays, and the plan states that time stopped the search. Without a running
    fleet there is no plan.
    """
    two = cluster(9.0, service("big", priority=1), service("small"))
    demands = {m: Demand(m, 2.0, two.service(m).lengths) for m in ("big", "small")}
    over = PlanOptions(time_limit_s=1.0, elapsed_s=lambda: 2.0)
    fleet = {"big:a1@r/l40s/on-demand": 2, "small:a1@r/l40s/on-demand": 1}
    problem = make_problem(two, demands, default_profile(), fleet=fleet, options=over)
    made = BUDGET_STRATEGY.solve(problem)
    assert made.counts() == fleet
    assert made.limits_hit == ("time",) and not made.notes
    assert made.work is not None and made.work.bound is None and made.gap == -1.0
    none = BUDGET_STRATEGY.solve(make_problem(two, demands, default_profile(), options=over))
    assert none.status is PlanStatus.FAILED
    assert none.notes == (Reason(ReasonCode.NOT_IN_TIME),)


def test_no_model_falls_below_its_minimum_because_time_ran_out() -> None:
    """The budget was lowered below the cost of the running fleet. The search for all minimums
    reaches its time limit.
    """

    def late(problem: MixProblem, *rest: float) -> Mix | Unfound:
        return Unfound.LIMIT if problem.copies_min.any() else most_work(problem, *rest)

    services = service("m", min_instances=1), service("n", min_instances=6)
    where = cluster(6.0, *services)
    rates = {"m": 1.0, "n": 1.0}
    fleet = {"m:a1@r/l40s/on-demand": 1, "n:a1@r/l40s/on-demand": 3}
    # With more time the plan has two of n.
    assert solve(where, rates, fleet, solver=late).status is PlanStatus.FAILED
    made = solve(where, rates, dict(fleet, **{"n:a1@r/l40s/on-demand": 1}), solver=late)
    assert made.work is not None and made.status is PlanStatus.LIMIT


def test_searches_share_the_remaining_time() -> None:
    """Each of six models has its own search, and all searches share one time limit."""
    asked: list[float] = []

    def impossible(problem: MixProblem, seconds: float, *rest: float) -> Unfound:
        asked.append(seconds)
        return Unfound.IMPOSSIBLE

    six = cluster(1.9, *(service(f"m{i}", min_instances=0) for i in range(6)))
    demands = {s.model: Demand(s.model, 1.0, s.lengths) for s in six.services}
    options = PlanOptions(time_limit_s=10.0, elapsed_s=lambda: 1.5 * sum(asked))
    problem = make_problem(six, demands, default_profile(), options=options)
    assert BudgetStrategy(impossible).solve(problem).status is PlanStatus.FAILED
    assert len(asked) == 7 and 1.5 * sum(asked) <= 10.0


def test_a_type_that_no_gpu_serves_is_left_out_and_stated() -> None:
    endless = WorkloadType("book", 0.1, Lengths(8000, 100))
    slo = Slo(50.0, 60.0)  # No declared GPU processes 8,000 tokens in 50 ms.
    types = (replace(TYPES[1], share=0.9), endless)
    made = solve(cluster(6.0, service("m", types=types, slo=slo)), {"m": 2.0})
    assert made.work is None or ("m", "book") in made.work.unserved
    assert {ReasonCode.TYPE_NOT_SERVED, ReasonCode.BUDGET_WITHOUT_PLAN} & {*codes_of(made.notes)}


def test_a_running_pipeline_too_small_for_one_type_serves_the_others() -> None:
    """Stages of one L40S have room for layers of the 70B model and for short requests, but not for
    a long one.
    """
    types = (
        WorkloadType("short", 0.9, Lengths(1155, 211)),
        WorkloadType("long", 0.1, Lengths(14000, 3500)),
    )
    big = service("m", architecture=catalog.model("meta-llama/Llama-3.3-70B-Instruct"))
    big = replace(big, types=types, lengths=Lengths(2439.5, 539.9), pipelines="any")
    where = cluster(60.0, big)
    node = replace(where.pools[0], per_node=4, price_usd_per_h=7.2)
    where = replace(where, pools=(node,))
    stage = "p1.22@r/l40s/on-demand"
    runs = f"m:{stage}>{stage}>p2.36@r/l40s/on-demand+3d4@r/l40s/on-demand"
    problem = make_problem(
        where, {"m": Demand("m", 0.5, big.lengths)}, default_profile(), fleet={runs: 1}
    )
    short, long = problem.types
    assert runs in short.combos and runs not in long.combos
    assert BUDGET_STRATEGY.solve(problem).work is not None


def test_the_binding_limit_is_named() -> None:
    limits = solve(cluster(3.0), {"m": 2.0}).binding
    assert Reason(ReasonCode.BUDGET, "*", quantities=(3.0,)) in limits
    full = solve(cluster(1000.0, nodes=2), {"m": 2.0}).binding
    assert (ReasonCode.POOL_FULL, (2.0,)) in [(one.code, one.quantities) for one in full]


def test_an_answer_with_shares_survives_the_wire_format() -> None:
    where = cluster(6.0)
    request = PlanRequest(1, Urgency.FULL, 0, (Demand("m", 2.0, where.service("m").lengths),))
    found = answer_request(request, where, default_profile(), strategy_for(where.policy))
    assert found.outcome is not Outcome.NONE
    assert {kind for _, kind, _, _ in found.shares} == {"long", "chat"}
    assert encode(found)  # the decision log and the pipe accept only plain numbers
