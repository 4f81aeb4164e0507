"""Best-fit placement: rented nodes before new ones, and the smallest sufficient block first."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.rollout.bin_packing import place, used_gpus
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool
from topics.fleet import InstanceState, ObservedInstance, Status

POOL = pool(nodes=3, per_node=4)
CLUSTER = Cluster((POOL,), ())
NODES = ("us.l40s.on-demand.0", "us.l40s.on-demand.1", "us.l40s.on-demand.2")


def spot_of(gpus: int, used: dict[str, frozenset[int]]) -> tuple[str, tuple[int, ...]]:
    found = place(combo("chat", [(AGGREGATED, gpus, POOL, 1, 1.0)]), 1, CLUSTER, used, {})
    assert found is not None
    return found[0][0].node, found[0][0].gpus


def test_a_half_empty_paid_node_comes_before_a_new_one() -> None:
    """Node 1 is rented and has room, so it is filled although node 0 comes first in order."""
    assert spot_of(2, {NODES[1]: frozenset({0, 1})}) == (NODES[1], (2, 3))


def test_the_smallest_sufficient_block_is_used() -> None:
    """One GPU goes into a free block of one, not into a block of two."""
    used = {NODES[0]: frozenset({0, 1}), NODES[1]: frozenset({0, 2, 3})}
    assert spot_of(1, used) == (NODES[1], (1,))


def test_a_slice_that_fits_no_free_block_gets_a_new_node() -> None:
    """Two free blocks of one GPU do not form a block of two."""
    assert spot_of(2, {NODES[0]: frozenset({0, 2})}) == (NODES[1], (0, 1))


def test_silent_nodes_are_not_used() -> None:
    """No instance is placed on them."""
    one = combo("chat", [(AGGREGATED, 1, POOL, 1, 1.0)])
    found = place(one, 1, CLUSTER, {}, {}, shut={NODES[0]})
    assert found is not None and found[0][0].node == NODES[1]


def test_unassigned_instances_occupy_their_gpus() -> None:
    """Executors report them as running, although no assignment contains them. A sleeping instance
    gives way.
    """
    stray = ObservedInstance("x", "m", "aggregated", "g", InstanceState.READY, (0, 1))
    gone = ObservedInstance("y", "m", "aggregated", "g", InstanceState.STOPPED, (2,))
    asleep = replace(gone, instance="z", state=InstanceState.ASLEEP, gpus=(3,))
    status = Status(NODES[0], POOL.id, "e", 1, 1, (stray, gone, asleep))
    assert used_gpus([], [status]) == {NODES[0]: frozenset({0, 1})}


def test_the_common_maximum_of_two_markets_holds_during_a_move() -> None:
    """The maximum is three nodes, and two on-demand nodes are in use. One spot node may start, not
    two.
    """
    firm = replace(POOL, max_of_both=3)
    spot = replace(firm, market=Market.SPOT)
    both = Cluster((firm, spot), ())
    one = combo("chat", [(AGGREGATED, 4, spot, 1, 1.0)])
    used = {node: frozenset(range(4)) for node in NODES[:2]}
    found = place(one, 1, both, used, {})
    assert found is not None
    assert place(one, 2, both, found[1], {}) is None
