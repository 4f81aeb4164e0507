"""The nodes that a plan needs, and placement that rents no further node."""

from __future__ import annotations

import math
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Market, Policy
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.diff import FreeCapacity, spare_usd_per_h, start
from autoscaler.rollout.node_limits import planned_nodes, within_plan, without_limit
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool, service

WHERE = pool(per_node=4, nodes=5)
PAIR = combo("chat", [(AGGREGATED, 2, WHERE, 1, 4.0)])
ONE = combo("chat", [(AGGREGATED, 1, WHERE, 1, 2.0)])
COMBOS = {one.id: one for one in (PAIR, ONE)}
CLUSTER = Cluster((WHERE,), (service("chat"),))


def test_slices_are_packed_onto_the_fewest_nodes() -> None:
    """Five slices of 2 GPUs and two of 1 GPU are 12 GPUs. They fit on three nodes of 4."""
    assert planned_nodes({PAIR.id: 5, ONE.id: 2}, COMBOS, CLUSTER) == {WHERE.id: 3}
    assert planned_nodes({PAIR.id: 0, "chat:unknown": 3}, COMBOS, CLUSTER) == {WHERE.id: 0}


def test_no_node_beyond_the_plan_is_rented() -> None:
    site = FreeCapacity(CLUSTER, {}, {WHERE.id: 4}, (), 1)
    first = start({PAIR.id: 1}, COMBOS, CLUSTER.services[0], site, 0)
    inside = within_plan(first.site, {WHERE.id: 2}, first.groups)
    second = start({PAIR.id: 4}, COMBOS, CLUSTER.services[0], inside, 0)
    assert len(second.groups) == 3 and second.unplaced == {PAIR.id: 1}
    after = without_limit(second.site, inside, first.site)
    assert after.obtainable == {WHERE.id: 2} and after.used == second.site.used


def test_free_gpus_on_two_nodes_rent_no_third_one_beyond_the_budget() -> None:
    """The planner counts four free GPUs, one and three on two nodes. Only one more pair has room
    there.
    """
    budget = 2.5 * WHERE.price_usd_per_h
    cluster = Cluster((WHERE,), (service("chat"),), Policy(budget_usd_per_h=budget))
    empty = FreeCapacity(cluster, {}, {}, (), 1)
    spread = start({PAIR.id: 2}, COMBOS, cluster.services[0], empty, 0)
    assert len({p.node for g in spread.groups for p in g.placed}) == 1
    more = start({ONE.id: 1}, COMBOS, cluster.services[0], spread.site, 0)
    groups = (*spread.groups, *more.groups)
    inside = replace(more.site, spare_usd_per_h=spare_usd_per_h(cluster, used_gpus(groups)))
    found = start({PAIR.id: 3}, COMBOS, cluster.services[0], inside, 0)
    assert len(found.groups) == 1 and found.unplaced == {PAIR.id: 2}
    assert spare_usd_per_h(CLUSTER, more.site.used) == math.inf  # no budget is declared


def test_nodes_of_two_pools_share_the_remaining_budget() -> None:
    """The budget pays for one node of either pool, not for one of each."""
    other = pool("other", per_node=1, nodes=5)
    here = combo("chat", [(AGGREGATED, 1, WHERE, 1, 2.0)])
    there = combo("chat", [(AGGREGATED, 1, other, 1, 2.0)])
    both = {one.id: one for one in (here, there)}
    cluster = Cluster((WHERE, other), (service("chat"),), Policy(budget_usd_per_h=15.0))
    site = FreeCapacity(cluster, {}, {}, (), 1, spare_usd_per_h(cluster, ()))
    found = start({here.id: 1, there.id: 1}, both, cluster.services[0], site, 0)
    assert len(found.groups) == 1 and found.unplaced.total() == 1
    assert found.site.spare_usd_per_h == 15.0 - WHERE.price_usd_per_h


def test_free_gpus_are_used_even_if_a_price_rise_exceeds_the_budget() -> None:
    """Instances go to owned GPUs and to the free half of a rented node, but no node is rented."""
    own = pool("own", per_node=1, nodes=1, market=Market.OWNED)
    here = combo("chat", [(AGGREGATED, 1, own, 1, 2.0)])
    cluster = Cluster((WHERE, own), (service("chat"),), Policy(budget_usd_per_h=6.0))
    used = {"us.l40s.on-demand.0": frozenset({0, 1})}
    site = FreeCapacity(cluster, used, {}, (), 1, spare_usd_per_h(cluster, used))
    both = {**COMBOS, here.id: here}
    found = start({here.id: 1, PAIR.id: 2}, both, cluster.services[0], site, 0)
    assert {p.node for g in found.groups for p in g.placed} == {
        "us.l40s.on-demand.0",
        "us.own.owned.0",
    }
    assert found.unplaced == {PAIR.id: 1}
