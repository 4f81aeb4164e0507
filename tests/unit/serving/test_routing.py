"""Routing of one model: what is applied, refused, ejected and taken back."""

from __future__ import annotations

from autoscaler.serving.routing import PROBE_FIRST_MS, PROBE_LAST_MS, Applied, Pick, Router
from topics.records import Endpoint, RouteGroup, Routes


def at(name: str) -> Endpoint:
    return Endpoint(name, f"127.0.0.1:{1000 + sum(map(ord, name))}")


def routes(*groups: RouteGroup, generation: int = 1, token: int = 1) -> Routes:
    return Routes("chat", generation, token, 0, 2000.0, 60.0, groups)


def router(*groups: RouteGroup) -> Router:
    made = Router("chat")
    made.apply(routes(*groups))
    return made


A, B, C, D = at("a"), at("b"), at("c"), at("d")


def test_no_routes_is_no_pick() -> None:
    assert Router("chat").pick() is None


def test_lower_leader_or_generation_is_refused() -> None:
    """A leader that was replaced cannot bring its routes back, whatever generation it counts."""
    here = router()
    assert here.apply(routes(generation=5, token=3)) is Applied.CHANGED
    assert here.apply(routes(generation=4, token=3)) is Applied.STALE
    assert here.apply(routes(generation=99, token=2)) is Applied.STALE
    assert here.apply(routes(generation=5, token=3)) is Applied.SAME
    assert here.apply(routes(generation=1, token=4)) is Applied.CHANGED
    assert here.routes is not None
    assert here.routes.leader_token == 4


def test_stale_routes_leave_the_choice_unchanged() -> None:
    here = router()
    here.apply(routes(RouteGroup("g", 1.0, (A,)), generation=2))
    here.apply(routes(RouteGroup("g", 1.0, (B,)), generation=1))
    assert here.pick() == Pick("g", A, False)


def test_weights_two_to_one_interleave() -> None:
    """Smooth: a, b, a and not a, a, b."""
    here = router(RouteGroup("g", 2.0, (A,)), RouteGroup("h", 1.0, (B,)))
    picked = [pick.endpoint for _ in range(6) if (pick := here.pick())]
    assert picked == [A, B, A, A, B, A]


def test_round_robin_inside_a_group() -> None:
    here = router(RouteGroup("g", 1.0, (A, B, C)))
    assert [pick.endpoint for _ in range(4) if (pick := here.pick())] == [A, B, C, A]


def test_prefill_first_then_decode_of_the_same_group() -> None:
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C)))
    assert here.pick() == Pick("g", A, True)
    assert [here.pick_decode("g") for _ in range(3)] == [B, C, B]


def test_decode_that_left_the_routes_during_the_prefill_gets_nothing() -> None:
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C)))
    here.pick()
    here.apply(routes(RouteGroup("g", 1.0, prefill=(A,), decode=(C,)), generation=2))
    assert here.pick_decode("g") == C
    here.apply(routes(RouteGroup("h", 1.0, (D,)), generation=3))
    assert here.pick_decode("g") is None


def test_a_pair_without_a_decode_instance_is_passed_over() -> None:
    here = router(RouteGroup("g", 9.0, prefill=(A,), decode=(B,)), RouteGroup("h", 1.0, (C,)))
    here.eject(B, 0)
    assert {pick.endpoint for _ in range(5) if (pick := here.pick())} == {C}


def test_zero_weight_serves_only_when_nothing_else_can() -> None:
    here = router(RouteGroup("g", 1.0, (A,)), RouteGroup("h", 0.0, (B,)))
    assert {pick.endpoint for _ in range(5) if (pick := here.pick())} == {A}
    here.eject(A, 0)
    assert here.pick() == Pick("h", B, False)


def test_excluded_instances_are_not_tried_again() -> None:
    here = router(RouteGroup("g", 1.0, (A, B)))
    assert here.pick(frozenset({A})) == Pick("g", B, False)
    assert here.pick(frozenset({A, B})) is None


def test_probes_come_later_and_later_and_readmission_ends_them() -> None:
    here = router(RouteGroup("g", 1.0, (A, B)))
    assert here.eject(A, 0)
    assert not here.eject(A, 0)
    assert here.due_probes(PROBE_FIRST_MS - 1) == ()
    assert here.due_probes(PROBE_FIRST_MS) == (A,)
    assert here.due_probes(PROBE_FIRST_MS * 3 - 1) == ()
    now, gaps = PROBE_FIRST_MS, []
    for _ in range(10):
        waited = 0
        while not here.due_probes(now + waited):
            waited += 500
        now += waited
        gaps.append(waited)
    assert gaps[0] == 2000
    assert gaps[-1] == PROBE_LAST_MS
    assert here.readmit(A)
    assert not here.readmit(A)
    assert {pick.endpoint for _ in range(4) if (pick := here.pick())} == {A, B}


def test_an_instance_that_came_back_at_another_address_is_not_ejected() -> None:
    here = router(RouteGroup("g", 1.0, (A,)))
    here.eject(A, 0)
    moved = Endpoint("a", "127.0.0.1:9")
    here.apply(routes(RouteGroup("g", 1.0, (moved,)), generation=2))
    assert here.pick() == Pick("g", moved, False)
    assert here.ejected() == frozenset()


def test_ejection_survives_routes_that_still_name_the_instance() -> None:
    here = router(RouteGroup("g", 1.0, (A, B)))
    here.eject(A, 0)
    here.apply(routes(RouteGroup("g", 2.0, (A, B)), generation=2))
    assert {pick.endpoint for _ in range(4) if (pick := here.pick())} == {B}
