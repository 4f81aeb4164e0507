"""Capacity, cost and versions of groups, and the parts of a fleet's snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.workload import Phase
from autoscaler.rollout.capacity_and_cost import (
    billed_usd_per_h,
    by_model,
    nodes_of,
    raw_req_per_s,
    rented_since_ms,
)
from autoscaler.rollout.fleet_snapshot import FleetSnapshot, snapshot
from autoscaler.rollout.launch_failures import detect_faults
from autoscaler.rollout.serving_group import Life, Placed, ServingGroup, Switch
from autoscaler.rollout.versions import Version, most_common, runs, version_of, with_known_version
from tests.unit.decide.decide_catalogue import pool, service, simple
from topics.fleet import InstanceState, ObservedInstance, Status

NOW = 1_700_000_000_000
RENTED = pool(nodes=6, usd=8.0)
OWNED = pool("own", nodes=2, market=Market.OWNED)
CLUSTER = Cluster((RENTED, OWNED), ())
ONE = simple("chat", RENTED)[0]
READY = InstanceState.READY


def group(serial: int, node: str = "n", where: str = RENTED.id, **changes: Any) -> ServingGroup:
    placed = (Placed(f"i{serial}", Phase.AGGREGATED, node, where, (serial,)),)
    made = ServingGroup(f"{ONE.id}:{serial}", "chat", ONE.id, "e", placed, NOW - 3_600_000)
    return replace(made, **changes)


def status_of(*groups: ServingGroup, age_s: float = 1.0, **changes: Any) -> Status:
    """The status of the node of `groups`, whose instances are ready."""
    place = groups[0].placed[0]
    instances = tuple(
        ObservedInstance(
            one.placed[0].instance, one.model, "aggregated", one.name, READY, (0,), "h:1"
        )
        for one in groups
    )
    at_ms = NOW - int(age_s * 1000)
    return replace(Status(place.node, place.pool, "x", 1, at_ms, instances), **changes)


def sight(
    groups: tuple[ServingGroup, ...], *statuses: Status, cluster: Cluster = CLUSTER
) -> FleetSnapshot:
    return snapshot(groups, {s.node: s for s in statuses}, {ONE.id: ONE}, cluster, NOW, 0)


def test_groups_are_counted_by_model_node_and_capacity() -> None:
    other = group(3, "m", model="code", combo_id="unknown")
    groups = (group(1), group(2), other)
    assert by_model(groups) == {"chat": [groups[0], groups[1]], "code": [other]}
    assert raw_req_per_s(groups, {ONE.id: ONE}) == 20.0
    assert nodes_of(groups) == {"n": RENTED.id, "m": RENTED.id}


def test_a_node_is_rented_since_its_first_group() -> None:
    groups = (
        group(1, created_ms=50), group(2, created_ms=40), group(3, created_ms=60),
        group(4, "m", created_ms=70), group(5, "o", OWNED.id, created_ms=80),
    )  # fmt: skip
    assert rented_since_ms(groups) == {RENTED.id: [40, 70], OWNED.id: [80]}


def test_lost_nodes_are_not_on_the_bill_unless_a_new_group_uses_their_name() -> None:
    kept, lost = group(1, "n"), group(2, "m")
    groups = (kept, lost, group(3, "own", OWNED.id))
    here = sight(groups, status_of(kept), status_of(lost, age_s=60.0))
    prices = {RENTED.id: 8.0}
    assert here.silent == here.unpaid(groups) == {"m"}
    assert billed_usd_per_h(groups, here, prices) == 8.0
    new = group(4, "m", created_ms=NOW)
    assert here.unpaid((kept, new)) == frozenset()
    assert billed_usd_per_h((kept, new), here, prices) == 16.0
    assert here.unpaid((kept,)) == {"m"}
    assert sight(groups, status_of(kept), status_of(lost)).unpaid(groups) == frozenset()


def test_a_lost_group_is_unreachable_unless_its_region_is_cut_off() -> None:
    kept, lost = group(1, "n"), group(2, "m")
    alone = sight((kept, lost), status_of(kept), status_of(lost, age_s=60.0))
    assert not alone.reachable([lost]) and alone.reachable([kept])
    assert not alone.counts(lost) and alone.counts(kept)
    assert not alone.counts(replace(kept, life=Life.RETIRING))
    both = sight((kept, lost), status_of(kept, age_s=60.0), status_of(lost, age_s=60.0))
    assert both.cut_pools == {RENTED.id, OWNED.id} and both.reachable([lost])
    long_ago = sight((kept, lost), status_of(kept, age_s=3700.0), status_of(lost, age_s=3700.0))
    late = replace(lost, created_ms=NOW - 3_700_000)
    assert long_ago.gone == {"n", "m"} and not long_ago.reachable([late])


def test_feeds_and_serving_pools_come_from_the_statuses() -> None:
    one, two, idle = group(1, "n"), group(2, "m"), group(3, "o", OWNED.id)
    here = sight(
        (one, two, idle),
        status_of(one, load_feed="b"), status_of(two, load_feed="a"),
        replace(status_of(idle, load_feed=""), instances=()),
    )  # fmt: skip
    assert here.load_feeds((one, two, idle)) == ("a", "b")
    assert here.load_feeds((one, group(9, "unheard"))) == ("b",)
    assert here.serving_pools() == {RENTED.id}
    silent = sight((one, two), status_of(one, age_s=16.0), status_of(two, age_s=16.0))
    assert silent.serving_pools() == frozenset()
    starting = status_of(one)
    slow = replace(starting.instances[0], state=InstanceState.STARTING)
    assert sight((one,), replace(starting, instances=(slow,))).serving_pools() == frozenset()


def test_the_first_reclaim_of_a_groups_nodes_counts() -> None:
    wide = replace(group(1, "n"), placed=(*group(1, "n").placed, *group(2, "m").placed))
    here = sight(
        (wide,),
        status_of(group(1, "n"), reclaim_ms=NOW + 90),
        status_of(group(2, "m"), reclaim_ms=NOW + 60),
    )
    assert here.reclaim_ms(wide) == NOW + 60
    assert here.reclaim_ms(group(3, "o")) == 0
    assert here.unusable == {"n", "m"}


def test_new_groups_have_no_ready_instance_and_undone_switches_keep_theirs() -> None:
    old = group(1)
    here = sight((old,), status_of(old))
    new = group(2)
    known = here.with_new((old, new))
    assert known.views[new.name].ready == () and not known.views[new.name].all_ready
    assert known.views[old.name] is here.views[old.name] and here.with_new((old,)) is here
    held = replace(old, name="switched:9", switch=Switch(old.name, old.placed))
    switched = here.with_new((held,))
    assert [at for _, at in switched.views["switched:9"].ready] == ["h:1"]
    fresh = replace(held, switch=Switch("never seen", old.placed))
    assert here.with_new((fresh,)).views["switched:9"].ready == ()
    only = replace(switched, views={"switched:9": switched.views["switched:9"]})
    back = only.with_undone((held,), (old,))
    assert back.views[old.name].all_ready
    assert only.with_undone((held,), (held,)) is only
    assert here.with_undone((held,), (old,)) is here, "its view is known"


@pytest.mark.parametrize(("idle_s", "silent"), [(45.0, False), (45.1, True)])
def test_an_idle_node_may_be_silent_for_three_times_as_long(idle_s: float, silent: bool) -> None:
    idle = replace(status_of(group(1), age_s=idle_s), instances=())
    assert sight((), idle).silent == ({"n"} if silent else set())
    busy = status_of(group(1), age_s=15.0)
    assert sight((group(1),), busy).silent == frozenset()
    assert sight((group(1),), replace(busy, at_ms=NOW - 15_001)).silent == {"n"}


@pytest.mark.parametrize(
    ("where", "age_s", "gone", "unusable"),
    [(RENTED, 600.0, False, True), (RENTED, 600.1, True, False), (OWNED, 600.1, True, True)],
)
def test_a_single_lost_node_is_given_up_after_ten_minutes(
    where: Any, age_s: float, gone: bool, unusable: bool
) -> None:
    """An owned node must report again before it gets a launch."""
    one, well = group(1, "n", where.id), group(2, "m", where.id)
    here = sight((one, well), status_of(one, age_s=age_s), status_of(well))
    assert here.gone == ({"n"} if gone else set())
    assert here.unusable == ({"n"} if unusable else set())


def test_a_start_times_out_after_twice_its_prediction_and_at_least_ten_minutes() -> None:
    for start_s, late_s in ((60.0, 600), (400.0, 800)):
        combo = replace(ONE, start_s=start_s)
        for waited_s, broken in ((late_s, False), (late_s + 1, True)):
            one = group(1, created_ms=NOW - waited_s * 1000)
            status = replace(status_of(one), instances=())
            here = snapshot((one,), {"n": status}, {ONE.id: combo}, CLUSTER, NOW, 0)
            assert (here.views[one.name].broken is not None) is broken


def test_a_version_that_never_served_fails_without_a_mark_for_its_node() -> None:
    one = group(1)
    status = status_of(one)
    broken = replace(status.instances[0], state=InstanceState.FAILED)
    here = sight((one,), replace(status, instances=(broken,)))
    found = detect_faults((one,), here, {}, (), NOW, lambda _: True)
    assert found.failures == () and found.backoff == {}
    assert [(g.life, g.failed_ms) for g in found.groups] == [(Life.RETIRING, NOW)]


def test_groups_on_one_reclaimed_node_retire_unless_they_leave_already() -> None:
    one, leaving = group(1), group(2, life=Life.DRAINING)
    here = sight((one, leaving), status_of(one, leaving, reclaim_ms=NOW + 60_000))
    found = detect_faults((one, leaving), here, {}, (), NOW)
    assert [g.life for g in found.groups] == [Life.RETIRING, Life.DRAINING]
    assert found.lost == (one,)


SERVICE = service("chat", engine="vllm")
V2 = SERVICE.version


def test_a_group_runs_a_version_by_its_digest_or_else_its_engine() -> None:
    two = Version("vllm", "v2")
    assert runs(group(1, version="v2", engine="other"), two)
    assert not runs(group(1, version="v1", engine="vllm"), two)
    assert runs(group(1, engine="vllm"), two) and not runs(group(1, engine="other"), two)
    assert version_of(group(1, version="v1")) == Version("e", "v1")


def test_a_group_of_an_older_controller_gets_the_declared_version() -> None:
    plain = group(1, engine="vllm")
    assert with_known_version(plain, SERVICE) == replace(plain, version=V2)
    for kept in (replace(plain, version="v1"), replace(plain, engine="other")):
        assert with_known_version(kept, SERVICE) is kept
    assert with_known_version(plain, None) is plain
    parts = replace(SERVICE, graph=cast(ComponentGraph, object()))
    assert with_known_version(replace(plain, engine="x"), parts) == replace(
        plain, version=parts.version
    )
    old = replace(plain, engine="x", version="v1")
    assert with_known_version(old, parts) == replace(old, engine="vllm")


def test_the_most_common_version_wins_and_the_highest_digest_among_equals() -> None:
    of = [group(k, version=v) for k, v in enumerate(("v1", "v2", "v2", "v3", "v3"))]
    assert most_common(of[:3]) == Version("e", "v2")
    assert most_common(of) == Version("e", "v3")
    assert most_common(()) is None
