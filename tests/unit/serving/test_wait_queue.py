"""The queue of requests that wait for an instance."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.serving.request_router import Router
from autoscaler.serving.wait_queue import Refusal, WaitQueue, wait_limits_ms
from topics.records import Endpoint, RouteGroup, Routes

A, B = Endpoint("a", "h:1"), Endpoint("b", "h:2")
NONE: frozenset[Endpoint] = frozenset()


def line(*groups: RouteGroup) -> WaitQueue:
    router = Router("m")
    router.apply(Routes("m", 1, 1, 0, 1.0, 1.0, groups))
    return WaitQueue(router, hold_ms=1_000, queue_ms=5_000)


def group(name: str, *slots: tuple[Endpoint, int], weight: float = 1.0) -> RouteGroup:
    return RouteGroup(name, weight, tuple(replace(end, slots=most) for end, most in slots))


def apply(here: WaitQueue, *groups: RouteGroup) -> None:
    here.router.apply(Routes("m", 2, 1, 0, 1.0, 1.0, groups))


def test_a_free_slot_goes_to_the_oldest_request() -> None:
    here = line(group("g", (A, 1)))
    tickets = [here.join(order, NONE, 0) for order in (1, 2, 3)]
    assert [ticket for ticket, _ in here.dispatch(0)] == tickets[:1]
    assert here.dispatch(0) == []
    here.router.release(A)
    assert [ticket for ticket, _ in here.dispatch(0)] == tickets[1:2]
    assert len(here) == 1


def test_a_new_instance_takes_waiting_requests_up_to_its_slots() -> None:
    here = line(group("g", (A, 1)))
    for order in range(6):
        here.join(order, NONE, 0)
    here.dispatch(0)
    apply(here, group("g", (A, 1)), group("h", (B, 3)))
    assert [pick.endpoint for _, pick in here.dispatch(0)] == [B, B, B]
    assert len(here) == 2


def test_requests_are_shared_by_weight_among_instances_with_free_slots() -> None:
    """The ratio is one to three until the instance of weight three is full."""
    here = line(group("g", (A, 10)), group("h", (B, 6), weight=3.0))
    for order in range(8):
        here.join(order, NONE, 0)
    assert [pick.endpoint for _, pick in here.dispatch(0)].count(B) == 6
    for order in range(8, 12):
        here.join(order, NONE, 0)
    assert {pick.endpoint for _, pick in here.dispatch(0)} == {A}


def test_fewer_slots_than_requests_in_flight_stop_only_new_requests() -> None:
    here = line(group("g", (A, 3)))
    for order in range(4):
        here.join(order, NONE, 0)
    assert len(here.dispatch(0)) == 3
    apply(here, group("g", (A, 1)))
    here.router.release(A)
    here.router.release(A)
    assert here.dispatch(0) == []
    here.router.release(A)
    assert len(here.dispatch(0)) == 1


def test_a_change_of_slots_keeps_ejection_and_counts() -> None:
    here = line(group("g", (A, 2), (B, 2)))
    here.join(1, NONE, 0)
    here.dispatch(0)
    here.router.eject(B, 0)
    apply(here, group("g", (A, 5), (B, 5)))
    assert here.router.ejected() == {B}
    assert here.router.in_flight(A) == 1
    assert here.router.readmit(replace(B, slots=5))


def test_a_retried_request_keeps_its_position_and_waits_for_another_instance() -> None:
    """A already failed for the request, and B is full. Later requests may go to A. The next slot of
    B goes to this request.
    """
    here = line(group("g", (A, 1), (B, 1)))
    for order in (1, 2, 3, 4):
        here.join(order, NONE, 0)
    assert [pick.endpoint for _, pick in here.dispatch(0)] == [A, B]
    here.router.release(A)
    again = here.join(1, frozenset({A}), 0)
    assert [(ticket.order, pick.endpoint) for ticket, pick in here.dispatch(0)] == [(3, A)]
    here.router.release(B)
    ((ticket, pick),) = here.dispatch(0)
    assert (ticket, pick.endpoint) == (again, B)


def test_a_failed_instance_is_tried_again_if_no_other_serves() -> None:
    here = line(group("g", (A, 1), (B, 1)))
    here.router.eject(B, 0)
    here.join(1, frozenset({A}), 0)
    assert [pick.endpoint for _, pick in here.dispatch(0)] == [A]


def test_the_limit_of_a_wait_without_instances_is_shorter_than_that_for_a_free_slot() -> None:
    here = line(group("g", (A, 1)))
    first, second = here.join(1, NONE, 0), here.join(2, NONE, 0)
    assert [ticket for ticket, _ in here.dispatch(0)] == [first]
    assert here.expired(4_999) == []
    assert here.expired(5_000) == [(second, Refusal.NO_ROOM)]
    third = here.join(3, NONE, 5_000)
    here.router.eject(A, 5_500)
    assert here.expired(5_600) == []  # No instance serves from here on.
    assert here.expired(6_599) == []
    assert here.expired(6_600) == [(third, Refusal.NO_INSTANCE)]
    assert len(here) == 0


def test_requests_that_leave_use_no_memory() -> None:
    """Ten thousand requests come and leave while no instance serves."""
    here = line()
    stays = here.join(0, NONE, 0)
    for order in range(1, 10_001):
        here.leave(here.join(order, NONE, 0))
    assert len(here) == 1
    assert len(here._lines[""].entries) < 100
    apply(here, group("g", (A, 1)))
    assert [ticket for ticket, _ in here.dispatch(0)] == [stays]


def test_requests_that_can_no_longer_meet_the_ttft_limit_come_after_those_that_can() -> None:
    """Three requests waited through a minute of overload. A new request is served first, then the
    oldest one.
    """
    here = line(group("g", (A, 1)))
    here.router.apply(Routes("m", 3, 1, 0, 2_000.0, 60.0, (group("g", (A, 1)),)))
    old = [here.join(order, NONE, 0) for order in (1, 2, 3)]
    assert [ticket for ticket, _ in here.dispatch(1_500)] == old[:1]  # in time: 0.75 of the limit
    fresh = here.join(4, NONE, 60_000)
    served = []
    for _ in range(3):
        here.router.release(A)
        served += [ticket for ticket, _ in here.dispatch(60_000)]
    assert served == [fresh, old[1], old[2]]


def test_the_wait_limit_covers_a_whole_cold_start() -> None:
    """A node takes 12 minutes to start. The default limit of ten minutes would refuse the waiting
    requests.
    """
    assert wait_limits_ms(30_000.0, 600_000.0, 720.0) == (1_440_000.0, 1_440_000.0)
    assert wait_limits_ms(30_000.0, 600_000.0, 0.0) == (30_000.0, 600_000.0)
