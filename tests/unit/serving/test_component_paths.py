"""Static path routing: planned shares are kept, queue lengths are ignored, and a path without
instances gets no request.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.serving.component_paths import ComponentPaths, kind_with, planned_shares
from autoscaler.serving.request_router import Router
from autoscaler.serving.routing_policies import RequestTraits
from topics.records import Endpoint, RequestKind, RouteGroup, Routes
from topics.routing import Hop, RoutePath, Stage

A, B, C = (Endpoint(name, f"{name}:1") for name in "abc")


def _cell(name: str, rates: tuple[float, float], ends: tuple[Endpoint, ...]) -> RouteGroup:
    """A group in which a photo takes one of two paths: first `image` and then
    `llm`, or only `all`.
    """
    return RouteGroup(
        name,
        sum(rates),
        stages=(Stage("image", ends[:1]), Stage("llm", ends[:1]), Stage("all", ends[1:])),
        paths=(
            RoutePath("photo", rates[0], (Hop("image", ("image",)), Hop("llm", ("llm",)))),
            RoutePath("photo", rates[1], (Hop("all", ("image", "llm")),)),
        ),
    )


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0), st.integers(1, 400))
def test_each_path_has_its_share_within_one_request(
    one: float, other: float, requests: int
) -> None:
    group = _cell("g", (one, other), (A, B))
    paths = ComponentPaths()
    paths.apply([group])
    ways = (paths.sample("photo") for _ in range(requests))
    taken = Counter(way.name for way in ways if way is not None)
    for name, share in planned_shares([group])["photo"].items():
        assert abs(taken[name] - requests * share) <= 1.0 + 1e-6


def test_a_path_with_an_empty_hop_is_not_taken() -> None:
    paths = ComponentPaths()
    paths.apply([_cell("g", (3.0, 1.0), (A, B))])
    names = {way.name for _ in range(8) if (way := paths.sample("photo", {A})) is not None}
    assert names == {"all"}
    assert paths.sample("photo", {A, B}) is None
    assert paths.sample("voice") is None


def test_a_hop_continues_in_another_group_if_its_own_has_left_the_routes() -> None:
    paths = ComponentPaths()
    paths.apply([_cell("g", (1.0, 0.0), (A, B))])
    way = paths.sample("photo")
    assert way is not None
    paths.apply([_cell("h", (1.0, 0.0), (C, B))])
    assert paths.endpoint(way, 1) == C


def test_shares_are_kept_across_route_changes() -> None:
    """If counting restarted with each change, every request would take the first path."""
    group = _cell("g", (1.0, 1.0), (A, B))
    paths = ComponentPaths()
    taken = Counter[str]()
    for _ in range(10):
        paths.apply([group])
        way = paths.sample("photo")
        taken[way.name if way else ""] += 1
    assert taken == {"image/llm": 5, "all": 5}


def test_the_kind_of_a_request_is_the_narrowest_that_has_its_media() -> None:
    kinds = (RequestKind("text"), RequestKind("photo", ("image",)),
             RequestKind("film", ("image", "video")))  # fmt: skip
    assert kind_with(kinds, frozenset()) == "text"
    assert kind_with(kinds, frozenset({"image"})) == "photo"
    assert kind_with(kinds, frozenset({"video"})) == "film"
    assert kind_with(kinds, frozenset({"audio"})) is None


def test_a_router_with_paths_picks_the_first_hop_and_counts_each() -> None:
    router = Router("omni")
    kinds = (RequestKind("photo", ("image",)),)
    group = _cell("g", (1.0, 0.0), (A, B))
    router.apply(Routes("omni", 1, 1, 0, 1.0, 1.0, (group,), kinds=kinds))
    assert router.accepts_media(frozenset({"image"}))
    assert not router.accepts_media(frozenset({"video"}))
    pick = router.pick(want=RequestTraits(kind=router.kind_of(1.0, 1.0, frozenset({"image"}))))
    assert pick is not None and pick.path is not None
    assert (pick.endpoint, router.in_flight(A)) == (A, 1)
    router.release(pick.endpoint)
    assert router.pick_hop(pick.path, 1) == A
    router.release(A)
    assert router.in_flight(A) == 0
    router.eject(A, 0)
    assert not router.has_room("photo")  # The plan has no request for the other path.
