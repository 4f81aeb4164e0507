"""Plan answers for a running fleet: lost nodes, unchanged instances, and refused requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.reason import about
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Slo
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import Outcome, PlanRequest, Urgency
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.answer_requests import (
    FULL,
    L4,
    L4_SPOT,
    PROFILE,
    URGENT,
    ask,
    at,
    capacity,
    mini,
    one_model,
)
from tests.unit.planning.planning_clusters import CONVERSATION, pool, service, small_cluster
from topics.reason_codes import ReasonCode


def test_a_model_that_fits_no_pool_is_named() -> None:
    big = service("m", "meta-llama/Llama-3.3-70B-Instruct", Slo(2000.0, 60.0))
    got = ask(Cluster((L4,), (big,)), FULL, {"m": 1.0})
    assert got.outcome is Outcome.BEST_EFFORT
    assert got.counts == ()
    assert dict(got.shortfall_req_per_s) == {"m": 1.0}
    assert [note.code for note in about(got.notes, "m")] == [ReasonCode.TOO_LARGE]


@pytest.mark.parametrize("urgency", [URGENT, FULL])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_plan_is_returned_after_the_loss_of_all_nodes(urgency: Urgency, strategy: str) -> None:
    cluster = one_model((L4,), min_instances=1)
    fleet = {"m:a1@r/l4/on-demand": 3}
    got = ask(
        cluster,
        urgency,
        {"m": 1.0},
        fleet,
        strategy,
        unusable_nodes=(("r/l4/on-demand", 12),),
        rented_nodes=(("r/l4/on-demand", 0),),
        obtainable=(("r/l4/on-demand", 0),),
    )
    assert got.outcome is Outcome.BEST_EFFORT
    assert got.counts == ()
    assert got.shortfall_req_per_s


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_lost_nodes_are_replaced_by_available_ones(strategy: str) -> None:
    """Three of four nodes remain, and one more can be rented. The urgent plan replaces the lost
    node.
    """
    cluster = one_model((L4,))
    each = at(cluster, "m:a1@r/l4/on-demand").req_per_s * 0.8
    got = ask(
        cluster,
        URGENT,
        {"m": 3.9 * each},
        {"m:a1@r/l4/on-demand": 4},
        strategy,
        rented_nodes=(("r/l4/on-demand", 3),),
        unusable_nodes=(("r/l4/on-demand", 1),),
    )
    assert dict(got.counts)["m:a1@r/l4/on-demand"] >= 3
    assert capacity(cluster, got.counts) * 0.8 >= 3.9 * each
    assert got.now_usd_per_h == pytest.approx(3 * 0.85)


def test_a_fleet_larger_than_its_owned_pool_is_planned_with_the_existing_nodes() -> None:
    owned = pool("r", "own", "H100", 4, 2, Market.OWNED, 0.0)
    cluster = Cluster((owned,), (mini("m"), mini("n")))
    fleet = {"m:a1@r/own/owned": 4, "n:a1@r/own/owned": 4}
    for urgency in (URGENT, FULL):
        got = ask(cluster, urgency, {"m": 1.0}, fleet, unusable_nodes=(("r/own/owned", 1),))
        assert dict(got.counts).get("m:a1@r/own/owned", 0) <= 4
    both = ask(cluster, FULL, {"m": 1.0, "n": 1.0}, fleet, unusable_nodes=(("r/own/owned", 1),))
    assert both.outcome is Outcome.PLANNED
    assert sum(n for _, n in both.counts) <= 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_an_invalid_price_is_refused_by_name(bad: float) -> None:
    with pytest.raises(InvalidValue, match="r/l4/on-demand"):
        ask(one_model((L4,)), FULL, {"m": 1.0}, prices_usd_per_h=(("r/l4/on-demand", bad),))


def test_undeclared_pools_and_models_are_ignored() -> None:
    got = ask(
        one_model((L4,)),
        FULL,
        {"m": 1.0, "gone": 2.0},
        {"m:a1@old/l4/spot": 2, "gone:a1@r/l4/on-demand": 1},
        prices_usd_per_h=(("old/l4/spot", 1.0),),
        rented_nodes=(("old/l4/spot", 2),),
    )
    assert got.outcome is Outcome.PLANNED
    assert got.scope == ("m",)
    assert all(combo_id.startswith("m:a1@r/l4") for combo_id, _ in got.counts)


# Changes that are worth their cost


@pytest.mark.parametrize("share", [0.98, 0.99, 1.0, 1.01, 1.02])
@pytest.mark.parametrize("rates", [(3.0, 8.0, 30.0), (2.0, 3.0, 10.0), (1.0, 1.0, 5.3)])
def test_a_fleet_that_still_covers_the_demand_is_not_changed(
    share: float, rates: tuple[float, ...]
) -> None:
    cluster = small_cluster()
    wanted = dict(zip(("chat", "code", "mini"), rates, strict=True))
    first = ask(cluster, FULL, wanted)
    assert first.outcome is Outcome.PLANNED
    later = {model: share * rate for model, rate in wanted.items()}
    fleet = dict(first.counts)
    counts = dict(first.counts)
    held = Counter[str]()
    for combo in first.combos:
        held[combo.model] += counts.get(combo.id, 0) * combo.req_per_s  # type: ignore[assignment]
    covers = all(held[m] * cluster.service(m).utilization >= rate for m, rate in later.items())
    if share <= 1.0:
        assert covers
    again = ask(cluster, FULL, later, fleet)
    if covers:
        assert again.counts == first.counts
        assert again.change.switches == ()


def test_a_saving_below_the_replacement_penalty_changes_nothing() -> None:
    """Spot nodes that are 2% cheaper than the running nodes do not justify new starts. Spot nodes
    at two thirds of the price do.
    """
    cheaper = replace(L4_SPOT, price_usd_per_h=0.98 * 0.85)
    cluster = one_model((L4, cheaper), spot_share=1.0)
    fleet = {"m:a1@r/l4/on-demand": 4}
    wanted = {"m": 0.79 * capacity(cluster, fleet.items())}
    assert dict(ask(cluster, FULL, wanted, fleet).counts) == fleet
    cut = ask(cluster, FULL, wanted, fleet, prices_usd_per_h=(("r/l4/spot", 0.3),))
    assert dict(cut.counts) == {"m:a1@r/l4/spot": 4}


def test_a_best_effort_fleet_is_not_changed_either() -> None:
    cluster = Cluster((replace(L4, max_nodes=5),), (mini("m"), mini("n")))
    wanted = {"m": 6.0, "n": 4.0}
    first = ask(cluster, FULL, wanted)
    assert first.outcome is Outcome.BEST_EFFORT
    assert ask(cluster, FULL, wanted, dict(first.counts)).counts == first.counts


def test_the_same_request_has_the_same_answer() -> None:
    cluster = small_cluster()
    wanted = {"code": 5.0, "mini": 20.0}
    assert ask(cluster, FULL, wanted) == ask(cluster, FULL, wanted)


def test_a_failed_solve_gives_an_answer_with_its_reason() -> None:
    def fails(*_: object) -> object:
        raise InvalidValue("solver", "nothing", "a plan")

    request = PlanRequest(7, FULL, 0, (Demand("m", 1.0, CONVERSATION),), scope=("m",))
    got = answer_request(request, one_model((L4,)), PROFILE, ShoalStrategy(solver=fails))  # type: ignore[arg-type]
    assert (got.number, got.outcome) == (7, Outcome.NONE)
    assert [note.code for note in got.notes] == [ReasonCode.REQUEST_REFUSED]


def test_an_addition_that_must_fit_next_to_the_fleet_waits_for_no_removal() -> None:
    """Model m may use the owned GPUs that model n no longer needs. They are free only after the
    instances of n have stopped.
    """
    owned = pool("r", "h100", "H100", 4, 1, Market.OWNED, 0.0)
    cluster = Cluster((L4, owned), (mini("m"), mini("n")))
    fleet = {"m:a1@r/l4/on-demand": 2, "n:a1@r/h100/owned": 4}
    moved = ask(cluster, FULL, {"m": 1.0, "n": 0.1}, fleet)
    stays = ask(cluster, FULL, {"m": 1.0, "n": 0.1}, fleet, surge_only=True)
    assert moved.cost_usd_per_h == 0.0
    assert not any(i.startswith("m:") and "h100" in i for i, _ in stays.counts)
    assert stays.cost_usd_per_h > 0.0 and not stays.shortfall_req_per_s


def test_a_plan_after_an_excess_removes_instances_and_exchanges_none() -> None:
    """Other nodes would be cheaper. Only a plan that may add instances uses them."""
    cheap = pool("r", "cheap", "L4", 1, 12, Market.ON_DEMAND, 0.1)
    cluster = one_model((L4, cheap))
    fleet = {"m:a1@r/l4/on-demand": 4}
    exchanged = ask(cluster, FULL, {"m": 1.0}, fleet)
    kept = ask(cluster, FULL, {"m": 1.0}, fleet, removals_only=True)
    assert all("cheap" in combo for combo, _ in exchanged.counts)
    assert kept.counts == (("m:a1@r/l4/on-demand", 2),)


def test_a_plan_after_an_excess_still_serves_a_model_that_is_short() -> None:
    cluster = one_model((L4,))
    fleet = {"m:a1@r/l4/on-demand": 1}
    want = {"m": 3.0 * capacity(cluster, fleet.items())}
    got = ask(cluster, FULL, want, fleet, removals_only=True)
    assert got.outcome is Outcome.PLANNED and not got.shortfall_req_per_s


_TWO = "{0}{1}@r/l40s/on-demand>{0}{1}@r/l40s/on-demand"
DISAGGREGATED = f"m:{_TWO.format('p1.', 32)}+{_TWO.format('d1.', 32)}"
TOO_DEEP = f"m:{_TWO.format('p1.', 65)}+{_TWO.format('d1.', 65)}"


@pytest.mark.parametrize("urgency", [URGENT, FULL])
@pytest.mark.parametrize(
    ("running", "pipelines"),
    [
        (DISAGGREGATED, "none"),  # Its engine ran pipelines before.
        (TOO_DEEP, "any"),  # Its stages have more layers than the model.
        ("m:a8@r/l40s/on-demand", "none"),  # Nodes of the pool had eight GPUs.
        ("m:1a4@r/l40s/on-demand", "none"),  # The name has an old format.
        ("m:c4.llm@r/l40s/on-demand", "none"),  # The model had components.
    ],
)
def test_an_undeclared_running_combo_does_not_stop_planning(
    urgency: Urgency, running: str, pipelines: str
) -> None:
    """A full plan replaces such a combo; an urgent plan keeps it and plans additions."""
    l40s = pool("r", "l40s", "L40S", 4, 8, Market.ON_DEMAND, 7.2)
    model = service("m", "Qwen/Qwen3-32B", Slo(8000.0, 130.0), pipelines=pipelines)
    cluster = Cluster((l40s,), (model, mini("n")))
    got = ask(cluster, urgency, {"m": 0.2, "n": 5.0}, {running: 1, "n:a1@r/l40s/on-demand": 1})
    assert got.outcome is Outcome.PLANNED
    assert not got.shortfall_req_per_s
    assert dict(got.counts).get(running, 0) == (1 if urgency is URGENT else 0)
    assert capacity(cluster, got.counts, "n") * 0.8 >= 5.0
