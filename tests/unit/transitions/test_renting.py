"""The nodes that a plan has, and a site on which no more are rented."""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster
from autoscaler.transitions.apply import Site, start
from autoscaler.transitions.renting import lifted, planned_nodes, within_plan
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool, service

WHERE = pool(per_node=4, nodes=5)
PAIR = combo("chat", [(AGGREGATED, 2, WHERE, 1, 4.0)])
ONE = combo("chat", [(AGGREGATED, 1, WHERE, 1, 2.0)])
COMBOS = {one.id: one for one in (PAIR, ONE)}
CLUSTER = Cluster((WHERE,), (service("chat"),))


def test_slices_are_packed_as_tightly_as_can_be() -> None:
    """Five slices of 2 and two of 1 are 12 GPUs: three nodes of 4."""
    assert planned_nodes({PAIR.id: 5, ONE.id: 2}, COMBOS, CLUSTER) == {WHERE.id: 3}
    assert planned_nodes({PAIR.id: 0, "chat:unknown": 3}, COMBOS, CLUSTER) == {WHERE.id: 0}


def test_no_node_beyond_the_plan_and_what_was_taken_is_taken_off_all_that_can_be_had() -> None:
    site = Site(CLUSTER, {}, {WHERE.id: 4}, (), 1)
    first = start({PAIR.id: 1}, COMBOS, CLUSTER.services[0], site, 0)
    inside = within_plan(first.site, {WHERE.id: 2}, first.groups)
    second = start({PAIR.id: 4}, COMBOS, CLUSTER.services[0], inside, 0)
    assert len(second.groups) == 3 and second.unplaced == {PAIR.id: 1}
    after = lifted(second.site, inside, first.site)
    assert after.obtainable == {WHERE.id: 2} and after.used == second.site.used
