"""Each change of a plan has a cause: without it, the running instances would stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.planning.change_causes import change_causes
from autoscaler.planning.decode_solution import decode_plan
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planner_messages import PlanAnswer
from autoscaler.planning.planning_problem import make_problem
from tests.unit.planning.answer_requests import (
    FULL,
    H100,
    L4,
    L4_SPOT,
    PROFILE,
    URGENT,
    ask,
    at,
    capacity,
    mini,
    one_model,
    rented,
)
from tests.unit.planning.planning_clusters import CONVERSATION
from topics.reason_codes import ReasonCode as Code

SMALL, SPOT = "m:a1@r/l4/on-demand", "m:a1@r/l4/spot"
LARGE = "m:a1@r/h100/on-demand"
EACH = at(one_model((L4,)), SMALL).req_per_s


def cause(got: PlanAnswer, model: str = "m") -> Reason:
    (found,) = (one for one in got.causes if one.subject == model)
    return found


def needed(cluster: Cluster, rate: float) -> float:
    return rate / cluster.service("m").utilization


@pytest.mark.parametrize("urgency", [FULL, URGENT])
def test_demand_above_the_running_capacity_is_the_cause(urgency: object) -> None:
    cluster = one_model((L4,))
    found = cause(ask(cluster, urgency, {"m": 3 * EACH}, {SMALL: 1}))  # type: ignore[arg-type]
    assert found.code is Code.SURGE
    demand, utilization, raw, count = found.quantities
    assert (demand, count) == (pytest.approx(3 * EACH), 1) and raw == pytest.approx(EACH, 0.1)
    assert raw * utilization < demand


def test_a_limit_is_the_cause_of_an_exchange_that_it_forces_at_a_higher_cost() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=0.0)
    got = ask(cluster, FULL, {"m": 0.1 * EACH}, {SPOT: 1}, rented_nodes=rented({SPOT: 1}))
    assert got.cost_usd_per_h > got.now_usd_per_h
    found = cause(got)
    assert (found.code, found.because[0].code) == (Code.REQUIRED, Code.PROMISED_SPOT)


def test_a_floor_and_a_ceiling_are_causes() -> None:
    low = cause(ask(one_model((L4,), min_instances=2), FULL, {"m": 0.1 * EACH}, {SMALL: 1}))
    assert (low.code, low.quantities) == (Code.FLOOR, (2,))
    high = cause(ask(one_model((L4,), max_instances=1), FULL, {"m": 0.1 * EACH}, {SMALL: 2}))
    assert high.because == (Reason(Code.CEILING, "m", quantities=(1,)),)


def test_a_saving_is_the_cause_of_an_exchange_that_nothing_requires() -> None:
    cluster = one_model((L4, L4_SPOT), spot_share=1.0)
    got = ask(cluster, FULL, {"m": 0.1 * EACH}, {SMALL: 1}, rented_nodes=rented({SMALL: 1}))
    saving = got.now_usd_per_h - got.cost_usd_per_h
    assert cause(got) == Reason(Code.CHEAPER, "m", quantities=(pytest.approx(saving),))


def test_a_model_makes_room_for_another_one() -> None:
    few = replace(L4, max_nodes=1)
    cluster = Cluster(
        (few, L4_SPOT), (mini("m", spot_share=1.0), mini("n")), one_model((L4,)).policy
    )
    demands = {name: Demand(name, 0.1 * EACH, CONVERSATION) for name in ("m", "n")}
    problem = make_problem(cluster, demands, PROFILE, {SMALL: 1})
    counts = {SPOT: 1, SMALL.replace("m:", "n:"): 1}
    causes = change_causes(problem, decode_plan(problem, "none", counts, PlanStatus.OPTIMAL))
    assert causes[0] == Reason(Code.MAKES_ROOM, "m", (few.id, "n"))
    assert causes[1].code is Code.SURGE and causes[1].subject == "n"


def test_a_pool_without_usable_nodes_is_the_cause_of_a_move() -> None:
    got = ask(
        one_model((L4, L4_SPOT), spot_share=1.0), FULL, {"m": 0.1 * EACH}, {SPOT: 1},
        unusable_nodes=((L4_SPOT.id, 12),),
    )  # fmt: skip
    assert cause(got).because == (Reason(Code.POOL_LIMIT, L4_SPOT.id, quantities=(0,)),)


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0.05, 6.0),
    fleet=st.dictionaries(st.sampled_from((SMALL, SPOT, LARGE)), st.integers(1, 4), max_size=3),
    spot_share=st.sampled_from((0.0, 0.5, 1.0)),
    floor=st.integers(0, 3),
    ceiling=st.sampled_from((0, 4)),
    spot_usd=st.floats(0.05, 2.0),
)
def test_no_cause_contradicts_the_running_fleet_or_the_cost(
    rate: float,
    fleet: dict[str, int],
    spot_share: float,
    floor: int,
    ceiling: int,
    spot_usd: float,
) -> None:
    pools = L4, replace(L4_SPOT, price_usd_per_h=spot_usd), H100
    cluster = one_model(pools, spot_share=spot_share, min_instances=floor, max_instances=ceiling)
    got = ask(cluster, FULL, {"m": rate * EACH}, fleet)
    counts = dict(got.counts)
    if not got.causes:
        assert counts == fleet
        return
    found = cause(got)
    need = needed(cluster, rate * EACH)
    runs, number = capacity(cluster, fleet.items()), sum(fleet.values())
    firm = capacity(cluster, ((i, n) for i, n in fleet.items() if i != SPOT))
    keeps = (
        runs >= need * (1 - 1e-6)
        and number >= floor
        and firm >= (1 - spot_share) * need * (1 - 1e-6)
        and (not ceiling or number <= ceiling)
    )
    saves = got.now_usd_per_h - got.cost_usd_per_h
    if found.code is Code.SURGE:
        assert runs < need
    elif found.code is Code.FLOOR:
        assert number < floor and runs >= need * (1 - 1e-6)
    elif found.code is Code.REQUIRED:
        assert not keeps or found.because[0].code is Code.PROMISED_USEFUL_FLOOR
    elif found.code is Code.EXCESS:
        assert keeps and saves >= 0.0
        assert all(counts.get(i, 0) <= fleet.get(i, 0) for i in {*counts, *fleet})
    elif found.code is Code.EQUAL_COST:
        assert keeps and abs(saves) < 0.01 + 0.01 * got.cost_usd_per_h
    else:
        assert found.code is Code.CHEAPER and keeps
        assert found.quantities[0] == pytest.approx(saves) and saves > 0.0
