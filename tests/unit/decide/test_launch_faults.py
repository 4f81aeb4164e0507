"""Launches that fail or never end, and regions that do not report."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from autoscaler.domain.cluster import Market, Policy
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, combos, pool, service, simple
from tests.unit.decide.decide_world import T0, World, world
from topics.reason_codes import ReasonCode


def test_no_instance_drains_for_a_replacement_that_never_starts() -> None:
    """An engine fails permanently, and its replacement never becomes ready. The other instance
    keeps serving.
    """
    first, second = pool("one", nodes=1, per_node=2), pool("two", nodes=4, usd=90.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, first, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, second, 1, 10.0)]),
        )
    }
    w = world(12.0, pools=(first, second), catalogue=catalogue, stuck={second.id}).run(200)
    assert w.assigned_count("chat") == 2 and w.ready("chat") == 2
    broken, other = (i.instance for i in w.applied["us.one.on-demand.0"].instances)
    w.failing.add(broken)

    def check(w: World) -> None:
        kept = [i for i in w.applied["us.one.on-demand.0"].instances if i.instance == other]
        assert kept and not kept[0].drain and w.ready("chat") >= 1

    w.run(3000, check)
    assert any("no CUDA device" in d.reason for d in w.decisions)
    assert w.of_kind("replace")


@pytest.mark.parametrize("nodes", [2, 50])
def test_a_pool_with_repeated_failures_backs_off_and_other_models_are_unaffected(
    nodes: int,
) -> None:
    """The back-off doubles with each failure, even if the pool has unused nodes."""
    bad, good = pool("bad", nodes=nodes), pool("good", nodes=2)
    both = (service("chat"), service("code"))
    catalogue = {"chat": simple("chat", bad), "code": simple("code", good)}
    w = world(5.0, *both, pools=(bad, good), catalogue=catalogue, failing={bad.id}).run(3600)
    failures = [d for d in w.decisions if d.model == "chat" and "no CUDA device" in d.reason]
    gaps = [b.at_ms - a.at_ms for a, b in pairwise(failures)]
    assert 3 <= len(failures) <= 7
    assert all(later > earlier for earlier, later in pairwise(gaps[:4]))
    assert w.ready("code") == 1 and [d.kind for d in w.decisions if d.model == "code"] == [
        "scale_out"
    ]


def test_a_failing_pool_is_replaced_by_another() -> None:
    """Instances fail to start in the first pool, so instances in another pool provide their
    capacity.
    """
    bad, good = pool("bad", usd=1.0), pool("good", usd=9.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, bad, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, good, 1, 10.0)]),
        )
    }
    w = world(5.0, pools=(bad, good), catalogue=catalogue, failing={bad.id}).run(200)
    assert w.ready("chat") == 1
    assert {a.pool for a in w.applied.values() if a.instances} == {good.id}


@pytest.mark.parametrize("market", [Market.ON_DEMAND, Market.OWNED])
def test_one_failure_in_a_full_pool_moves_the_plan_to_another_pool(market: Market) -> None:
    """The cheap pool has three more declared nodes, but its cluster has no room for any."""
    cheap = pool("cheap", nodes=4, market=market, usd=0.0 if market is Market.OWNED else 1.0)
    good = pool("good", usd=9.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, cheap, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, good, 1, 10.0)]),
        )
    }
    switches = {"failing": {cheap.id}, "full": {cheap.id}}
    w = world(5.0, pools=(cheap, good), catalogue=catalogue, **switches).run(200)
    assert w.ready("chat") == 1
    assert {a.pool for a in w.applied.values() if a.instances} == {good.id}
    assert len([d for d in w.decisions if "no CUDA device" in d.reason]) == 1
    # A record without targets is no solve: it shows the fleet without the failed group.
    pools = [one.combo.rpartition("@")[2] for plan in w.plans for one in plan.targets]
    assert sorted(set(pools), key=pools.index) == [cheap.id, good.id]


def test_a_pool_whose_workload_was_corrected_is_tried_again_within_a_minute() -> None:
    """Its nodes back off for minutes."""
    bad = pool("bad", nodes=3)
    w = world(5.0, pools=(bad,), failing={bad.id}, launch_basis="a").run(400)
    assert max(mark.until_ms for mark in w.state.observed.backoff.values()) > w.now_ms + 120_000
    w.failing.clear()
    w.run(60)
    assert w.assigned_count("chat") == 0
    w.launch_basis = "b"
    for node, status in w.statuses.items():  # nodes without an assignment report too
        w.statuses[node] = replace(status, launch_basis="b")
    w.run(60)
    assert w.assigned_count("chat") == 1 and not w.state.observed.backoff


def test_a_start_that_times_out_counts_as_failed() -> None:
    """An instance that never listens fails at the start time-out. One failed node is no evidence
    about other nodes, so the cheap pool gets a second try before another pool.
    """
    bad, good = pool("bad", usd=1.0), pool("good", usd=9.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, bad, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, good, 1, 10.0)]),
        )
    }
    policy = Policy(start_timeout_s=180.0)
    w = world(
        5.0, pools=(bad, good), catalogue=catalogue, policy=policy, stuck={bad.id}, step_s=1
    ).run(440)
    late = [d for d in w.decisions if ReasonCode.NOT_READY in d.codes]
    assert [d.at_ms - T0 for d in late] == [184_000, 367_000]
    assert w.ready("chat") == 1


def test_a_silent_region_is_replaced_once() -> None:
    """All nodes of a region are silent for minutes, and other regions replace their capacity. No
    instance of the silent region starts or is given up, and its routes stay. Afterwards the fleet
    shrinks to its earlier size.
    """
    east, west = pool("p", per_node=1, region="east", usd=1.0), pool("p", region="west", usd=9.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, east, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, west, 1, 10.0)]),
        )
    }
    w = world(12.0, pools=(east, west), catalogue=catalogue).run(300)
    assert w.ready("chat") == 2 and len(w.rented(east.id)) == 2
    w.cut.add(east.id)
    w.run(900)
    assert w.of_kind("replace") and w.ready("chat") == 4
    assert len(w.rented(east.id)) == 2 and len(w.rented(west.id)) == 1
    w.cut.clear()
    w.run(600)
    assert w.ready("chat") == 2 and len(w.rented(west.id)) == 0
