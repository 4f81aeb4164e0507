"""Kinds of requests with separate traffic shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autoscaler.serving.request_router import Router, RouteUpdate
from autoscaler.serving.routing_policies import RequestTraits
from autoscaler.serving.wait_queue import WaitQueue
from topics.records import Endpoint, RouteGroup, Routes, TypeRoute

A, B, C = (Endpoint(name, f"{name}:1") for name in "abc")
NONE: frozenset[Endpoint] = frozenset()
LONG, SHORT = RequestTraits(kind="long"), RequestTraits(kind="short")


def routes(*shares: tuple[float, ...], slots: int = 0, generation: int = 1) -> Routes:
    groups = tuple(
        RouteGroup(end.instance, 1.0, (replace(end, slots=slots),))
        for end in (A, B, C)[: len(shares[0])]
    )
    kinds = (("long", 4000.0, 80.0), ("short", 300.0, 250.0))
    types = tuple(TypeRoute(*kind, mine) for kind, mine in zip(kinds, shares, strict=True))
    return Routes("m", generation, 1, 0, 1.0, 1.0, groups, types=types)


def router(*shares: tuple[float, ...], slots: int = 0) -> Router:
    made = Router("m")
    made.apply(routes(*shares, slots=slots))
    return made


def sent(made: Router, want: RequestTraits, count: int, done: bool = True) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(count):
        pick = made.pick(want=want)
        assert pick is not None
        found[pick.group] += 1
        if done:
            made.release(pick.endpoint)
    return found


def test_the_kind_of_a_request_has_the_nearest_lengths() -> None:
    made = router((1.0, 0.0), (0.0, 1.0))
    assert made.kind_of(3000, 100) == "long"
    assert made.kind_of(200, 500) == "short"
    assert Router("m").kind_of(200, 500) == ""


@pytest.mark.parametrize("count", [10, 137, 1000])
def test_each_kind_keeps_its_own_shares_within_one_request(count: int) -> None:
    """This holds for any mix of kinds, because the choice is not random."""
    made = router((0.62, 0.38, 0.0), (0.05, 0.25, 0.7))
    long: Counter[str] = Counter()
    short: Counter[str] = Counter()
    for n in range(count):
        long += sent(made, LONG, 1)
        short += sent(made, SHORT, 1 + n % 3)
    total = short.total()
    assert long["c"] == 0
    for found, shares, of in ((long, (0.62, 0.38, 0.0), count), (short, (0.05, 0.25, 0.7), total)):
        for group, share in zip("abc", shares, strict=True):
            assert abs(found[group] - share * of) <= 1.0 + 1e-9


def test_a_group_without_a_share_gets_the_kind_only_while_no_other_serves() -> None:
    made = router((1.0, 0.0), (0.0, 1.0))
    made.eject(A, 0)
    assert sent(made, LONG, 4) == {"b": 4}
    made.readmit(A)
    assert sent(made, LONG, 4) == {"a": 4}


def test_the_share_of_a_missing_group_is_divided_in_proportion() -> None:
    made = router((0.5, 0.3, 0.2), (1.0, 0.0, 0.0))
    made.eject(A, 0)
    assert sent(made, LONG, 50) == {"b": 30, "c": 20}


def test_a_full_group_catches_up_once_it_has_free_slots() -> None:
    made = router((0.5, 0.5), (0.0, 1.0), slots=4)
    held = sent(made, LONG, 8, done=False)
    assert held == {"a": 4, "b": 4}
    for _ in range(4):
        made.release(B)
    assert sent(made, LONG, 10) == {"b": 10}  # a is full all the time
    for _ in range(4):
        made.release(A)
    after = sent(made, LONG, 30)
    assert (held + after + Counter(b=10))["a"] == 24


def test_new_shares_take_effect_at_once_and_the_same_ones_change_nothing() -> None:
    made = router((1.0, 0.0), (0.0, 1.0))
    assert made.apply(routes((1.0, 0.0), (0.0, 1.0))) is RouteUpdate.SAME
    assert made.apply(routes((0.0, 1.0), (0.0, 1.0), generation=2)) is RouteUpdate.CHANGED
    assert sent(made, LONG, 3) == {"b": 3}


def test_a_kind_that_left_the_routes_is_shared_by_weights() -> None:
    made = router((1.0, 0.0), (0.0, 1.0))
    assert sent(made, RequestTraits(kind="gone"), 4) == {"a": 2, "b": 2}


def test_a_kind_without_free_slots_does_not_delay_others() -> None:
    here = WaitQueue(router((1.0, 0.0), (0.0, 1.0), slots=1), hold_ms=1_000, queue_ms=5_000)
    long = [here.join(order, NONE, 0, LONG) for order in range(3)]
    short = [here.join(order, NONE, 0, SHORT) for order in range(3, 5)]
    assert [ticket for ticket, _ in here.dispatch(0)] == [long[0], short[0]]
    assert here.dispatch(0) == []
    here.router.release(B)
    assert [ticket for ticket, _ in here.dispatch(0)] == [short[1]]
    here.router.release(A)
    assert [ticket for ticket, _ in here.dispatch(0)] == [long[1]]
