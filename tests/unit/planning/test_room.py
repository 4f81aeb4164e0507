"""Packing power-of-two slices on aligned blocks, against a search over all placements."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Market
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.planning.room import (
    Blocks,
    PoolRoom,
    fits,
    free_blocks,
    new_nodes_needed,
    pool_room,
    take,
)
from tests.unit.planning.planning_clusters import pool

small_blocks = st.tuples(*(st.integers(0, most) for most in (3, 2, 2, 1)))


def placeable(wanted: Blocks, used: frozenset[int], per_node: int) -> bool:
    """Whether the slices find aligned free GPU ranges of one node: plain backtracking."""
    sizes = [SLICE_SIZES[i] for i in reversed(range(4)) for _ in range(wanted[i])]
    if not sizes:
        return True
    size = sizes[0]
    rest = list(wanted)
    rest[SLICE_SIZES.index(size)] -= 1
    for start in range(0, per_node - size + 1, size):
        spot = frozenset(range(start, start + size))
        if not spot & used and placeable(
            (rest[0], rest[1], rest[2], rest[3]), used | spot, per_node
        ):
            return True
    return False


@given(st.frozensets(st.integers(0, 7)), small_blocks)
def test_slices_fit_exactly_when_some_aligned_placement_exists(
    used: frozenset[int], wanted: Blocks
) -> None:
    assert fits(wanted, free_blocks(8, used)) == placeable(wanted, used, 8)


@given(st.frozensets(st.integers(0, 3)), st.frozensets(st.integers(0, 3)), small_blocks)
def test_new_nodes_are_the_fewest_that_make_it_fit(
    one: frozenset[int], two: frozenset[int], wanted: Blocks
) -> None:
    wanted = (*wanted[:3], 0)
    rented = pool("r", "p", "L40S", 4, 12, Market.ON_DEMAND, 4.0)
    room = pool_room(rented, [one, two])
    needed = new_nodes_needed(wanted, room)
    fewest = next(
        n for n in range(11) if fits(wanted, pool_room(rented, [one, two] + [()] * n).blocks)
    )
    assert needed == fewest


@given(small_blocks, small_blocks)
def test_taking_leaves_exactly_the_other_gpus(wanted: Blocks, free: Blocks) -> None:
    if not fits(wanted, free):
        with pytest.raises(InvalidValue, match="slices wanted"):
            take(wanted, free)
        return
    left = take(wanted, free)
    gpus = [sum(s * n for s, n in zip(SLICE_SIZES, b, strict=True)) for b in (free, wanted, left)]
    assert gpus[0] - gpus[1] == gpus[2]


def test_owned_nodes_are_paid_for_and_rented_ones_are_new() -> None:
    owned = pool_room(pool("r", "p", "H100", 8, 2, Market.OWNED, 0.0), [(0, 1)])
    assert (owned.blocks, owned.new_nodes) == ((0, 1, 1, 1), 0)
    rented = pool("r", "p", "H100", 8, 5, Market.ON_DEMAND, 80.0)
    assert pool_room(rented, [(0, 1)]).new_nodes == 4
    assert pool_room(rented, [(0, 1)], obtainable=1).new_nodes == 1


@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
def test_every_set_of_taken_gpus_leaves_the_right_number_free(per_node: int) -> None:
    for taken in product((False, True), repeat=per_node):
        used = [i for i, is_taken in enumerate(taken) if is_taken]
        blocks = free_blocks(per_node, used)
        assert sum(s * n for s, n in zip(SLICE_SIZES, blocks, strict=True)) == per_node - len(used)


def test_more_slices_than_nodes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="new nodes"):
        new_nodes_needed((0, 0, 3, 0), PoolRoom(4, (0, 0, 1, 0), 1, 1.0))
