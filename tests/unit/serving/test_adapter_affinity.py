"""Choice of the instance for a request to a LoRA adapter."""

from __future__ import annotations

from collections import Counter

from autoscaler.serving.request_router import Router
from autoscaler.serving.routing_policies import RequestTraits
from topics.records import Endpoint, RouteGroup, Routes

ENDS = tuple(Endpoint(f"i{n}", f"10.0.0.{n}:1") for n in range(4))
NAMES = ("legal", "sql", "tone")


def router(*weights: float, generation: int = 1, of: Router | None = None) -> Router:
    """A router over one instance per group."""
    groups = tuple(RouteGroup(f"g{n}", weight, (ENDS[n],)) for n, weight in enumerate(weights))
    made = of or Router("chat")
    made.apply(Routes("chat", generation, 1, 0, 2000.0, 60.0, groups, adapters=NAMES))
    return made


def pick(r: Router, adapter: str = "") -> Endpoint:
    found = r.pick(want=RequestTraits(adapter=adapter))
    assert found is not None
    return found.endpoint


def test_an_idle_adapter_stays_on_the_instance_that_served_it() -> None:
    r = router(1.0, 1.0, 1.0, 1.0)
    for adapter in NAMES:
        first = pick(r, adapter)
        r.release(first)
        for _ in range(5):
            again = pick(r, adapter)
            assert again == first
            r.release(again)


def test_different_adapters_begin_on_different_instances() -> None:
    """The first request is routed like any other."""
    r = router(1.0, 1.0, 1.0, 1.0)
    assert len({pick(r, adapter) for adapter in NAMES}) == 3


def test_a_hot_adapter_spreads_so_that_load_stays_balanced() -> None:
    r = router(1.0, 1.0, 1.0, 1.0)
    held = Counter(pick(r, "legal") for _ in range(100))
    assert set(held) == set(ENDS)
    assert max(held.values()) <= 1.25 * 25 + 2


def test_a_busy_home_is_left_while_it_is_busy() -> None:
    r = router(1.0, 1.0)
    home = pick(r, "legal")
    for _ in range(20):
        r._occupancy.add(home)
    other = pick(r, "legal")
    assert other != home
    for _ in range(20):
        r.release(home)
    assert pick(r, "legal") in (home, other)


def test_the_bound_follows_the_weights() -> None:
    """An instance with three quarters of the weight may have three quarters of the requests."""
    r = router(3.0, 1.0)
    held = Counter(pick(r, "legal") for _ in range(80))
    assert 0.6 <= held[ENDS[0]] / 80 <= 0.95
    assert held[ENDS[1]] > 0


def test_turns_of_adapters_count_for_the_rotation_of_the_others() -> None:
    """While adapters load one instance, requests for the base model prefer the other one."""
    r = router(1.0, 1.0)
    home = pick(r, "legal")
    r.release(home)
    for _ in range(10):
        r.release(pick(r, "legal"))
    base = [pick(r) for _ in range(10)]
    assert base.count(home) == 0


def test_an_instance_that_lacks_an_adapter_gets_none_of_its_requests() -> None:
    r = router(1.0, 1.0)
    lacking = pick(r, "legal")
    r.note_lacking("legal", lacking)
    assert all(pick(r, "legal") != lacking for _ in range(10))
    assert {pick(r) for _ in range(4)} == set(ENDS[:2])  # It serves the base model.
    assert pick(r, "sql") in ENDS[:2]


def test_without_an_instance_that_has_it_there_is_none_to_pick() -> None:
    r = router(1.0, 1.0)
    assert not r.all_lack("legal")
    for end in ENDS[:2]:
        r.note_lacking("legal", end)
    assert r.all_lack("legal")
    assert r.pick(want=RequestTraits(adapter="legal")) is None
    assert not r.is_open(adapter="legal")
    assert r.is_open()


def test_a_restarted_instance_is_asked_again() -> None:
    """An instance that left the routes may have loaded the adapter since."""
    r = router(1.0, 1.0)
    for end in ENDS[:2]:
        r.note_lacking("legal", end)
    router(1.0, generation=2, of=r)
    router(1.0, 1.0, generation=3, of=r)
    assert not r.all_lack("legal")
    assert pick(r, "legal") == ENDS[1]


def test_no_routes_is_not_lacking() -> None:
    r = Router("chat")
    r.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0, adapters=NAMES))
    assert not r.all_lack("legal")


def test_a_full_home_is_left() -> None:
    ends = tuple(Endpoint(f"i{n}", f"10.0.0.{n}:1", slots=1) for n in range(2))
    groups = tuple(RouteGroup(f"g{n}", 1.0, (end,)) for n, end in enumerate(ends))
    r = Router("chat")
    r.apply(Routes("chat", 1, 1, 0, 2000.0, 60.0, groups, adapters=NAMES))
    first, second = pick(r, "legal"), pick(r, "legal")
    assert first != second
    assert r.pick(want=RequestTraits(adapter="legal")) is None
