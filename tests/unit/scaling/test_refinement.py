"""The global loop: when it asks, what it does with the answer, and what it throws away."""

from __future__ import annotations

from autoscaler.controller_state import Refinement

from autoscaler.domain.cluster import Policy
from autoscaler.effects import RefinementRequested
from tests.unit.decide.decide_world import AGGREGATED, World, combo, pool, service, table, world

DEAR, CHEAP = pool("dear", nodes=4, per_node=1, usd=9.0), pool("cheap", nodes=2, per_node=4)
OLD = combo("chat", [(AGGREGATED, 1, DEAR, 1, 10.0)])
NEW = combo("chat", [(AGGREGATED, 4, CHEAP, 1, 30.0)])
POLICY = Policy(global_window_s=300)


def refined(*targets: tuple[str, str, int], **switches: object) -> World:
    """20 requests/s on three single-GPU nodes at 27 USD/h; `targets` is what the solver says."""
    made = world(
        20.0,
        service(),
        pools=(DEAR, CHEAP),
        policy=POLICY,
        tables={"chat": table("chat", OLD)},
        answer=lambda asked: Refinement(asked.request, targets),
        **switches,
    )
    made.run(200)
    made.tables_due = (table("chat", OLD, NEW),)
    return made


def requests(w: World) -> list[RefinementRequested]:
    return [e for e in w.asked if isinstance(e, RefinementRequested)]


def test_it_asks_after_a_stable_window_with_demand_and_what_runs() -> None:
    """The whole problem is in the request: rate, lengths, running combos, scope."""
    w = refined()
    assert requests(w) == []
    w.run(400)
    asked = requests(w)[0]
    assert asked.demands[0].req_per_s == 20.0 and asked.scope == ("chat",)
    assert asked.running == (("chat", OLD.id, 3),)


def test_a_saving_answer_is_carried_out_make_before_break() -> None:
    """One large for three small: routed capacity covers demand all the while, cost falls."""
    w = refined(("chat", NEW.id, 1))

    def check(w: World) -> None:
        assert w.routed_req_per_s("chat") * 0.8 >= 20.0

    w.run(700, check)
    (decision,) = w.of_kind("refine")
    assert decision.cost_delta_usd_per_h == 8.0 - 27.0
    assert dict(decision.change) == {NEW.id: 1, OLD.id: -3}
    assert w.routed_req_per_s("chat") == 30.0 and w.wanted("chat") == 1
    assert w.plans[-1].strategy == "refined" or w.plans[-2].strategy == "refined"


def test_an_answer_that_saves_less_than_its_change_costs_is_dropped() -> None:
    """24 USD/h for 27 saves 0.25 USD in five minutes; starting it costs more."""
    small = pool("small", nodes=4, per_node=1, usd=8.9)
    other = combo("chat", [(AGGREGATED, 1, small, 1, 10.0)])
    w = world(
        20.0,
        pools=(DEAR, small),
        policy=POLICY,
        tables={"chat": table("chat", OLD)},
        answer=lambda asked: Refinement(asked.request, (("chat", other.id, 3),)),
    )
    w.tables_due = (table("chat", OLD, other),)
    w.tables["chat"] = table("chat", OLD, other)
    w.run(1)
    w.run(900)
    assert requests(w) and w.of_kind("refine") == []


def test_an_answer_that_would_not_hold_the_demand_is_dropped() -> None:
    """One of 10 requests/s for a demand of 20: never."""
    w = refined(("chat", OLD.id, 1)).run(700)
    assert requests(w) and w.of_kind("refine") == [] and w.wanted("chat") == 3


def test_an_answer_to_another_question_is_dropped() -> None:
    """The request number does not match: nothing happens."""
    w = refined()
    w.answer = lambda asked: Refinement(asked.request + 1, (("chat", NEW.id, 1),))
    w.run(500)
    assert requests(w) and w.of_kind("refine") == []


def test_a_time_out_keeps_the_last_good_plan_and_says_so() -> None:
    """INVARIANTS 18: nothing changes, a decision states it, and it asks again a period later."""
    w = refined()
    w.answer = lambda asked: Refinement(asked.request, timed_out=True)
    w.run(1200)
    assert len(requests(w)) >= 2 and w.wanted("chat") == 3
    assert any("last good plan stands" in d.reason for d in w.of_kind("hold"))


def test_a_plan_without_room_beside_the_old_one_is_said_and_not_half_done() -> None:
    """Two of the new are wanted, one fits: none is started."""
    w = refined(("chat", NEW.id, 3)).run(700)
    assert w.of_kind("refine") == [] and w.wanted("chat") == 3
    assert any("needs room" in d.reason for d in w.decisions)


def test_if_the_new_ones_never_come_up_the_old_ones_stay() -> None:
    """The refined pool does not start anything: capacity stays what it was."""
    w = refined(("chat", NEW.id, 1), stuck={CHEAP.id})

    def check(w: World) -> None:
        assert w.routed_req_per_s("chat") == 30.0

    w.run(2500, check)
    assert w.of_kind("refine") and w.ready("chat") == 3


def test_no_refinement_while_load_moves() -> None:
    """5 and 30 requests/s in turn: the fleet is sized for it, yet load is not stable."""
    w = world(
        lambda _m, t: 5.0 + 25.0 * ((t // 250) % 2),
        pools=(pool(nodes=8),),
        policy=POLICY,
    )
    w.run(1500)
    assert requests(w) == []
