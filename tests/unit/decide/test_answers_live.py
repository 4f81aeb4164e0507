"""Planner answers that are late, missing, or overtaken by another request or a
change of the fleet.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason, codes_of
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.state.model_state import Hysteresis, Reversals
from tests.unit.decide.decide_catalogue import AGGREGATED as A
from tests.unit.decide.decide_catalogue import Planner, combo, combos, pool, service, simple
from tests.unit.decide.decide_world import T0, World, world
from topics.alerts import Alert
from topics.reason_codes import ReasonCode
from topics.supply import Price

ONE = pool(nodes=40, per_node=1, usd=2.0)


def test_an_urgent_plan_is_answered_while_a_full_one_is_pending() -> None:
    """A full solve of two minutes begins at t = 300; the load step at t = 310 does not wait for
    it."""
    w = world(lambda _m, t: 5.0 if t < 310 else 45.0, pools=(ONE,), full_s=120).run(315)
    assert Urgency.FULL in w.state.pending and w.assigned_count("chat") >= 2
    w.run(45)
    assert Urgency.FULL in w.state.pending and w.assigned_count("chat") >= 5
    first = next(d for d in w.of_kind("scale_out") if d.at_ms > T0 + 300_000)
    assert first.at_ms <= T0 + 313_000


def test_an_urgent_plan_is_answered_after_the_planner_failed_to_answer() -> None:
    """The solver restarts for 40 seconds during a surge: the controller repeats its request every
    second until an answer comes."""
    w = world(lambda _m, t: 5.0 if t < 100 else 45.0, pools=(ONE,), step_s=1).run(99)
    w.planner.broken.add(Urgency.URGENT)
    w.run(40)
    assert w.assigned_count("chat") == 1
    w.planner.broken.clear()
    w.run(2)
    assert w.assigned_count("chat") >= 5
    asked = [r.at_ms for r in w.requests(Urgency.URGENT) if r.at_ms > T0 + 100_000]
    assert all(later - earlier <= 1000 for earlier, later in pairwise(asked[:10]))


def test_a_failed_full_plan_is_stated_and_the_last_plan_stays_in_force() -> None:
    """INVARIANTS 18: the fleet stays as it is, a decision states the failure, and the controller
    requests another plan.
    """
    w = world(12.0, pools=(ONE,)).run(200)
    before = dict(w.applied)
    w.planner.broken.add(Urgency.FULL)
    w.run(500)
    assert w.applied == before
    holds = [d for d in w.of_kind("hold") if ReasonCode.NO_NEW_PLAN in d.codes]
    assert len(holds) == 1 and "the solver was restarted" in holds[0].reason


class Failing(Planner):
    """A planner whose answers contain no plan, only the urgency of the request."""

    def answer(self, request: PlanRequest, _: Cluster) -> PlanAnswer:
        return no_plan_answer(
            request, Reason(ReasonCode.SOLVER_ERROR, quoted=f"{request.urgency} failed")
        )


def test_the_reason_of_a_failed_full_plan_is_its_own() -> None:
    """An urgent and a full request fail in one tick. The answer to the urgent one comes first."""
    w = world(lambda _m, t: 5.0 if t < 310 else 45.0, pools=(ONE,)).run(309)
    w.planner = Failing(w.catalogue)
    for number in range(30):
        w.alerts.append(Alert(f"f{number}", "slow", "firing", w.now_ms))
        w.tick()
    (said,) = (d for d in w.of_kind("hold") if ReasonCode.NO_NEW_PLAN in d.codes)
    assert "no new plan (full failed)" in said.reason


def test_larger_demand_requests_a_plan_at_once_after_a_failed_smaller_one() -> None:
    """No nodes are left to serve 20 req/s. Ten seconds later demand is 200 req/s."""
    small = pool(nodes=1, per_node=1)
    w = world(lambda _m, t: 5.0 if t < 100 else 20.0 if t < 110 else 200.0, pools=(small,)).run(100)
    w.run(9)
    first = [r.at_ms - T0 for r in w.requests(Urgency.URGENT) if r.at_ms > T0 + 100_000]
    w.run(5)
    again = [r.at_ms - T0 for r in w.requests(Urgency.URGENT) if r.at_ms > T0 + 109_000]
    assert first and again and again[0] <= 113_000


def test_the_part_of_a_plan_that_no_longer_fits_is_planned_again() -> None:
    """One of two models grows during the full solve: the controller skips its part and requests a
    new plan for it. In the end both models have left the expensive pool.
    """
    near, far = pool("near", per_node=1, usd=2.0), pool("far", nodes=40, per_node=1, usd=3.0)
    catalogue = {
        m: combos(combo(m, [(A, 1, near, 1, 10.0)]), combo(m, [(A, 1, far, 1, 10.0)]))
        for m in ("chat", "code")
    }

    def rate(model: str, t: int) -> float:
        return 6.0 if model == "code" or t < 115 else 30.0

    services = (service("chat"), service("code"))
    w = world(rate, *services, pools=(near, far), catalogue=catalogue, full_s=20).run(100)
    w.prices[near.id] = Price(near.id, 9.0, w.now_ms)
    w.run(22)
    grown = [d for d in w.of_kind("scale_out") if d.model == "chat"]
    assert "is over" in grown[-1].reason  # the reason of the urgent plan, not of the full one
    left = [why for why in w.reasons.values() if ReasonCode.FLEET_CHANGED in codes_of(why)]
    assert len(left) == 1
    w.run(200)
    assert not w.rented(near.id) and w.ready("chat") == 4 and w.ready("code") == 1


def test_load_that_rises_during_a_full_solve_drops_its_removals() -> None:
    """The plan was made for 8 req/s, but 27 req/s arrive when its answer comes, so no instance
    leaves.
    """
    w = world(lambda _m, t: 30.0 if t < 100 else 8.0, pools=(ONE,), full_s=60)
    while not any(ReasonCode.EXCESS in codes_of(why) for why in w.reasons.values()):
        w.run(1)
        assert w.t_s < 900
    wanted = w.assigned_count("chat")
    w.rate = lambda _m, _t: 27.0
    w.run(70)
    assert w.of_kind("scale_in") == [] and w.assigned_count("chat") >= wanted


def test_an_answer_to_an_abandoned_request_is_ignored() -> None:
    """The controller abandons a request after two minutes."""
    w = world(5.0, answers=False).run(125)
    late = w.planner.answer(w.requests(Urgency.URGENT)[0], w.cluster)
    w.planner.answer = lambda *_: late  # type: ignore[method-assign]
    w.answers = True
    w.due = [(126, w.requests()[0])]
    w.run(1)
    assert w.assigned_count("chat") == 0 and w.decisions == []


def test_the_old_instances_stay_if_their_replacements_never_start() -> None:
    """No instance starts in the cheaper pool, so capacity stays the same."""
    near, far = pool("near", per_node=1, usd=2.0), pool("far", per_node=1, usd=3.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, near, 1, 10.0)]), combo("chat", [(A, 1, far, 1, 10.0)])
        )
    }
    w = world(12.0, pools=(near, far), catalogue=catalogue, stuck={far.id}).run(100)
    w.prices[near.id] = Price(near.id, 20.0, w.now_ms)

    def check(w: World) -> None:
        assert w.routed_req_per_s("chat") == 20.0

    w.run(900, check)
    assert w.of_kind("replan") and any(ReasonCode.NOT_READY in d.codes for d in w.decisions)


def test_decisions_state_every_reason_that_waited() -> None:
    """Two triggers arrive during a solve. One plan follows, and its decision states both."""
    near, far = pool("near", per_node=1, usd=2.0), pool("far", per_node=1, usd=3.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, near, 1, 10.0)]), combo("chat", [(A, 1, far, 1, 10.0)])
        )
    }
    w = world(12.0, pools=(near, far), catalogue=catalogue, full_s=30).run(290)
    w.run(15)  # the solve of the periodic plan is pending
    w.alerts.append(Alert("f", "high-latency", "firing", 1))
    w.run(2)
    w.prices[near.id] = Price(near.id, 20.0, w.now_ms)
    w.run(60)
    (moved,) = w.of_kind("replan")
    assert {ReasonCode.ALERT, ReasonCode.PRICE} <= {*moved.codes}


def test_a_small_price_change_does_not_move_the_fleet() -> None:
    """A price rises from 2.80 to 3.00 USD/h, but a move would cost more than it saves. The
    controller requests a plan, and the fleet stays the same.
    """
    near, far = pool("near", per_node=1, usd=2.0), pool("far", per_node=1, usd=3.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, near, 1, 10.0)]), combo("chat", [(A, 1, far, 1, 10.0)])
        )
    }
    w = world(12.0, pools=(near, far), catalogue=catalogue).run(100)
    before = dict(w.applied)
    w.prices[near.id] = Price(near.id, 3.05, w.now_ms)
    w.run(900)
    assert len(w.requests(Urgency.FULL)) >= 3 and w.applied == before


def test_an_addition_of_one_model_leaves_the_other_alone() -> None:
    services = (service("chat"), service("code"))
    catalogue = {m: simple(m, ONE) for m in ("chat", "code")}

    def rate(model: str, t: int) -> float:
        return 40.0 if model == "chat" and t >= 100 else 5.0

    w = world(rate, *services, pools=(ONE,), catalogue=catalogue).run(120)
    assert w.assigned_count("chat") >= 2 and w.assigned_count("code") == 1
    assert {d.model for d in w.decisions if d.at_ms > T0 + 90_000} == {"chat"}


def test_an_slo_that_no_combo_meets_is_stated_every_ten_minutes() -> None:
    """Demand is served, but predicted latencies miss the SLO, and so do requests. Every ten minutes
    one decision states this with figures; other plans do not repeat it. If requests meet the SLO,
    the prediction is stated only until they show it.
    """
    late = tuple(replace(made, ttft_ms=1700.0, meets_slo=False) for made in simple("chat", ONE))
    w = world(5.0, pools=(ONE,), catalogue={"chat": late}, missing={"chat": 0.3}).run(1300)
    said = w.of_kind("infeasible")
    assert len(w.requests()) > 5
    assert 2 <= len(said) <= 3
    assert "predicted TTFT 1700 ms of 1000 ms" in said[0].reason
    assert not said[0].reason.startswith("chat")
    met = world(5.0, pools=(ONE,), catalogue={"chat": late}).run(1300)
    assert all(d.at_ms < T0 + 60_000 for d in met.of_kind("infeasible"))
    fine = world(5.0, pools=(ONE,)).run(700)
    assert fine.of_kind("infeasible") == []


def test_a_maximum_lowered_while_scale_in_is_paused_adds_no_instance() -> None:
    """Six instances run, two are enough. The maximum drops to three 20 s before earlier reversals
    no longer count. One large node could replace all six, but demand does not need it.
    """
    small, large = pool("small", per_node=1, usd=2.0), pool("large", per_node=1, usd=12.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, small, 1, 10.0)]), combo("chat", [(A, 1, large, 1, 60.0)])
        )
    }
    least = service("chat", min_instances=6)
    w = world(8.0, least, pools=(small, large), catalogue=catalogue, step_s=1).run(200)
    limited = service("chat", min_instances=1, max_instances=3)
    w.cluster = replace(w.cluster, services=(limited,))
    chat = replace(
        w.state.models["chat"],
        hysteresis=Hysteresis(Reversals("out", (w.now_ms - 7_180_000,) * 9)),
    )
    w.state = replace(w.state, models={"chat": chat})
    w.run(500)
    assert any("chat" in request.scale_in_locked for request in w.requests(Urgency.FULL))
    assert w.assigned_count("chat") == 3 and len(w.of_kind("scale_in")) == 1
    w.run(400)  # the other instances have settled
    assert w.assigned_count("chat") == 2 and len(w.of_kind("scale_in")) == 2
    assert not w.of_kind("replan")
