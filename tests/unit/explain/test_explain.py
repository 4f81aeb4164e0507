"""Explanations: each comes from solving a changed problem, so it must hold if
the change is made.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Policy
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.workload import Demand, Slo
from autoscaler.explain.alternatives import (
    best_alternative,
    changed,
    node_reliefs,
    one_fewer,
    round_up,
    slo_reliefs,
    with_more,
    with_service,
)
from autoscaler.explain.combo_labels import short_name
from autoscaler.explain.plan_explanation import explain
from autoscaler.explain.rejected_gpus import impossible_pools
from autoscaler.explain.spot_exposure import savings, spot_losses
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.planning_problem import (
    PlanningProblem,
    PlanOptions,
    RolloutMode,
    make_problem,
)
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.planning_clusters import CONVERSATION, pool, small_cluster

PROFILE = default_profile()
NO_PENALTIES = Policy(k_start=0.0, k_load=0.0, k_switch=0.0)


def problem_of(rates: tuple[float, ...], cluster: Cluster | None = None) -> PlanningProblem:
    declared = cluster or small_cluster(NO_PENALTIES)
    wanted = {
        s.model: Demand(s.model, rate, CONVERSATION)
        for s, rate in zip(declared.services, rates, strict=True)
    }
    return make_problem(declared, wanted, PROFILE)


def test_the_stated_saving_of_a_looser_slo_is_real() -> None:
    problem = problem_of((3.0, 8.0, 80.0))
    made = ShoalStrategy().solve(problem)
    reliefs = slo_reliefs(problem, made, "mini", PROFILE, ShoalStrategy())
    assert reliefs
    for relief in reliefs:
        service = problem.cluster.service("mini")
        if relief.kind == "tpot":
            slo = Slo(service.slo.ttft_ms, round_up(1.25 * service.slo.tpot_ms))
            looser = replace(service, slo=slo)
        elif relief.kind == "ttft":
            slo = Slo(round_up(1.5 * service.slo.ttft_ms), service.slo.tpot_ms)
            looser = replace(service, slo=slo)
        else:
            looser = replace(service, spot_share=0.75)
        cluster = with_service(problem.cluster, looser)
        really = ShoalStrategy().solve(problem_of((3.0, 8.0, 80.0), cluster))
        # A joint plan costs at most as much as one with the other models fixed.
        assert really.cost_usd_per_h <= made.cost_usd_per_h - relief.saves_usd_per_h + 0.02


def rented_only(rate: float, arrival_cv: float, **more: object) -> PlanningProblem:
    """A problem with one model on the rented pools of the small cluster; at most half of it is
    spot."""
    small = small_cluster(Policy(k_start=0.1))
    pools = tuple(pool for pool in small.pools if pool.market is not Market.OWNED)
    cluster = Cluster(pools, (small.service("mini"),), small.policy)
    wanted = {"mini": Demand("mini", rate, CONVERSATION, arrival_cv=arrival_cv)}
    return make_problem(cluster, wanted, PROFILE, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("arrival_cv", [1.0, 3.0])
def test_the_saving_of_a_looser_slo_includes_bursts(arrival_cv: float) -> None:
    problem = rented_only(30.0, arrival_cv)
    made = ShoalStrategy().solve(problem)
    for relief in slo_reliefs(problem, made, "mini", PROFILE, ShoalStrategy()):
        service = problem.cluster.service("mini")
        ttft = round_up(1.5 * service.slo.ttft_ms) if relief.kind == "ttft" else service.slo.ttft_ms
        tpot = (
            round_up(1.25 * service.slo.tpot_ms) if relief.kind == "tpot" else service.slo.tpot_ms
        )
        spot = 0.75 if relief.kind == "spot" else service.spot_share
        looser = replace(service, slo=Slo(ttft, tpot), spot_share=spot)
        cluster = with_service(problem.cluster, looser)
        really = ShoalStrategy().solve(make_problem(cluster, problem.demands, PROFILE))
        assert really.cost_usd_per_h <= made.cost_usd_per_h - relief.saves_usd_per_h + 0.02


def test_a_kept_dearer_instance_is_not_explained_by_a_limit() -> None:
    """The running nodes cost 7.20 USD/h each. A move to nodes of 7.00 is not worth the starts."""
    pools = (
        pool("r", "now", "L40S", 4, 8, Market.ON_DEMAND, 7.2),
        pool("r", "new", "L40S", 4, 8, Market.ON_DEMAND, 7.0),
    )
    model = small_cluster().service("mini")
    cluster = Cluster(pools, (replace(model, spot_share=0.0),), Policy(k_start=0.1))
    wanted = {"mini": Demand("mini", 10.0, CONVERSATION)}
    best = ShoalStrategy().solve(make_problem(replace(cluster, pools=pools[:1]), wanted, PROFILE))
    problem = make_problem(cluster, wanted, PROFILE, fleet=best.counts())
    made = ShoalStrategy().solve(problem)
    assert made.counts() == best.counts()
    assert slo_reliefs(problem, made, "mini", PROFILE, ShoalStrategy()) == ()
    other = best_alternative(problem, made, "mini", ShoalStrategy())
    assert other is not None
    assert other.why == "-0.20 USD/h, but running instances stay"


def test_every_explanation_plans_without_temporary_removal_blocks() -> None:
    fleet = {"mini:a2@us-east/l40s/on-demand": 6}
    problem = replace(
        rented_only(10.0, 1.0, fleet=fleet),
        scale_in_locked=("mini",),
        rollout_mode=RolloutMode.STEP,
    )
    made = ShoalStrategy().solve(problem)
    assert slo_reliefs(problem, made, "mini", PROFILE, ShoalStrategy()) == ()
    asked = changed(replace(problem, additions_only=True), made, ("mini",))
    assert (
        not asked.scale_in_locked
        and not asked.additions_only
        and asked.rollout_mode is RolloutMode.RECREATE
    )


def test_the_stated_gain_of_more_nodes_is_real() -> None:
    rates = (40.0, 8.0, 30.0)
    problem = problem_of(rates)
    made = ShoalStrategy().solve(problem)
    assert set(made.shortfall_req_per_s) >= {"chat"}
    reliefs = node_reliefs(problem, made, ShoalStrategy())
    chat = next(relief for relief in reliefs if relief.subject == "us-east/h100/owned")
    assert chat.serves_req_per_s > 0.0
    more = int(chat.what.split()[0])
    pool = problem.cluster.pool("us-east/h100/owned")
    bigger = with_more(problem.cluster, pool, more)
    really = ShoalStrategy().solve(problem_of(rates, bigger))
    before = sum(made.shortfall_req_per_s.values())
    after = sum(really.shortfall_req_per_s.values())
    assert before - after == pytest.approx(chat.serves_req_per_s, rel=0.05)


def test_the_gain_of_a_relief_is_at_most_the_shortfall() -> None:
    """The plan keeps the running fleet and has no shortfall of `code`. A plan from an empty fleet
    would have one.
    """
    small = small_cluster(Policy(budget_usd_per_h=25.0))
    chat, code, mini = small.services
    services = (
        replace(chat, spot_share=1.0, priority=1),
        replace(code, survive="one-node", spot_share=0.0, priority=1),
        replace(mini, survive="all-spot", spot_share=0.0, priority=1, min_instances=1),
    )
    cluster = replace(small, services=services)
    fleet = {
        "chat:a4@us-east/h100/owned": 1,
        "code:a4@us-east/l40s/on-demand": 2,
        "mini:a1@us-east/l40s/spot": 5,
        "mini:a2@us-east/l40s/on-demand": 3,
    }
    rates = {"chat": 9.0, "code": 2.0, "mini": 0.3}
    wanted = {model: Demand(model, rate, CONVERSATION) for model, rate in rates.items()}
    problem = make_problem(cluster, wanted, PROFILE, fleet=fleet)
    made = ShoalStrategy().solve(problem)
    assert not made.shortfall_req_per_s
    assert ShoalStrategy().solve(changed(problem, made, tuple(rates))).shortfall_req_per_s
    for relief in explain(problem, made, PROFILE, ShoalStrategy()).relief:
        assert relief.serves_req_per_s == 0.0


@pytest.mark.parametrize("survive", ["none", "one-node"])
def test_a_loss_that_must_be_survived_limits_a_plan_that_holds_more_than_needed(
    survive: str,
) -> None:
    small = small_cluster(NO_PENALTIES)
    services = tuple(replace(s, survive=survive) for s in small.services)
    problem = problem_of((0.5, 2.0, 10.0), replace(small, services=services))
    made = ShoalStrategy().solve(problem)
    reasons = explain(problem, made, PROFILE, ShoalStrategy()).of("mini")
    assert reasons is not None
    assert ("survive one-node" in reasons.bound_by) == (survive == "one-node")


def test_the_best_alternative_is_not_cheaper_than_the_plan() -> None:
    problem = problem_of((3.0, 8.0, 60.0))
    made = ShoalStrategy().solve(problem)
    for model in problem.demands:
        other = best_alternative(problem, made, model, ShoalStrategy())
        assert other is not None
        assert other.usd_per_h >= -0.01


def test_one_instance_fewer_is_rejected_with_a_reason() -> None:
    problem = problem_of((3.0, 8.0, 90.0))
    made = ShoalStrategy().solve(problem)
    fewer = one_fewer(problem, made, "mini")
    assert fewer is not None
    held, needed = (float(part.split()[0]) for part in fewer.why.split(" of "))
    assert held < needed == pytest.approx(112.5, abs=0.6)


def test_a_gpu_that_is_too_small_is_named_with_its_memory() -> None:
    problem = problem_of((3.0, 8.0, 60.0))
    spec: ModelSpec = problem.cluster.service("chat").architecture
    reasons = impossible_pools(problem, problem.cluster.service("chat"), PROFILE)
    assert [reason.what for reason in reasons] == ["eu-west/l4 (L4)"]
    assert f"{spec.weight_bytes / 1e9:.0f} GB weights, 24 GB" in reasons[0].why


def test_the_loss_of_spot_keeps_the_other_capacity() -> None:
    problem = problem_of((3.0, 8.0, 60.0))
    made = ShoalStrategy().solve(problem)
    losses = {loss.model: loss for loss in spot_losses(problem, made)}
    on_spot = {t.combo.model for t in made.targets if t.count and is_spot(t.combo)}
    assert set(losses) == on_spot
    assert "chat" not in losses  # chat uses no spot nodes
    for model, loss in losses.items():
        left = sum(
            t.count * t.combo.req_per_s for t in made.targets_of(model) if not is_spot(t.combo)
        )
        assert loss.served_fraction == pytest.approx(
            min(1.0, left / problem.demands[model].req_per_s)
        )
        assert loss.recovery_s > 0.0


def test_an_explanation_has_a_reason_for_every_planned_model() -> None:
    problem = problem_of((3.0, 8.0, 60.0))
    made = ShoalStrategy().solve(problem)
    reasons = explain(problem, made, PROFILE, ShoalStrategy())
    assert [r.model for r in reasons.models] == ["chat", "code", "mini"]
    for one in reasons.models:
        assert "utilization 80%" in one.bound_by
        assert 0.0 < one.load <= 0.8 + 1e-6
        assert one.rejected


@pytest.mark.parametrize(
    ("combo_id", "words"),
    [
        ("mini:a1@eu-west/l4/spot", "1xL4 eu-west spot"),
        (
            "mini:2p1@us-east/l40s/spot+3d1@us-east/l40s/on-demand",
            "(2 prefill 1xL40S + 3 decode 1xL40S) us-east spot/on-demand",
        ),
        (
            "mini:p1@us-east/h100/owned+3d4@us-east/l40s/spot",
            "(1 prefill 1xH100 + 3 decode 4xL40S) us-east owned/spot",
        ),
    ],
)
def test_combos_have_readable_names(combo_id: str, words: str) -> None:
    cluster = small_cluster()
    combo = evaluate_combo(combo_id, cluster, cluster.service("mini"), CONVERSATION, PROFILE)
    assert short_name(combo, {p.id: p for p in cluster.pools}) == words


def test_savings_add_up_to_the_difference_of_the_bills() -> None:
    """Eight on-demand nodes are more than 12 req/s of mini need, and none of them is spot."""
    cluster = small_cluster(NO_PENALTIES)
    rented = replace(cluster, pools=tuple(p for p in cluster.pools if p.name != "h100"))
    wanted = {"mini": Demand("mini", 12.0, CONVERSATION)}
    fleet = {"mini:a2@us-east/l40s/on-demand": 16}
    problem = make_problem(rented, wanted, PROFILE, fleet=fleet)
    made = ShoalStrategy().solve(problem)
    parts = {part.what: part.usd_per_h for part in savings(problem, made, ShoalStrategy())}
    assert set(parts) == {"sizing", "spot"}
    assert parts["spot"] < 0.0 > parts["sizing"]
    assert sum(parts.values()) == pytest.approx(made.cost_usd_per_h - made.now_usd_per_h)


def test_no_saving_is_stated_against_a_plan_that_needs_spot() -> None:
    """One node in each pool is not spot. Only spot nodes can serve the remaining demand."""
    problem = rented_only(60.0, 1.0)
    pools = tuple(
        pool if pool.market is Market.SPOT else replace(pool, max_nodes=1)
        for pool in problem.cluster.pools
    )
    cluster = replace(problem.cluster, pools=pools)
    problem = make_problem(cluster, problem.demands, PROFILE)
    made = ShoalStrategy().solve(problem)
    assert not made.shortfall_req_per_s
    assert any(target.count and is_spot(target.combo) for target in made.targets)
    assert savings(problem, made, ShoalStrategy()) == ()


def test_every_explanation_has_its_own_time_limit() -> None:
    """The expired time limit of the plan does not shorten the explanation. A search that exceeds
    its own limit gives no answer.
    """
    now = [0.0]
    options = PlanOptions(time_limit_s=30.0, elapsed_s=lambda: now[0])
    problem = rented_only(30.0, 1.0, options=options)
    made = ShoalStrategy().solve(problem)
    at_once = explain(problem, made, PROFILE, ShoalStrategy())
    assert at_once.models[0].relief and at_once.savings
    now[0] = 31.0
    assert explain(problem, made, PROFILE, ShoalStrategy()) == at_once
    looks = itertools.count(31.0, 100.0)
    hasty = replace(problem, options=replace(options, elapsed_s=lambda: next(looks)))
    late = explain(hasty, made, PROFILE, ShoalStrategy())
    assert not late.models[0].relief and not late.relief and not late.savings
    assert best_alternative(hasty, made, "mini", ShoalStrategy()) is None
