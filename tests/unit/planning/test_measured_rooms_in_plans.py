"""Plans use KV caches that engines had at their starts."""

from __future__ import annotations

from autoscaler.domain.cluster import Market
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.workload import Demand
from autoscaler.performance import catalog
from autoscaler.performance.measured_rooms import memory_digest
from autoscaler.planning.capacity_provenance import kv_caches
from autoscaler.planning.planner import explained_plan
from autoscaler.planning.planner_messages import PlanRequest
from autoscaler.simulation.strategies.registry import STRATEGIES
from tests.unit.planning.answer_requests import FULL, L4, LLAMA, PROFILE, URGENT, ask, one_model
from tests.unit.planning.planning_clusters import CONVERSATION, pool

L40S = pool("r", "l40s", "L40S", 1, 12, Market.ON_DEMAND, 30.0)
CLUSTER = one_model((L4, L40S), max_len_tokens=16_384)
Rooms = tuple[tuple[str, tuple[MeasuredRoom, ...]], ...]


def on_l4(**figures: float) -> Rooms:
    digest = memory_digest(catalog.model(LLAMA))
    return (("m", (MeasuredRoom("L4", 1, digest, **figures),)),)  # type: ignore[arg-type]


def pools(rooms: Rooms = ()) -> set[str]:
    """The pools on which the plan starts instances."""
    got = ask(CLUSTER, FULL, {"m": 2.0}, rooms=rooms)
    return {combo_id.partition("@")[2] for combo_id, _ in got.change.starts}


def test_a_slice_on_which_an_engine_refused_to_start_is_not_planned() -> None:
    assert pools() == {L4.id}
    refused = on_l4(refused_len=16_384)
    assert pools(refused) == {L40S.id}
    assert pools(on_l4(refused_len=32_768)) == {L4.id}  # says nothing about shorter requests
    alone = one_model((L4,), max_len_tokens=16_384)
    for urgency in (URGENT, FULL):
        assert not ask(alone, urgency, {"m": 2.0}, rooms=refused).change.starts


def test_capacity_follows_the_measured_room_and_the_plan_names_its_source() -> None:
    found = {}
    for rooms in ((), on_l4(kv_tokens=17_000.0, request_tokens=16_384)):
        asked = PlanRequest(
            1, FULL, 0, (Demand("m", 2.0, CONVERSATION),), scope=("m",), rooms=rooms
        )
        made = explained_plan(asked, CLUSTER, PROFILE, STRATEGIES["shoal"], "m")
        assert made is not None
        problem, plan = made
        (cache,) = kv_caches(problem, plan)
        (combo,) = (target.combo for target in plan.targets if target.count)
        found[cache.is_measured] = cache.gpu, cache.tokens, combo.req_per_s
    assert found[True][:2] == ("L4", 17_000)
    assert found[False][0] == "L4" and found[False][1] > 25_000
    assert found[True][2] < 0.95 * found[False][2]
