"""Long-run traffic shares follow the weights. Ejected endpoints get no requests."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.serving.request_router import Router
from topics.records import Endpoint, RouteGroup, Routes

sizes = st.lists(
    st.tuples(st.floats(0.1, 100.0), st.integers(1, 4), st.booleans()), min_size=1, max_size=6
)


def made(shape: list[tuple[float, int, bool]]) -> Router:
    groups = []
    for index, (weight, count, pair) in enumerate(shape):
        ends = tuple(
            Endpoint(f"g{index}-{n}", f"127.0.0.1:{1000 + 10 * index + n}") for n in range(count)
        )
        decode = (Endpoint(f"g{index}-d", f"127.0.0.1:{9000 + index}"),)
        group = (
            RouteGroup(f"g{index}", weight, prefill=ends, decode=decode)
            if pair
            else RouteGroup(f"g{index}", weight, ends)
        )
        groups.append(group)
    router = Router("chat")
    router.apply(Routes("chat", 1, 1, 0, 1.0, 1.0, tuple(groups)))
    return router


@given(sizes, st.integers(50, 400))
def test_shares_follow_the_weights(shape: list[tuple[float, int, bool]], rounds: int) -> None:
    """A group differs from its exact share by at most as many requests as there are groups."""
    router = made(shape)
    seen: Counter[str] = Counter()
    per_instance: Counter[str] = Counter()
    for _ in range(rounds):
        pick = router.pick()
        assert pick is not None
        seen[pick.group] += 1
        per_instance[pick.endpoint.instance] += 1
    total = sum(weight for weight, _, _ in shape)
    for index, (weight, count, _) in enumerate(shape):
        assert abs(seen[f"g{index}"] - rounds * weight / total) <= len(shape)
        inside = [per_instance[f"g{index}-{n}"] for n in range(count)]
        assert max(inside) - min(inside) <= 1


@given(sizes, st.data())
def test_ejected_instances_get_no_requests_and_others_keep_their_shares(
    shape: list[tuple[float, int, bool]], data: st.DataObject
) -> None:
    router = made(shape)
    every = sorted(router.endpoints(), key=lambda end: end.instance)
    out = frozenset(data.draw(st.sets(st.sampled_from(every))))
    for endpoint in out:
        router.eject(endpoint, 0)
    seen: Counter[str] = Counter()
    rounds = 100
    for _ in range(rounds):
        pick = router.pick()
        if pick is None:
            break
        assert pick.endpoint not in out
        seen[pick.group] += 1
        if pick.prefill:
            assert router.pick_decode(pick.group) not in out | {None}
    usable = {
        f"g{index}": weight
        for index, (weight, count, pair) in enumerate(shape)
        if any(Endpoint(f"g{index}-{n}", f"127.0.0.1:{1000 + 10 * index + n}") not in out
               for n in range(count))
        and not (pair and Endpoint(f"g{index}-d", f"127.0.0.1:{9000 + index}") in out)
    }  # fmt: skip
    assert set(seen) <= set(usable)
    assert bool(usable) == bool(seen)
    for name, weight in usable.items():
        assert abs(seen[name] - rounds * weight / sum(usable.values())) <= len(shape)
