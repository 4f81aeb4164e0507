"""The controller learns the KV cache of a model's engines from their starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import fleet_status
from tests.unit.decide.decide_catalogue import GPU, LLAMA, pool, service, simple
from tests.unit.decide.decide_world import World
from topics.engine_start import EngineStart
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)
LENGTH = 32_768


def stated(tokens: int) -> EngineStart:
    return EngineStart(kv_tokens=tokens, request_tokens=LENGTH, max_len=LENGTH)


def steady(rate: float = 22.0, **changes: object) -> World:
    """Three instances of 10 requests/s, which start in 60 s."""
    made = service(max_len_tokens=LENGTH, **changes)
    cluster = Cluster((ONE,), (made,))
    return World(cluster, {"chat": simple("chat", ONE)}, lambda _m, _t: rate)


def learnt(w: World) -> tuple[MeasuredRoom, ...]:
    return w.state.models["chat"].learnt.rooms


def codes(w: World) -> list[str]:
    ours = {ReasonCode.KV_MEASURED, ReasonCode.START_REFUSED, ReasonCode.KV_IMPOSSIBLE}
    return [code for one in w.decisions for code in one.codes if code in ours]


def test_requests_for_plans_carry_the_measured_room_and_the_next_leader_keeps_it() -> None:
    w = steady()
    w.starts[ONE.id] = stated(60_000)
    w.run(150)
    (room,) = learnt(w)
    assert (room.gpu, room.gpus, room.kv_tokens) == (GPU.name, 1, 60_000)
    assert codes(w) == [ReasonCode.KV_MEASURED]
    shown = fleet_status(w.state, Observation(statuses=dict(w.statuses)), w.cluster, w.now_ms)
    assert shown.models[0].kv_cache == "60,000 tokens on 1xL40S (measured at a start)"
    w.restart_controller()
    w.starts.clear()
    w.rate = lambda _m, _t: 70.0
    w.effects.clear()
    w.run(60)
    assert learnt(w) == (room,)
    assert w.requests()[-1].rooms == (("chat", (room,)),)


def test_without_a_report_the_status_says_predicted() -> None:
    w = steady().run(150)
    shown = fleet_status(w.state, Observation(statuses=dict(w.statuses)), w.cluster, w.now_ms)
    assert learnt(w) == () and shown.models[0].kv_cache.endswith("on 1xL40S (predicted)")


def test_one_wrong_report_among_three_changes_nothing() -> None:
    w = steady()
    w.starts[ONE.id] = stated(60_000)
    w.run(150)
    nodes = sorted(w.statuses)
    assert len(nodes) >= 3
    for lie in (40_000, 150_000):
        w.starts[nodes[0]] = stated(lie)
        w.run(30)
        assert [room.kv_tokens for room in learnt(w)] == [60_000]


def test_small_differences_between_starts_change_no_plan_input() -> None:
    w = steady()
    w.starts[ONE.id] = stated(60_000)
    w.run(150)
    w.starts[ONE.id] = stated(60_900)
    w.run(30)
    assert [room.kv_tokens for room in learnt(w)] == [60_000]
    w.starts[ONE.id] = stated(55_000)
    w.run(30)
    assert [room.kv_tokens for room in learnt(w)] == [55_000]


@pytest.mark.parametrize("tokens", [16, 10**9])
def test_an_impossible_report_is_stated_once_and_ignored(tokens: int) -> None:
    w = steady()
    w.starts[ONE.id] = stated(tokens)
    w.run(200)
    assert learnt(w) == ()
    assert codes(w) == [ReasonCode.KV_IMPOSSIBLE]


def test_a_refused_start_is_learnt_at_once_and_kept_until_the_settings_change() -> None:
    w = steady()
    w.failing.add(ONE.id)
    w.starts[ONE.id] = EngineStart(kv_bytes=10**9, refused="too_long", max_len=LENGTH)
    w.run(45)
    (room,) = learnt(w)
    assert room.refused_len == LENGTH
    assert codes(w) == [ReasonCode.START_REFUSED]
    w.restart_controller()
    w.run(20)
    assert learnt(w) == (room,)
    assert w.requests()[-1].rooms == (("chat", (room,)),)
    # Other arguments change the engine's name.
    (declared,) = w.cluster.services
    w.cluster = replace(w.cluster, services=(replace(declared, engine="other"),))
    w.run(11)
    assert learnt(w) == ()


def test_reports_of_engines_with_earlier_settings_do_not_count() -> None:
    w = steady()
    w.starts[ONE.id] = stated(60_000)
    w.run(150)
    (declared,) = w.cluster.services
    spec = engine_memory(["--gpu-memory-utilization=0.6"]).apply_to(LLAMA)
    w.cluster = replace(w.cluster, services=(replace(declared, architecture=spec),))
    w.run(30)
    assert learnt(w) == ()


def test_an_engine_that_started_refutes_a_refusal_by_another() -> None:
    w = steady()
    w.starts[ONE.id] = stated(60_000)
    w.run(150)
    one = sorted(i.instance for s in w.statuses.values() for i in s.instances)[0]
    w.failing.add(one)
    w.starts[one] = EngineStart(kv_bytes=10**9, refused="too_long", max_len=LENGTH)
    w.run(30)
    assert [room.refused_len for room in learnt(w)] == [0]
