"""Constraints that every answer keeps: spot shares, minimums, maximums, priorities, and survival of
a loss.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.reason import Reason, about, codes_of
from autoscaler.planning.planner_messages import Outcome, Urgency
from tests.unit.planning.answer_requests import (
    FULL,
    H100,
    L4,
    L4_SPOT,
    URGENT,
    ask,
    at,
    capacity,
    mini,
    one_model,
    rented,
)
from tests.unit.planning.planning_clusters import pool
from topics.reason_codes import ReasonCode

SPOT_LIMIT = Reason(ReasonCode.SPOT_LIMIT, "m", quantities=(0.5,))


def test_a_second_instance_may_be_spot_next_to_one_on_demand() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.5)
    one = at(cluster, "m:a1@r/l4/on-demand").req_per_s * 0.8
    first = ask(cluster, URGENT, {"m": 0.9 * one})
    assert dict(first.counts) == {"m:a1@r/l4/on-demand": 1}
    second = ask(
        cluster,
        URGENT,
        {"m": 1.9 * one},
        dict(first.counts),
        rented_nodes=rented(dict(first.counts)),
    )
    assert dict(second.counts) == {"m:a1@r/l4/on-demand": 1, "m:a1@r/l4/spot": 1}
    assert second.outcome is Outcome.PLANNED


def test_a_model_with_only_spot_pools_gets_its_minimum() -> None:
    cluster = one_model((L4_SPOT,), spot_share=0.5, min_instances=2)
    for urgency in (URGENT, FULL):
        got = ask(cluster, urgency, {"m": 0.0})
        assert dict(got.counts) == {"m:a1@r/l4/spot": 2}
        assert got.outcome is Outcome.PLANNED


@pytest.mark.parametrize(("floor", "off_spot"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_a_minimum_needs_only_its_non_spot_share_off_spot(floor: int, off_spot: int) -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.5, min_instances=floor)
    got = dict(ask(cluster, URGENT, {"m": 0.0}).counts)
    assert got.get("m:a1@r/l4/on-demand", 0) == off_spot
    assert got.get("m:a1@r/l4/spot", 0) == floor - off_spot


def test_the_spot_share_is_exceeded_and_stated_if_only_spot_is_available() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.25)
    wanted = 3.5 * 0.8 * at(cluster, "m:a1@r/l4/spot").req_per_s
    got = ask(cluster, URGENT, {"m": wanted}, obtainable=(("r/l4/on-demand", 1),))
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 1, "m:a1@r/l4/spot": 3}
    assert got.shortfall_req_per_s == ()
    assert ReasonCode.PROMISED_SPOT in codes_of(about(got.notes, "m"))


@pytest.mark.parametrize(("urgency", "running"), [(FULL, 0), (URGENT, 0), (URGENT, 1)])
def test_the_spot_share_applies_to_the_planned_capacity_under_shortage(
    urgency: Urgency, running: int
) -> None:
    """The demand needs ten nodes, and six exist. Half of the six may be spot nodes. Half of the ten
    would allow only one spot node."""
    l4, l4_spot = (replace(p, max_of_both=6) for p in (L4, L4_SPOT))
    cluster = one_model((l4, l4_spot), spot_share=0.5)
    fleet = {"m:a1@r/l4/on-demand": running} if running else {}
    wanted = 10.0 * 0.8 * at(cluster, "m:a1@r/l4/spot").req_per_s
    got = ask(cluster, urgency, {"m": wanted}, fleet, rented_nodes=rented(fleet))
    assert got.outcome is Outcome.BEST_EFFORT
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 3, "m:a1@r/l4/spot": 3}
    assert SPOT_LIMIT in got.binding
    assert got.violations == ()


@pytest.mark.parametrize("market", [Market.OWNED, Market.ON_DEMAND])
def test_the_spot_limit_binds_only_if_non_spot_capacity_costs_money(market: Market) -> None:
    """One node of four H100 serves the whole demand. An owned node is free, so no spot node
    replaces it.
    """
    cluster = one_model((replace(H100, market=market), L4_SPOT), spot_share=0.5)
    wanted = 0.7 * at(cluster, f"m:a1@r/h100/{market}").req_per_s
    got = ask(cluster, FULL, {"m": wanted}, {})
    assert dict(got.counts) == {f"m:a1@r/h100/{market}": 1}
    assert (SPOT_LIMIT in got.binding) == (market is Market.ON_DEMAND)


def test_running_non_spot_capacity_can_satisfy_the_non_spot_share_of_a_short_model() -> None:
    l4, l4_spot = (replace(p, max_of_both=6) for p in (L4, L4_SPOT))
    cluster = one_model((l4, l4_spot), spot_share=0.5)
    fleet = {"m:a1@r/l4/on-demand": 4}
    wanted = 20.0 * 0.8 * at(cluster, "m:a1@r/l4/spot").req_per_s
    got = ask(cluster, URGENT, {"m": wanted}, fleet, rented_nodes=rented(fleet))
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 4, "m:a1@r/l4/spot": 2}
    assert got.violations == ()


def test_small_instances_at_the_maximum_do_not_starve_a_model() -> None:
    cluster = one_model((L4, H100), max_instances=3)
    fleet = {"m:a1@r/l4/on-demand": 3}
    wanted = 12.0 * capacity(cluster, fleet.items()) / 3.0 * 0.8
    urgent = ask(cluster, URGENT, {"m": wanted}, fleet)
    assert urgent.outcome is Outcome.BEST_EFFORT
    assert Reason(ReasonCode.CEILING, "m", quantities=(3,)) in urgent.binding
    full = ask(cluster, FULL, {"m": wanted}, fleet)
    assert full.outcome is Outcome.PLANNED
    assert sum(n for _, n in full.counts) <= 3
    assert capacity(cluster, full.counts) * 0.8 >= wanted - 1e-6


def test_a_higher_priority_takes_nodes_from_running_models() -> None:
    cluster = Cluster((replace(L4, max_nodes=4),), (mini("low"), mini("high", priority=10)))
    each = at(cluster, "low:a1@r/l4/on-demand").req_per_s * 0.8
    fleet = {"low:a1@r/l4/on-demand": 4}
    for step in (1, 2, 3):  # One of four instances may stop at a time, and no fifth has room.
        got = ask(cluster, FULL, {"low": 3.5 * each, "high": 2.5 * each}, fleet)
        fleet = dict(got.counts)
        assert fleet == {"low:a1@r/l4/on-demand": 4 - step, "high:a1@r/l4/on-demand": step}
        assert got.needs_preemption
    again = ask(cluster, FULL, {"low": 3.5 * each, "high": 2.5 * each}, fleet)
    assert (dict(again.counts), again.needs_preemption) == (fleet, False)
    left = next(combo.req_per_s for combo in got.combos if combo.model == "low") * 0.8
    assert dict(got.shortfall_req_per_s) == {"low": pytest.approx(3.5 * each - left)}


def test_unused_capacity_goes_to_models_of_equal_priority_first() -> None:
    """Model `a` lacks capacity but can use only its own pool. Model `b` of equal priority is fully
    served before model `low` gets any.
    """
    other = pool("s", "l4", "L4", 1, 1, Market.ON_DEMAND, 0.85)
    services = (
        mini("low", regions=("r",)),
        mini("a", priority=10, regions=("s",)),
        mini("b", priority=10, regions=("r",)),
    )
    cluster = Cluster((replace(L4, max_nodes=4), other), services)
    each = at(cluster, "b:a1@r/l4/on-demand").req_per_s * 0.8
    got = ask(cluster, FULL, {"low": 3.5 * each, "a": 3.5 * each, "b": 3.5 * each})
    assert dict(got.counts) == {"a:a1@s/l4/on-demand": 1, "b:a1@r/l4/on-demand": 4}


@pytest.mark.parametrize("urgency", [URGENT, FULL])
def test_every_plan_survives_the_loss_of_a_node(urgency: Urgency) -> None:
    cluster = one_model((L4,), survive="one-node")
    one = at(cluster, "m:a1@r/l4/on-demand").req_per_s
    got = ask(cluster, urgency, {"m": 0.9 * one}, {"m:a1@r/l4/on-demand": 1})
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 2}
    shrunk = ask(cluster, FULL, {"m": 0.9 * one}, {"m:a1@r/l4/on-demand": 6})
    assert dict(shrunk.counts) == {"m:a1@r/l4/on-demand": 2}
    again = ask(cluster, FULL, {"m": 0.9 * one}, dict(shrunk.counts))
    assert again.counts == shrunk.counts


# An answer in every case
