"""Constraints of every answer: spot shares, floors, ceilings, priorities, and survival of a
loss."""

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


def test_a_second_instance_may_be_spot_where_one_off_spot_runs() -> None:
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


def test_a_model_on_spot_pools_alone_gets_its_floor() -> None:
    cluster = one_model((L4_SPOT,), spot_share=0.5, min_instances=2)
    for urgency in (URGENT, FULL):
        got = ask(cluster, urgency, {"m": 0.0})
        assert dict(got.counts) == {"m:a1@r/l4/spot": 2}
        assert got.outcome is Outcome.PLANNED


@pytest.mark.parametrize(("floor", "off_spot"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_a_floor_alone_asks_for_its_share_off_spot_and_no_more(floor: int, off_spot: int) -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.5, min_instances=floor)
    got = dict(ask(cluster, URGENT, {"m": 0.0}).counts)
    assert got.get("m:a1@r/l4/on-demand", 0) == off_spot
    assert got.get("m:a1@r/l4/spot", 0) == floor - off_spot


def test_the_spot_share_yields_where_nothing_else_is_to_be_had_and_that_is_said() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.25)
    wanted = 3.5 * 0.8 * at(cluster, "m:a1@r/l4/spot").req_per_s
    got = ask(cluster, URGENT, {"m": wanted}, obtainable=(("r/l4/on-demand", 1),))
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 1, "m:a1@r/l4/spot": 3}
    assert got.shortfall_req_per_s == ()
    assert ReasonCode.PROMISED_SPOT in codes_of(about(got.notes, "m"))


@pytest.mark.parametrize(("urgency", "running"), [(FULL, 0), (URGENT, 0), (URGENT, 1)])
def test_under_shortage_spot_may_hold_its_share_of_what_is_planned(
    urgency: Urgency, running: int
) -> None:
    """There are six nodes for a need of ten: three of them may be spot, not one."""
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
def test_the_limit_of_spot_binds_only_where_something_off_spot_is_paid_for(market: Market) -> None:
    """One node of four H100 serves the whole demand. If the node is owned, it is free and no spot
    node replaces it."""
    cluster = one_model((replace(H100, market=market), L4_SPOT), spot_share=0.5)
    wanted = 0.7 * at(cluster, f"m:a1@r/h100/{market}").req_per_s
    got = ask(cluster, FULL, {"m": wanted}, {})
    assert dict(got.counts) == {f"m:a1@r/h100/{market}": 1}
    assert (SPOT_LIMIT in got.binding) == (market is Market.ON_DEMAND)


def test_what_stands_off_spot_may_be_all_that_a_short_model_has_to_have_there() -> None:
    l4, l4_spot = (replace(p, max_of_both=6) for p in (L4, L4_SPOT))
    cluster = one_model((l4, l4_spot), spot_share=0.5)
    fleet = {"m:a1@r/l4/on-demand": 4}
    wanted = 20.0 * 0.8 * at(cluster, "m:a1@r/l4/spot").req_per_s
    got = ask(cluster, URGENT, {"m": wanted}, fleet, rented_nodes=rented(fleet))
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 4, "m:a1@r/l4/spot": 2}
    assert got.violations == ()


def test_a_full_ceiling_of_small_instances_does_not_starve_a_model() -> None:
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


def test_priority_is_served_first_and_takes_what_runs_for_others() -> None:
    cluster = Cluster((replace(L4, max_nodes=4),), (mini("low"), mini("high", priority=10)))
    each = at(cluster, "low:a1@r/l4/on-demand").req_per_s * 0.8
    fleet = {"low:a1@r/l4/on-demand": 4}
    for step in (1, 2, 3):  # one of four instances may stop at a time, and no fifth has room
        got = ask(cluster, FULL, {"low": 3.5 * each, "high": 2.5 * each}, fleet)
        fleet = dict(got.counts)
        assert fleet == {"low:a1@r/l4/on-demand": 4 - step, "high:a1@r/l4/on-demand": step}
        assert got.needs_preemption
    again = ask(cluster, FULL, {"low": 3.5 * each, "high": 2.5 * each}, fleet)
    assert (dict(again.counts), again.needs_preemption) == (fleet, False)
    left = next(combo.req_per_s for combo in got.combos if combo.model == "low") * 0.8
    assert dict(got.shortfall_req_per_s) == {"low": pytest.approx(3.5 * each - left)}


def test_what_one_of_high_priority_cannot_use_goes_to_its_equals_before_others() -> None:
    """Model `a` has only its own pool and lacks capacity; model `b` of equal priority is fully
    served before model `low` gets any."""
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
def test_after_any_plan_one_node_may_go(urgency: Urgency) -> None:
    cluster = one_model((L4,), survive="one-node")
    one = at(cluster, "m:a1@r/l4/on-demand").req_per_s
    got = ask(cluster, urgency, {"m": 0.9 * one}, {"m:a1@r/l4/on-demand": 1})
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 2}
    shrunk = ask(cluster, FULL, {"m": 0.9 * one}, {"m:a1@r/l4/on-demand": 6})
    assert dict(shrunk.counts) == {"m:a1@r/l4/on-demand": 2}
    again = ask(cluster, FULL, {"m": 0.9 * one}, dict(shrunk.counts))
    assert again.counts == shrunk.counts


# Always an answer
