"""Back-off after failures, and plausibility checks of price and offer feeds."""

from __future__ import annotations

from dataclasses import replace

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
from autoscaler.rollout.supply import STALE_MS, Supply, fold, is_plausible, obtainable
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
def test_prices_within_twenty_times_of_the_declared_one_are_accepted(
    usd: float, good: bool
) -> None:
    assert is_plausible(usd, 2.0) is good
    kept = fold(Supply(), CLUSTER, {SPOT.id: Price(SPOT.id, usd, NOW)}, {})
    assert kept.prices_usd_per_h() == ({SPOT.id: usd} if good else {})


@pytest.mark.parametrize("factor", [1.5, 5.0, 20.0, 1 / 3, 1 / 20])
@pytest.mark.parametrize("declared_usd", [2.0, 0.0])
def test_a_price_that_multiplies_at_each_reading_stays_within_twenty_times_of_its_reference(
    factor: float, declared_usd: float
) -> None:
    """The reference is the declared price, or the first reading if the declared price is 0."""
    cluster = Cluster((replace(SPOT, price_usd_per_h=declared_usd),), ())
    supply, usd = Supply(), 2.0
    for number in range(30):
        record = Price(SPOT.id, min(usd, 99_999.0), NOW + number)
        supply = fold(supply, cluster, {SPOT.id: record}, {}, NOW + number)
        assert 2.0 / 20 <= supply.prices_usd_per_h()[SPOT.id] <= 2.0 * 20
        usd *= factor
    supply = fold(supply, cluster, {SPOT.id: Price(SPOT.id, 2.1, NOW + 40)}, {}, NOW + 40)
    assert supply.prices_usd_per_h() == {SPOT.id: 2.1} and not supply.aside


@pytest.mark.parametrize("ahead_ms", [1, 60_000, 10**12])
def test_a_reading_dated_ahead_counts_from_now_and_blocks_no_later_one(ahead_ms: int) -> None:
    price, offer = Price(SPOT.id, 3.0, NOW + ahead_ms), Availability(SPOT.id, 3, NOW + ahead_ms)
    supply = fold(Supply(), CLUSTER, {SPOT.id: price}, {SPOT.id: offer}, NOW)
    assert supply.prices[SPOT.id].observed_ms == supply.offers[SPOT.id].observed_ms == NOW
    # The same reading is old after half an hour, whatever its date says.
    later = NOW + STALE_MS + 1
    stale = fold(supply, CLUSTER, {SPOT.id: price}, {SPOT.id: offer}, later)
    assert stale.offers[SPOT.id].stale and stale.prices[SPOT.id].observed_ms == NOW
    price, offer = Price(SPOT.id, 4.0, NOW + 2), Availability(SPOT.id, 5, NOW + 2)
    supply = fold(supply, CLUSTER, {SPOT.id: price}, {SPOT.id: offer}, NOW + 2)
    assert supply.prices_usd_per_h() == {SPOT.id: 4.0} and supply.offers[SPOT.id].nodes == 5


def test_an_implausible_price_dated_ahead_is_noticed_once() -> None:
    record = {SPOT.id: Price(SPOT.id, 9000.0, NOW + 10**9)}
    first = fold(Supply(), CLUSTER, record, {}, NOW)
    assert first.aside and fold(first, CLUSTER, record, {}, NOW + 1000) is first


def test_an_offer_counts_as_at_most_the_nodes_of_its_pool() -> None:
    offer = {SPOT.id: Availability(SPOT.id, 1_000_000, NOW)}
    assert fold(Supply(), CLUSTER, {}, offer).offers[SPOT.id].nodes == SPOT.max_nodes


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
