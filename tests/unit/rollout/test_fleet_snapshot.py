"""Lost nodes, and regions that are cut off from the controller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.domain.workload import Phase
from autoscaler.estimate.engine_rate import GroupCount
from autoscaler.performance import catalog
from autoscaler.rollout.fleet_snapshot import FleetSnapshot, snapshot
from autoscaler.rollout.serving_group import Placed, ServingGroup
from topics.fleet import InstanceState, ObservedInstance, Status

NOW_MS = 1_700_000_000_000
POOL = Pool("us", "l4", catalog.gpu("L4"), 1, 4, Market.ON_DEMAND, 1.0)
CLUSTER = Cluster((POOL,), ())


def status(node: str, age_s: float, serves: bool) -> Status:
    one = ObservedInstance(f"i-{node}", "chat", "aggregated", "g:1", InstanceState.READY, (0,))
    at_ms = NOW_MS - int(age_s * 1000)
    return Status(node, POOL.id, "x", 1, at_ms, (one,) if serves else ())


@pytest.mark.parametrize("since_s", [13.5, 16.0, 20.0, 40.0])
def test_a_cut_off_region_is_detected_with_its_first_silent_node(
    since_s: float,
) -> None:
    """Serving nodes report every 2 s, idle nodes every 10 s. The region was cut off `since_s` ago.
    No serving node counts as a single lost node, because its replacement would be useless.
    """
    heard = {
        "busy": status("busy", since_s + 1.9, serves=True),
        "idle": status("idle", since_s + 0.1, serves=False),
    }
    sight = snapshot((), heard, {}, CLUSTER, NOW_MS, 0)
    assert "busy" in sight.silent
    assert sight.cut_pools == {POOL.id}


@pytest.mark.parametrize(("listens_s", "lost"), [(0.5, False), (11.0, False), (12.0, True)])
def test_no_node_is_lost_before_the_leader_has_listened_for_the_silence_limit(
    listens_s: float, lost: bool
) -> None:
    """The broker was unavailable for a minute, so all statuses are old."""
    heard = {"a": status("a", 60.0, serves=True), "b": status("b", 61.0, serves=True)}
    since_ms = NOW_MS - int(listens_s * 1000)
    sight = snapshot((), heard, {}, CLUSTER, NOW_MS, since_ms)
    assert sight.silent == ({"a", "b"} if lost else set())


@pytest.mark.parametrize("idle_s", [0.0, 5.0, 10.5])
def test_a_silent_node_with_a_reporting_neighbour_is_a_single_loss(idle_s: float) -> None:
    """This holds between two reports of an idle neighbour, too."""
    heard = {
        "busy": status("busy", 16.0, serves=True),
        "idle": status("idle", idle_s, serves=False),
    }
    sight = snapshot((), heard, {}, CLUSTER, NOW_MS, 0)
    assert sight.silent == {"busy"}
    assert sight.cut_pools == frozenset()


@pytest.mark.parametrize("market", [Market.OWNED, Market.ON_DEMAND])
def test_an_idle_node_is_lost_only_where_it_is_owned(market: Market) -> None:
    """A rented idle node is normally given back to the provider."""
    where = replace(POOL, market=market)
    heard = {
        "idle": replace(status("idle", 60.0, serves=False), pool=where.id),
        "busy": replace(status("busy", 60.0, serves=True), pool=where.id),
        "well": replace(status("well", 1.0, serves=True), pool=where.id),
    }
    sight = snapshot((), heard, {}, Cluster((where,), ()), NOW_MS, 0)
    assert sight.silent == {"idle", "busy"}
    assert sight.lost == ({"idle", "busy"} if market is Market.OWNED else {"busy"})


def test_silent_idle_nodes_do_not_mark_a_region_as_cut_off() -> None:
    """They may have been deleted. So a lost serving node is a single loss, and a region without a
    serving node is not cut off.
    """
    gone = {node: status(node, 700.0, serves=False) for node in ("a", "b", "c")}
    assert snapshot((), gone, {}, CLUSTER, NOW_MS, 0).cut_pools == frozenset()
    lost = {**gone, "busy": status("busy", 20.0, serves=True)}
    assert snapshot((), lost, {}, CLUSTER, NOW_MS, 0).cut_pools == frozenset()


def test_a_node_lost_long_ago_does_not_mark_a_region_as_cut_off() -> None:
    """Its instances ended hours ago. The node that serves now is a single loss."""
    heard = {"old": status("old", 7200.0, serves=True), "busy": status("busy", 20.0, serves=True)}
    assert snapshot((), heard, {}, CLUSTER, NOW_MS, 0).cut_pools == frozenset()


@pytest.mark.parametrize(
    ("since_s", "shut", "gone"),
    [(60.0, True, False), (1700.0, True, False), (1900.0, False, False), (3700.0, False, True)],
)
def test_a_region_stays_cut_off_for_a_time(since_s: float, shut: bool, gone: bool) -> None:
    """For half an hour no instance starts in the region. Its rented nodes are given up after an
    hour.
    """
    heard = {node: status(node, since_s, serves=True) for node in ("a", "b")}
    sight = snapshot((), heard, {}, CLUSTER, NOW_MS, 0)
    assert sight.cut_pools == {POOL.id}
    assert sight.shut_pools == ({POOL.id} if shut else set())
    assert sight.gone == ({"a", "b"} if gone else set())


def test_owned_nodes_of_a_region_that_is_cut_off_are_never_given_up() -> None:
    owned = replace(POOL, market=Market.OWNED)
    heard = {
        node: replace(status(node, 90_000.0, serves=True), pool=owned.id) for node in ("a", "b")
    }
    sight = snapshot((), heard, {}, Cluster((owned,), ()), NOW_MS, 0)
    assert sight.cut_pools == {owned.id}
    assert sight.gone == frozenset()


def test_the_name_of_a_reclaimed_node_can_be_reused_after_its_end() -> None:
    heard = {
        "reclaimed": replace(status("reclaimed", 700.0, serves=False), reclaim_ms=NOW_MS - 600_000),
        "going": replace(status("going", 1.0, serves=True), reclaim_ms=NOW_MS + 60_000),
    }
    sight = snapshot((), heard, {}, CLUSTER, NOW_MS, 0)
    assert sight.gone == {"reclaimed"}
    assert sight.unusable == {"going"} == sight.reclaimed.keys()


def test_a_request_through_a_prefill_decode_group_counts_once() -> None:
    """It counts as finished at its decode instance, and as in flight wherever it is."""
    placed = tuple(
        Placed(f"i-{phase}", phase, f"n-{phase}", POOL.id, (0,))
        for phase in (Phase.PREFILL, Phase.DECODE)
    )
    pair = ServingGroup("g:1", "chat", "g", "default", placed, NOW_MS - 10**6)

    def sight(finished: int, serves: InstanceState = InstanceState.READY) -> FleetSnapshot:
        heard = {}
        for one, age_s, in_flight in zip(placed, (1.0, 3.0), (2, 7), strict=True):
            seen = ObservedInstance(
                one.instance, "chat", one.phase, "g:1", serves, (0,), f"{one.node}:1",
                in_flight=in_flight, finished=finished,
            )  # fmt: skip
            heard[one.node] = replace(status(one.node, age_s, serves=False), instances=(seen,))
        return snapshot((pair,), heard, {}, CLUSTER, NOW_MS, 0)

    assert sight(100).accepted((pair,)) == {"g:1": GroupCount(NOW_MS - 3000, 100 + 9)}
    assert sight(0).accepted((pair,)) == {}
    assert sight(0, InstanceState.STARTING).accepted((pair,)) == {
        "g:1": GroupCount(NOW_MS - 3000, 9)
    }
    assert snapshot((pair,), {}, {}, CLUSTER, NOW_MS, 0).accepted((pair,)) == {}


def test_stages_of_a_model_of_components_are_not_counted() -> None:
    """Several of them in turn finish one request."""
    placed = Placed("g-1+vision", Phase.AGGREGATED, "n", POOL.id, (0,))
    cell = ServingGroup("g:1", "chat", "g", "default", (placed,), NOW_MS - 10**6)
    seen = ObservedInstance(
        placed.instance, "chat", "aggregated", "g:1", InstanceState.READY, (0,), "n:1", finished=9
    )
    heard = {"n": replace(status("n", 1.0, serves=False), instances=(seen,))}
    assert snapshot((cell,), heard, {}, CLUSTER, NOW_MS, 0).accepted((cell,)) == {}
    whole = replace(cell, placed=(replace(placed, instance="g-1"),))
    heard = {"n": replace(heard["n"], instances=(replace(seen, instance="g-1"),))}
    assert snapshot((whole,), heard, {}, CLUSTER, NOW_MS, 0).accepted((whole,)) != {}
