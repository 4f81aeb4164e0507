"""Placement: slices are aligned and exclusive, and a placement is found if one exists."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.rollout.bin_packing import place

GPU = catalog.gpu("L40S")


def free_blocks(per_node: int, used: frozenset[int]) -> list[int]:
    """The sizes of the free aligned blocks of a node, each as large as possible."""

    def split(start: int, size: int) -> list[int]:
        inside = sum(start <= index < start + size for index in used)
        if inside == 0:
            return [size]
        half = size // 2
        return [] if inside == size else split(start, half) + split(start + half, half)

    return split(0, per_node)


def fits(wanted: list[int], blocks: list[int]) -> bool:
    """Whether aligned slices of these sizes fit into these blocks.

    For every size, slices of at least that size must need no more GPUs than blocks of at least that
    size have.
    """
    return all(
        sum(w for w in wanted if w >= size) <= sum(b for b in blocks if b >= size)
        for size in SLICE_SIZES
    )


def combo(pools: list[Pool], wanted: list[tuple[int, int, int]]) -> Combo:
    """A combo with members from (pool index, GPUs, count).

    Members are decode and prefill instances in turn.
    """
    members = tuple(
        ComboMember(Phase.PREFILL if k % 2 else Phase.DECODE, pools[p].id, gpus, count, 1.0)
        for k, (p, gpus, count) in enumerate(wanted)
    )
    return Combo("chat:x", "chat", "us", members, 1.0, 1.0, 1.0, 1.0, 60.0)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Cluster, Combo, dict[str, frozenset[int]]]:
    pools = [
        Pool("us", name, GPU, draw(st.sampled_from([4, 8])), draw(st.integers(1, 4)), market, 1.0)
        for name, market in (("a", Market.OWNED), ("b", Market.ON_DEMAND))
    ]
    used: dict[str, frozenset[int]] = {}
    for pool in pools:
        for node in node_ids(pool):
            taken = draw(st.frozensets(st.integers(0, pool.per_node - 1)))
            if taken:
                used[node] = taken
    wanted = draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 4]), st.integers(1, 4)),
            min_size=1,
            max_size=3,
        )
    )
    return Cluster(tuple(pools), ()), combo(pools, wanted), used


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_placed_slices_are_aligned_exclusive_and_complete(
    scene: tuple[Cluster, Combo, dict[str, frozenset[int]]],
) -> None:
    """Every member gets aligned blocks of its size, on GPUs that were free."""
    cluster, wanted, used = scene
    found = place(wanted, 7, cluster, used, {})
    if found is None:
        return
    placed, after = found
    assert len(placed) == sum(member.count for member in wanted.members)
    assert len({p.instance for p in placed}) == len(placed)
    taken = {node: set(gpus) for node, gpus in used.items()}
    for one in placed:
        pool = cluster.pool(one.pool)
        assert one.node in node_ids(pool)
        assert one.gpus[0] % len(one.gpus) == 0 and len(one.gpus) in SLICE_SIZES
        assert one.gpus == tuple(range(one.gpus[0], one.gpus[0] + len(one.gpus)))
        assert one.gpus[-1] < pool.per_node
        assert not taken.setdefault(one.node, set()) & set(one.gpus)
        taken[one.node] |= set(one.gpus)
    assert after == {node: frozenset(gpus) for node, gpus in taken.items() if gpus}


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_a_placement_is_found_exactly_if_free_blocks_allow_one(
    scene: tuple[Cluster, Combo, dict[str, frozenset[int]]],
) -> None:
    """The free blocks must have room for all slices, largest slices first."""
    cluster, wanted, used = scene
    possible = True
    for pool in cluster.pools:
        sizes = [m.gpus for m in wanted.members if m.pool == pool.id for _ in range(m.count)]
        free = [
            b for n in node_ids(pool) for b in free_blocks(pool.per_node, used.get(n, frozenset()))
        ]
        possible = possible and fits(sizes, free)
    assert (place(wanted, 7, cluster, used, {}) is not None) == possible


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3), st.integers(1, 6))
def test_no_more_nodes_than_the_feed_offers_are_used(obtainable: int, count: int) -> None:
    """The supply feed reports the number of available nodes."""
    pool = Pool("us", "b", GPU, 4, 10, Market.ON_DEMAND, 1.0)
    cluster = Cluster((pool,), ())
    found = place(combo([pool], [(0, 4, count)]), 1, cluster, {}, {pool.id: obtainable})
    assert (found is not None) == (count <= obtainable)
