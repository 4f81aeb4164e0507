"""Back-off after failures, and plausibility checks of price and offer feeds."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.rollout.backoff import (
    FIRST_MS,
    MOST_MS,
    Backoff,
    failed,
    full_pools,
    resting_nodes,
    scarce_pools,
    swept,
)
from autoscaler.rollout.supply import Supply, fold, is_plausible, obtainable
from tests.unit.decide.decide_catalogue import pool
from topics.supply import Availability, Price

NOW = 1_700_000_000_000
SPOT = pool("p", market=Market.SPOT, usd=2.0)
OWNED = pool("own", market=Market.OWNED)
CLUSTER = Cluster((SPOT, OWNED), ())


def fails(*nodes: str, at_ms: int = NOW) -> dict[str, Backoff]:
    known: dict[str, Backoff] = {}
    for node in nodes:
        known[node] = failed(known, node, "p", at_ms)
    return known


def test_one_failing_node_backs_off_alone_and_twice_as_long_each_time() -> None:
    known = fails("a")
    assert resting_nodes(known, NOW) == {"a"} and not scarce_pools(known, (), NOW)
    assert not resting_nodes(known, NOW + FIRST_MS)
    waits = []
    for _ in range(7):
        known["a"] = failed(known, "a", "p", NOW)
        waits.append(known["a"].until_ms - NOW)
    assert waits[:3] == [2 * FIRST_MS, 4 * FIRST_MS, 8 * FIRST_MS] and waits[-1] == MOST_MS


def test_new_nodes_of_a_failing_pool_inherit_its_failures() -> None:
    known = fails("a", "b", "c")
    assert [known[node].strikes for node in "abc"] == [1, 2, 3]
    assert failed(known, "x", "another", NOW).strikes == 1


def test_two_failures_close_a_pool_without_serving_instances() -> None:
    known = fails("a", "b")
    assert scarce_pools(known, (), NOW) == {"p"}
    assert scarce_pools(known, (), NOW + 2 * FIRST_MS - 1) == {"p"}
    assert not scarce_pools(known, (), NOW + 2 * FIRST_MS)
    assert not scarce_pools(known, ("p",), NOW)
    assert scarce_pools(fails("a", "b", "c", "d"), ("p",), NOW) == {"p"}


def test_one_failure_closes_a_pool_that_has_no_room_for_any_further_node() -> None:
    known = {"a": failed({}, "a", "p", NOW, pool_full=True)}
    for serving in ((), ("p",)):
        assert scarce_pools(known, serving, NOW + FIRST_MS - 1) == {"p"}
        assert not scarce_pools(known, serving, NOW + FIRST_MS)
    assert full_pools(known, NOW) == {"p"} and not full_pools(known, NOW + FIRST_MS)


def test_failures_are_dropped_after_a_long_time_without_any() -> None:
    known = fails("a")
    later = known["a"].until_ms + MOST_MS
    assert swept(known, {}, later - 1) == known and swept(known, {}, later) == {}
    assert failed(known, "a", "p", later).strikes == 1


@pytest.mark.parametrize(
    ("usd", "good"), [(40.0, True), (40.1, False), (0.1, True), (0.09, False), (0.0, False)]
)
def test_prices_within_twenty_times_of_the_last_accepted_one_are_accepted(
    usd: float, good: bool
) -> None:
    assert is_plausible(usd, 2.0) is good
    kept = fold(Supply(), CLUSTER, {SPOT.id: Price(SPOT.id, usd, NOW)}, {})
    assert kept.prices_usd_per_h() == ({SPOT.id: usd} if good else {})


def test_prices_are_compared_with_the_last_accepted_one() -> None:
    """The declared price is 2. A price of 30 is accepted and 610 is rejected, so 30 stays in force.
    500 is accepted after it.
    """
    supply = fold(Supply(), CLUSTER, {SPOT.id: Price(SPOT.id, 30.0, NOW)}, {})
    supply = fold(supply, CLUSTER, {SPOT.id: Price(SPOT.id, 610.0, NOW + 1)}, {})
    assert supply.prices_usd_per_h() == {SPOT.id: 30.0}
    supply = fold(supply, CLUSTER, {SPOT.id: Price(SPOT.id, 500.0, NOW + 2)}, {})
    assert supply.prices_usd_per_h() == {SPOT.id: 500.0}


def test_old_records_and_records_of_unknown_or_owned_pools_change_nothing() -> None:
    supply = fold(Supply(), CLUSTER, {SPOT.id: Price(SPOT.id, 3.0, NOW)}, {})
    for record in (
        Price(SPOT.id, 9.0, NOW),
        Price("us/nobody/spot", 9.0, NOW + 1),
        Price(OWNED.id, 9.0, NOW + 1),
    ):
        assert fold(supply, CLUSTER, {record.pool: record}, {}) is supply


def test_nodes_rented_after_an_offer_reduce_it() -> None:
    """The offer has 3 nodes. One node was rented before it and two after it, so one is left."""
    supply = fold(Supply(), CLUSTER, {}, {SPOT.id: Availability(SPOT.id, 3, NOW)})
    rented = {SPOT.id: [NOW - 5, NOW + 1, NOW + 2]}
    assert obtainable(supply, CLUSTER.pools, rented, ()) == {SPOT.id: 1}
    assert obtainable(supply, CLUSTER.pools, {SPOT.id: [NOW + 1] * 9}, ()) == {SPOT.id: 0}


def test_closed_pools_offer_nothing_and_owned_ones_are_not_offered() -> None:
    closed = (SPOT.id, OWNED.id)
    assert obtainable(Supply(), CLUSTER.pools, {}, closed) == {SPOT.id: 0}
