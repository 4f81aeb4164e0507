"""Routing of one model: accepted and refused routes, ejected and readmitted endpoints."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.serving.ejections import PROBE_FIRST_MS, PROBE_LAST_MS
from autoscaler.serving.request_router import Pick, Router, RouteUpdate
from autoscaler.serving.routing_policies import (
    AcrossCombos,
    RequestTraits,
    RoutingPolicy,
    WithinCombo,
)
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


def test_routes_of_a_lower_leader_or_generation_are_refused() -> None:
    """A former leader cannot bring its routes back, whatever generation they have."""
    here = router()
    assert here.apply(routes(generation=5, token=3)) is RouteUpdate.CHANGED
    assert here.apply(routes(generation=4, token=3)) is RouteUpdate.STALE
    assert here.apply(routes(generation=99, token=2)) is RouteUpdate.STALE
    assert here.apply(routes(generation=5, token=3)) is RouteUpdate.SAME
    assert here.apply(routes(generation=1, token=4)) is RouteUpdate.CHANGED
    assert here.routes is not None
    assert here.routes.leader_token == 4


def test_stale_routes_leave_the_choice_unchanged() -> None:
    here = router()
    here.apply(routes(RouteGroup("g", 1.0, (A,)), generation=2))
    here.apply(routes(RouteGroup("g", 1.0, (B,)), generation=1))
    assert here.pick() == Pick("g", A, False)


def test_weights_two_to_one_interleave() -> None:
    """The order is smooth: a, b, a instead of a, a, b."""
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


def test_a_decode_instance_that_left_the_routes_gets_no_request() -> None:
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C)))
    here.pick()
    here.apply(routes(RouteGroup("g", 1.0, prefill=(A,), decode=(C,)), generation=2))
    assert here.pick_decode("g") == C
    here.apply(routes(RouteGroup("h", 1.0, (D,)), generation=3))
    assert here.pick_decode("g") is None


def test_a_pair_without_a_decode_instance_is_skipped() -> None:
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


def test_probe_intervals_grow_until_readmission() -> None:
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


def test_tokens_are_shared_by_weight_if_the_policy_counts_tokens() -> None:
    """An endpoint that got all long requests gets fewer requests until the token shares agree."""
    here = Router("chat", policy=RoutingPolicy(AcrossCombos.TOKENS))
    here.apply(routes(RouteGroup("g", 1.0, (A,)), RouteGroup("h", 1.0, (B,))))
    sums = {A: 0, B: 0}
    for number in range(400):
        tokens = 4000 if number % 2 == 0 else 100  # round robin would send all long requests to A
        picked = here.pick(want=RequestTraits(tokens))
        assert picked is not None
        sums[picked.endpoint] += tokens
    assert abs(sums[A] - sums[B]) <= 2 * 4000


def test_equal_shares_ignore_weights() -> None:
    here = Router("chat", policy=RoutingPolicy(AcrossCombos.EQUAL))
    here.apply(routes(RouteGroup("g", 9.0, (A,)), RouteGroup("h", 1.0, (B,))))
    assert [pick.endpoint for _ in range(4) if (pick := here.pick())] == [A, B, A, B]


def by_prefix(*groups: RouteGroup) -> Router:
    here = Router("chat", policy=RoutingPolicy(inside=WithinCombo.PREFIX))
    here.apply(routes(*groups))
    return here


def sent(here: Router, *blocks: int, ends: bool = True) -> Endpoint:
    pick = here.pick(want=RequestTraits(blocks=blocks))
    assert pick is not None
    if ends:
        here.release(pick.endpoint)
    return pick.endpoint


def test_a_prompt_goes_to_the_instance_with_its_longest_beginning() -> None:
    """Also if each instance is a combo of its own."""
    for groups in (
        (RouteGroup("g", 1.0, (A, B, C)),),
        tuple(RouteGroup(end.instance, 1.0, (end,)) for end in (A, B, C)),
    ):
        here = by_prefix(*groups)
        # Conversations with one system prompt, block 0, spread; their turns stay together.
        homes = {chat: sent(here, 0, chat, chat + 1) for chat in range(100, 1300, 10)}
        assert set(homes.values()) == {A, B, C}
        assert all(sent(here, 0, chat, chat + 1, chat + 2) == homes[chat] for chat in homes)


def test_beginnings_lead_to_instances_that_only_prefill_too() -> None:
    """A pair of prefill and decode, and an instance that serves whole requests."""
    here = by_prefix(
        RouteGroup("pair", 2.0, prefill=(A, B), decode=(D,)), RouteGroup("whole", 1.0, (C,))
    )
    homes = {chat: sent(here, 0, chat, chat + 1) for chat in range(100, 1300, 10)}
    assert set(homes.values()) == {A, B, C}
    assert all(sent(here, 0, chat, chat + 1, chat + 2) == homes[chat] for chat in homes)


def test_a_pair_without_decode_gets_no_prompt_by_prefix() -> None:
    here = by_prefix(
        RouteGroup("pair", 1.0, prefill=(A,), decode=(D,)), RouteGroup("whole", 1.0, (C,))
    )
    homes = {chat: sent(here, chat, chat + 1) for chat in range(100, 400, 10)}
    assert A in homes.values()
    here.eject(D, 0)
    assert {sent(here, chat, chat + 1, chat + 2) for chat in homes} == {C}


def test_a_request_that_one_instance_must_serve_stays_with_whole_instances() -> None:
    here = by_prefix(
        RouteGroup("pair", 1.0, prefill=(A,), decode=(D,)), RouteGroup("whole", 1.0, (C,))
    )
    for chat in range(100, 400, 10):
        pick = here.pick(want=RequestTraits(single=False, blocks=(chat, chat + 1)))
        assert pick == Pick("whole", C, False)


def test_an_idle_instance_serves_the_prompt_whole_while_decode_is_busy() -> None:
    here = by_prefix(RouteGroup("pair", 1.0, prefill=(A,), decode=(D,)))
    want = RequestTraits(blocks=(1, 2))
    assert here.pick(want=want) == Pick("pair", A, True)
    here.release(A)
    here.report_load(D, 3, 0)
    assert here.pick(want=want) == Pick("pair", A, False)
    assert here.pick(want=want) == Pick("pair", A, True)


def test_gateways_without_common_knowledge_choose_the_same_home() -> None:
    one, other = (by_prefix(RouteGroup("g", 1.0, (A, B, C))) for _ in range(2))
    for here in (one, other):  # all instances have the system prompt and requests of others
        for chat in range(100, 160, 10):
            sent(here, 0, chat)
        for end, load in ((A, 3), (B, 4), (C, 5)):
            here.report_load(end, load, 0)
    one.report_load(A, 5, 0)
    assert all(
        sent(one, 0, chat, chat + 1) == sent(other, 0, chat, chat + 1, chat + 2)
        for chat in range(1000, 1500, 10)
    )


def test_a_new_prompt_goes_to_the_least_loaded_instance_of_a_gateway_alone() -> None:
    here = by_prefix(RouteGroup("g", 1.0, (A, B, C)))
    first = [sent(here, chat, chat + 1, ends=False) for chat in range(100, 130, 10)]
    assert set(first) == {A, B, C}
    here.release(first[1])
    assert sent(here, 500, 501, ends=False) == first[1]
    # Late reports of its own requests are no requests of others.
    for late in range(200):
        for end in (A, B, C):
            here.report_load(end, 2 * (late % 2), 0)
            here.forget_load(end)
    here.release(first[2])
    assert sent(here, 600, 601, ends=False) == first[2]


def test_a_hot_prefix_is_not_sent_to_an_instance_far_above_the_mean_load() -> None:
    here = by_prefix(RouteGroup("g", 1.0, (A, B, C)))
    home = sent(here, 1, 2, 3)
    loads = [sent(here, 1, 2, 3, ends=False) for _ in range(60)]
    counts = sorted(loads.count(end) for end in (A, B, C))
    assert loads[0] == home
    assert counts[0] >= 1
    assert counts[-1] <= 20 + 2 * 20**0.5 + 1


def test_prompts_without_blocks_and_lost_instances_need_no_index() -> None:
    here = by_prefix(RouteGroup("g", 1.0, (A, B)))
    home = sent(here, 1, 2, 3)
    assert {sent(here) for _ in range(4)} == {A, B}
    other = A if home == B else B
    here.apply(replace(routes(RouteGroup("g", 1.0, (other,))), generation=99))
    assert sent(here, 1, 2, 3) == other
    here.eject(other, 0)
    assert here.pick(want=RequestTraits(blocks=(1, 2, 3))) is None


def test_a_failed_instance_has_lost_its_prefix_cache() -> None:
    here = by_prefix(RouteGroup("g", 1.0, (A, B, C)))
    home = sent(here, 1, 2, 3)
    here.eject(home, 0)
    other = sent(here, 1, 2, 3)
    here.readmit(home)
    sent(here, 50, ends=False)
    assert other != home
    assert {sent(here, 1, 2, 3) for _ in range(9)} == {other}


def test_an_idle_instance_serves_a_request_if_the_other_phase_is_busy() -> None:
    """As in Cauchy, figure 5b: the first request is handed over from prefill to decode. One
    instance serves each later request whole.
    """
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C)))
    assert here.pick() == Pick("g", A, True)
    assert here.pick() == Pick("g", B, False)
    assert here.pick() == Pick("g", C, False)
    assert here.pick() == Pick("g", A, True)  # None is idle, so the default applies.
    here.release(A)
    here.release(A)
    assert here.pick() == Pick("g", A, False)  # decode is busy, prefill is idle


def test_requests_are_handed_over_while_decode_has_free_slots() -> None:
    """A whole request would slow down the decode of others. So an idle prefill instance serves one
    only if decode has no free slot.
    """
    roomy = replace(B, slots=2)
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(roomy,)))
    for _ in range(2):
        assert here.pick() == Pick("g", A, True)
        assert here.pick_decode("g") == B
        here.release(A)
    assert here.pick() == Pick("g", A, False)
    here.release(A)
    here.release(B)
    assert here.pick() == Pick("g", A, True)


def test_round_robin_hands_every_request_over() -> None:
    here = Router("chat", policy=RoutingPolicy(inside=WithinCombo.ROUND_ROBIN))
    here.apply(routes(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C))))
    assert {pick for _ in range(5) if (pick := here.pick())} == {Pick("g", A, True)}


def test_several_prompts_in_one_request_are_not_handed_over() -> None:
    here = router(RouteGroup("g", 1.0, prefill=(A,), decode=(B, C)))
    many = RequestTraits(single=False)
    assert [here.pick(want=many) for _ in range(3)] == [
        Pick("g", B, False),
        Pick("g", C, False),
        Pick("g", B, False),
    ]
    here.apply(
        routes(
            RouteGroup("g", 9.0, prefill=(A,), decode=(B,)),
            RouteGroup("h", 0.1, (D,)),
            generation=2,
        )
    )
    assert here.pick(want=many) == Pick("h", D, False)


def test_routes_of_an_invented_leader_are_replaced_by_genuine_ones() -> None:
    here = router(RouteGroup("g", 1.0, (A,)))
    here.apply(routes(RouteGroup("g", 1.0, (B,)), token=10**12, generation=99))
    here.distrust()
    assert here.pick() == Pick("g", B, False)  # no other routes are known yet
    assert here.apply(routes(RouteGroup("g", 1.0, (C,)), token=2)) is RouteUpdate.CHANGED
    assert here.pick() == Pick("g", C, False)


def test_requests_of_other_gateways_take_slots_and_change_the_choice() -> None:
    """The router chooses the instance with the lowest reported load and counts that load against
    its slots. Without reports it uses round robin again.
    """
    ends = tuple(Endpoint(end.instance, end.address, 4) for end in (A, B))
    here = router(RouteGroup("g", 1.0, ends))
    here.report_load(A, 3, 0)
    here.report_load(B, 0, 0)
    assert [pick.endpoint for _ in range(3) if (pick := here.pick())] == [B, B, B]
    here.report_load(B, 4, 0)  # three of these requests are our own
    assert [pick.endpoint for _ in range(1) if (pick := here.pick())] == [A]
    assert here.pick() is None
    assert not here.has_room()
    here.forget_load(A)
    here.forget_load(B)
    assert [pick.endpoint for _ in range(4) if (pick := here.pick())] == [B, A, A, A]


def test_unfetched_kv_lowers_the_preference_for_an_instance() -> None:
    here = router(RouteGroup("g", 1.0, (A, B)))
    here.report_load(A, 0, 2)
    here.report_load(B, 0, 0)
    assert [pick.endpoint for _ in range(3) if (pick := here.pick())] == [B, B, A]


def test_a_load_of_an_instance_that_left_is_not_kept() -> None:
    here = router(RouteGroup("g", 1.0, (A, B)))
    here.report_load(A, 9, 0)
    here.apply(routes(RouteGroup("g", 1.0, (B,)), generation=2))
    here.report_load(A, 9, 0)
    here.apply(routes(RouteGroup("g", 1.0, (A, B)), generation=3))
    assert [pick.endpoint for _ in range(2) if (pick := here.pick())] == [A, B]
