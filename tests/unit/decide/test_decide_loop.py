"""Decisions over a small simulated fleet: which instances start and stop, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest

from autoscaler.decide import Observation, decide, restore
from autoscaler.domain.cluster import Mode
from autoscaler.planning.planner_messages import Urgency
from autoscaler.state.effects import PublishAssignment, PublishLedger, SolveRequested
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import T0, world
from topics.reason_codes import ReasonCode


def test_a_request_without_an_answer_is_repeated_and_no_instance_starts() -> None:
    """The controller abandons a request after two minutes and sends it again."""
    w = world(5.0, answers=False).run(270)
    numbers = [e.request.number for e in w.effects if isinstance(e, SolveRequested)]
    urgent = [
        e.request.at_ms
        for e in w.effects
        if isinstance(e, SolveRequested) and e.request.urgency is Urgency.URGENT
    ]
    assert numbers == sorted(set(numbers))
    assert [later - earlier for earlier, later in pairwise(urgent)] == [120_000, 120_000]
    assert w.assigned_count("chat") == 0 and w.decisions == []


def test_the_minimum_starts_at_once_without_traffic() -> None:
    """With `min: 2`, the controller requests a plan in the first tick and
    applies it in the second.
    """
    w = world(0.0, service(min_instances=2)).run(1)
    assert [r.urgency for r in w.requests()] == [Urgency.URGENT]
    w.run(1)
    assert w.assigned_count("chat") == 2
    assert w.decisions[0].kind == "scale_out" and ReasonCode.FLOOR in w.decisions[0].codes


def test_min_zero_runs_nothing_until_the_first_request_wakes_it() -> None:
    """A model at zero costs nothing. Its first arrival starts a combo with the next plan."""
    w = world(lambda _m, t: 1.0 if t == 30 else 0.0, service(min_instances=0)).run(29)
    assert w.assigned_count("chat") == 0 and w.requests() == []
    w.run(1)
    assert len(w.requests(Urgency.URGENT)) == 1
    w.run(1)
    assert w.assigned_count("chat") == 1 and ReasonCode.WAKE in w.decisions[-1].codes


def test_instances_are_routed_only_when_ready_and_weighted_by_goodput() -> None:
    """Routes are empty until the instance is ready. Its weight is its goodput."""
    w = world(5.0).run(50)
    assert w.routes["chat"].groups == ()
    w.run(20)
    (group,) = w.routes["chat"].groups
    assert group.weight == 10.0 and len(group.aggregated) == 1


def test_a_ramp_scales_out_with_a_reason_and_the_price_of_new_nodes() -> None:
    """Load rises from 5 to 30 requests/s on combos of 10. Instances are added, with figures and
    units in the reason.
    """
    w = world(lambda _m, t: 5.0 if t < 100 else 30.0).run(400)
    assert w.ready("chat") == 4  # 30 / 0.8 = 37.5 requests/s of raw capacity
    out = [d for d in w.of_kind("scale_out") if d.at_ms >= T0 + 100_000]
    assert (
        "req/s is over 80% of capacity 10.0;" in out[0].reason
        and "serving in ~60 s" in out[0].reason
    )
    assert out[0].applied and 0 < out[0].at_ms - out[0].over_since_ms <= 3_000
    assert (
        sum(d.cost_delta_usd_per_h for d in w.decisions) == 8.0
    )  # all four instances fit on one node


def test_missed_slos_at_a_planned_load_derate_capacity_and_add_an_instance() -> None:
    """At 15.5 of the planned 16 req/s half of all requests miss the SLO. Capacity is derated to 15%
    below that load. The shortfall adds one instance within 45 s.
    """
    w = world(15.5, pools=(pool(nodes=40, per_node=1, usd=2.0),)).run(600)
    assert w.assigned_count("chat") == 2
    w.missing["chat"] = 0.5
    w.run(45)
    assert w.assigned_count("chat") == 3
    assert w.state.models["chat"].capacity.derate == pytest.approx(0.85 * 15.5 / 16.0, abs=0.01)
    step = w.of_kind("scale_out")[-1]
    assert ReasonCode.OVERESTIMATED in step.codes
    triggers = [why.code for p in w.state.pending.values() for why in p.reasons]
    assert ReasonCode.SLO_MISSED in triggers or any(
        r.urgency is Urgency.FULL for r in w.requests()[-3:]
    )
    w.run(2500)
    assert w.routed_req_per_s("chat") <= 40.0  # 15.5 / 0.8 / 0.5: derating ends at one half


def test_waiting_requests_count_as_demand() -> None:
    """8.15 req/s arrive and 8 req/s are planned, which is within noise. But 400 requests are in
    flight, while the rate explains only 35: the excess triggers a plan.
    """
    w = world(lambda _m, t: 7.0 if t < 400 else 8.15).run(600)
    assert w.assigned_count("chat") == 1
    w.in_flight["chat"] = 50  # 35 by Little's law, and a random queue
    w.run(60)
    assert w.assigned_count("chat") == 1
    w.in_flight["chat"] = 400
    w.run(3)
    assert w.assigned_count("chat") == 2
    assert "400 requests in flight, but 8.2 req/s explain only 35" in w.decisions[-1].reason
    w.run(20)
    assert w.assigned_count("chat") == 2  # Starting instances count as capacity.


def test_missed_slos_at_a_low_load_add_no_capacity() -> None:
    """All requests miss the SLO at 2 of 10 requests/s, so more engines would not help."""
    w = world(2.0, missing={"chat": 1.0}).run(1500)
    assert w.assigned_count("chat") == 1


def test_a_surge_larger_than_the_last_addition_does_not_wait_for_the_cool_down() -> None:
    """30 requests/s, then 300 half a minute later. The cool-down lasts 120 s."""
    w = world(lambda _m, t: 5.0 if t < 100 else 30.0 if t < 130 else 250.0).run(135)
    late = [d for d in w.of_kind("scale_out") if d.at_ms >= T0 + 130_000]
    assert late and late[0].at_ms <= T0 + 134_000


def test_an_infeasible_surge_is_stated_once_and_not_retried_in_every_tick() -> None:
    """The pool has one GPU. The surge leads to one "infeasible" decision, and assignments stay
    within the pool.
    """
    small = pool(nodes=1, per_node=1)
    w = world(lambda _m, t: 5.0 if t < 90 else 50.0, pools=(small,)).run(300)
    assert w.kinds().count("infeasible") == 1
    assert w.assigned_count("chat") == 1
    assert w.state.models["chat"].infeasibility.has_unserved


def test_missing_capacity_that_waits_for_approval_is_no_infeasible_demand() -> None:
    """Nodes are free, but the addition waits for a person."""
    w = world(lambda _m, t: 5.0 if t < 90 else 50.0, service("chat", mode=Mode.APPROVE))
    w.run(300)
    state = w.state.models["chat"]
    assert (
        state.advisory.proposal is not None
        and state.infeasibility.retry_at_ms
        and not state.infeasibility.has_unserved
    )


def test_full_plans_record_the_request_lengths_that_they_assume() -> None:
    """Later lengths are compared with these."""
    w = world(5.0).run(320)
    assert w.requests(Urgency.FULL)
    assert w.state.full.last.lengths == {"chat": w.state.models["chat"].estimate.lengths}


def test_a_promise_that_cannot_be_kept_is_stated_although_demand_is_served() -> None:
    """One node cannot survive its own loss. A decision states this at once and
    every ten minutes.
    """
    alone, two = pool(nodes=1, per_node=1), pool(nodes=2, per_node=1)
    w = world(5.0, service(min_instances=1, survive="one-node"), pools=(alone,)).run(900)
    assert w.assigned_count("chat") == 1
    said = w.of_kind("infeasible")
    assert [(d.at_ms - T0) // 60_000 for d in said] == [0, 10]
    assert all(d.codes == (ReasonCode.PROMISED_SURVIVAL, ReasonCode.NOT_POSSIBLE) for d in said)
    kept = world(5.0, service(min_instances=1, survive="one-node"), pools=(two,)).run(300)
    assert kept.assigned_count("chat") == 2
    assert kept.of_kind("infeasible") == []


def test_the_maximum_holds_under_any_load() -> None:
    """`max: 2` under a load that needs more."""
    w = world(lambda _m, t: 5.0 if t < 90 else 90.0, service(max_instances=2)).run(300)
    assert w.assigned_count("chat") == 2
    (said,) = w.of_kind("infeasible")
    assert said.codes == (ReasonCode.UNSERVED, ReasonCode.CEILING)


def test_mode_recommend_states_decisions_and_publishes_no_assignment_or_route() -> None:
    """Its decisions have `applied` False."""
    quiet = service(mode=Mode.RECOMMEND)
    w = world(lambda _m, t: 5.0 if t < 100 else 30.0, quiet).run(1500)
    assert w.of_kind("scale_out") and not any(d.applied for d in w.decisions)
    assert w.applied == {} and w.routes == {} and w.plans == []
    assert len(w.decisions) < 10


def test_a_mixed_cluster_acts_only_for_models_in_mode_act() -> None:
    """One model is in mode act (20 / 0.8 = 25 req/s raw, three combos of 10). The other is in mode
    recommend.
    """
    where = pool()
    both = (service("chat"), service("code", mode=Mode.APPROVE))
    catalogue = {m: simple(m, where) for m in ("chat", "code")}
    w = world(20.0, *both, pools=(where,), catalogue=catalogue).run(60)
    assert w.assigned_count("chat") == 3 and w.assigned_count("code") == 0
    assert {d.applied for d in w.decisions if d.model == "code"} == {False}


def test_deciding_is_deterministic_and_does_not_change_its_inputs() -> None:
    """Two calls with equal state and observation have equal effects."""
    w = world(lambda _m, t: 5.0 if t < 50 else 40.0).run(60)
    seen = Observation(statuses=dict(w.statuses))
    before = w.state
    first = decide(w.state, seen, w.cluster, w.now_ms + 1000)
    second = decide(w.state, seen, w.cluster, w.now_ms + 1000)
    assert first == second and w.state is before


def test_a_tick_without_a_change_publishes_nothing() -> None:
    """Under steady load the controller requests one plan per period and changes nothing."""
    w = world(7.0).run(200)
    count = len(w.effects)
    w.run(800)
    assert all(isinstance(effect, (SolveRequested, PublishLedger)) for effect in w.effects[count:])
    asked = [r.at_ms - T0 for r in w.requests(Urgency.FULL)]
    assert asked == [300_000, 600_000, 900_000]


def test_a_new_leader_publishes_every_key_again_under_its_token() -> None:
    """Every assignment and route gets a higher generation; its content is unchanged."""
    w = world(20.0).run(200)
    before = dict(w.applied)
    w.restart_controller()
    effects = w.tick()
    again = {e.record.node: e.record for e in effects if isinstance(e, PublishAssignment)}
    assert set(again) == set(before)
    for node, record in again.items():
        assert record.leader_token == 2 and record.generation == before[node].generation + 1
        assert record.instances == before[node].instances


def test_a_restart_causes_neither_scale_out_nor_scale_in() -> None:
    """The state is rebuilt under steady load. The only decision is "rebuilt", and decision numbers
    continue.
    """
    w = world(20.0).run(300)
    wanted, number = w.assigned_count("chat"), w.decisions[-1].number
    w.restart_controller()
    w.windows.__init__(1800)  # type: ignore[misc]  # no replay of the windows either
    w.run(300)
    assert [d.kind for d in w.decisions if d.number > number] == ["rebuilt"]
    assert w.assigned_count("chat") == wanted


def test_serials_are_not_used_twice_after_a_restart() -> None:
    """Instances that start after a rebuild get new serials."""
    w = world(lambda _m, t: 5.0 if t < 200 else 60.0).run(150)
    old = {i.instance for a in w.applied.values() for i in a.instances}
    w.restart_controller()
    w.run(200)
    new = {i.instance for a in w.applied.values() for i in a.instances}
    assert old < new


def test_the_serial_of_a_group_that_is_gone_is_not_used_again_after_a_restart() -> None:
    """Only the last plan still names the group. Otherwise an executor would take a new instance of
    that name for the old one.
    """
    w = world(lambda _m, t: 45.0 if t < 300 or t > 1600 else 5.0)
    names: set[str] = set()
    w.run(1500, lambda w: names.update(g.name for g in w.state.groups))
    kept = {g.name for g in w.state.groups}
    assert len(kept) < len(names)
    w.restart_controller()
    w.run(300)
    assert not {g.name for g in w.state.groups} & (names - kept)


def test_rebuilding_from_nothing_is_a_first_start() -> None:
    """The topics are empty, so no decision is published and no instance is planned."""
    w = world(1.0)
    state = restore(w.cluster, {}, {}, {}, [], T0)
    assert state.groups == () and state.term.announce is None and state.numbers.group == 1


def test_a_higher_priority_gets_the_last_gpu() -> None:
    """Two models need the only GPU."""
    small = pool(nodes=1, per_node=1)
    both = (service("aaa", min_instances=1), service("zzz", min_instances=1, priority=5))
    catalogue = {m: simple(m, small) for m in ("aaa", "zzz")}
    w = world(1.0, *both, pools=(small,), catalogue=catalogue).run(5)
    assert (w.assigned_count("aaa"), w.assigned_count("zzz")) == (0, 1)
