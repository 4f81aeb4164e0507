"""Readings of prices and offers: when they are news, when they are stale, and the notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.rollout.backoff import Backoff, failed, scarce_pools, swept
from autoscaler.rollout.supply import (
    STALE_MS,
    Offer,
    Supply,
    fold,
    is_plausible,
    obtainable,
    supply_notices,
)
from tests.unit.decide.decide_catalogue import pool
from topics.fleet import Status
from topics.reason_codes import ReasonCode
from topics.supply import Availability, Price

NOW = 1_700_000_000_000
SPOT = pool("p", market=Market.SPOT, usd=2.0)
CLUSTER = Cluster((SPOT, pool("own", market=Market.OWNED)), ())
ID = SPOT.id


def read(
    before: Supply = Supply(),  # noqa: B008  a frozen value
    usd: float | None = None,
    nodes: int | None = None,
    at_ms: int = NOW,
    now_ms: int = NOW,
) -> Supply:
    """The supply after a price and an offer of `at_ms`."""
    prices = {} if usd is None else {ID: Price(ID, usd, at_ms)}
    offers = {} if nodes is None else {ID: Availability(ID, nodes, at_ms)}
    return fold(before, CLUSTER, prices, offers, now_ms)


def notices(before: Supply, now: Supply) -> list[tuple[ReasonCode, str, tuple[float, ...]]]:
    return [(one.code, one.subject, tuple(one.quantities)) for one in supply_notices(before, now)]


def test_a_price_that_is_half_an_hour_old_counts_as_at_least_the_declared_one() -> None:
    cheap, dear = read(usd=1.5), read(usd=3.0)
    for supply, usd in ((cheap, 2.0), (dear, 3.0)):
        assert read(supply, now_ms=NOW + STALE_MS) is supply
        old = read(supply, now_ms=NOW + STALE_MS + 1)
        assert old.prices_usd_per_h() == {ID: usd}
        assert notices(supply, old) == [(ReasonCode.PRICE_STALE, ID, (30.0,))]
        assert read(old, now_ms=NOW + STALE_MS + 2) is old and notices(old, old) == []
        later = NOW + STALE_MS + 2
        fresh = read(old, usd=1.0, at_ms=later, now_ms=later)
        assert fresh.prices_usd_per_h() == {ID: 1.0}
        assert notices(old, fresh) == [(ReasonCode.PRICE_FRESH, ID, ())]


def test_a_stale_offer_counts_as_at_most_one_node() -> None:
    for nodes, left in ((4, 1), (0, 0)):
        supply = read(nodes=nodes)
        assert read(supply, now_ms=NOW + STALE_MS) is supply
        old = read(supply, now_ms=NOW + STALE_MS + 1)
        assert obtainable(supply, CLUSTER.pools, {}, ()) == {ID: nodes}
        assert obtainable(old, CLUSTER.pools, {}, ()) == {ID: left}
        assert notices(supply, old) == [(ReasonCode.OFFER_STALE, ID, (30.0,))]
        later = NOW + STALE_MS + 2
        fresh = read(old, nodes=2, at_ms=later, now_ms=later)
        assert fresh.offers == {ID: Offer(2, later, False, later)}
        assert notices(old, fresh) == [(ReasonCode.OFFER_FRESH, ID, ())]


def test_values_that_are_stale_when_first_read_are_noticed() -> None:
    old = read(usd=1.5, nodes=4, at_ms=NOW - STALE_MS - 1)
    assert [code for code, _, _ in notices(Supply(), old)] == [
        ReasonCode.PRICE_STALE,
        ReasonCode.OFFER_STALE,
    ]
    assert notices(Supply(), read(usd=1.5, nodes=4)) == []


def test_an_implausible_price_is_noticed_with_the_one_that_stays() -> None:
    good = read(usd=1.5)
    odd = read(good, usd=100.0, at_ms=NOW + 1, now_ms=NOW + 1)
    assert odd.prices_usd_per_h() == {ID: 1.5}
    assert notices(good, odd) == [(ReasonCode.PRICE_SET_ASIDE, ID, (100.0, 1.5))]
    assert notices(Supply(), read(usd=100.0)) == [(ReasonCode.PRICE_SET_ASIDE, ID, (100.0,))]
    again = read(odd, usd=100.0, at_ms=NOW + 2, now_ms=NOW + 2)
    assert notices(odd, again) == [(ReasonCode.PRICE_SET_ASIDE, ID, (100.0, 1.5))]
    fine = read(again, usd=1.6, at_ms=NOW + 3, now_ms=NOW + 3)
    assert fine.aside == {} and notices(again, fine) == []


def test_only_another_and_no_older_reading_is_news() -> None:
    supply = read(usd=1.5, nodes=3)
    for at_ms, news in ((NOW - 1, False), (NOW, False), (NOW + 1, True)):
        after = read(supply, usd=1.6, nodes=2, at_ms=at_ms, now_ms=NOW + 1)
        assert (after is not supply) is news
    ahead = read(usd=1.5, nodes=3, at_ms=NOW + 1000)
    after = read(ahead, usd=1.6, nodes=2, at_ms=NOW)
    assert after.prices_usd_per_h() == {ID: 1.6} and after.offers[ID].nodes == 2


def test_values_of_pools_that_are_no_longer_declared_are_dropped() -> None:
    supply = read(usd=1.5, nodes=3)
    odd = read(supply, usd=100.0, at_ms=NOW + 1, now_ms=NOW + 1)
    assert fold(odd, Cluster((), ()), {}, {}, NOW + 1) == Supply()


def test_nodes_rented_since_the_offer_count_against_it() -> None:
    """A tick reads an offer before it rents, so a node of the same ms is not part of the offer."""
    supply = read(nodes=3)
    rented = {ID: [NOW - 1, NOW, NOW + 1]}
    assert obtainable(supply, CLUSTER.pools, rented, ()) == {ID: 1}


def strikes(count: int, until_ms: int = NOW + 1) -> dict[str, Backoff]:
    return {f"n{k}": Backoff("p", until_ms, 1) for k in range(count)}


@pytest.mark.parametrize(
    ("nodes", "serving", "closed"), [(1, (), False), (2, (), True), (3, ("p",), False),
                                     (4, ("p",), True)],
)  # fmt: skip
def test_a_pool_closes_after_two_nodes_or_four_if_it_serves(
    nodes: int, serving: tuple[str, ...], closed: bool
) -> None:
    assert scarce_pools(strikes(nodes), serving, NOW) == ({"p"} if closed else set())


def test_a_pool_is_open_while_none_of_its_nodes_backs_off() -> None:
    """Earlier strikes are remembered for half an hour, and close it again at the next failure."""
    old = strikes(3, NOW)
    assert scarce_pools(old, (), NOW) == frozenset()
    both = {**old, "new": Backoff("p", NOW + 1, 2)}
    assert scarce_pools(both, (), NOW) == {"p"}
    long_ago = strikes(3, NOW - 1_920_000)
    assert scarce_pools({**long_ago, "new": Backoff("p", NOW + 1, 1)}, (), NOW) == frozenset()
    recent = strikes(1, NOW - 1_919_999)
    assert scarce_pools({**recent, "new": Backoff("p", NOW + 1, 1)}, (), NOW) == {"p"}


def test_the_back_off_is_two_minutes_and_at_most_32() -> None:
    assert failed({}, "n", "p", NOW) == Backoff("p", NOW + 120_000, 1)
    many = {"n": Backoff("p", NOW, 40)}
    assert failed(many, "n", "p", NOW) == Backoff("p", NOW + 1_920_000, 41)
    moved = {"n": Backoff("q", NOW, 2)}
    assert failed(moved, "n", "p", NOW).strikes == 3, "the node counts, whatever its pool was"


def test_a_node_with_other_settings_may_launch_again() -> None:
    mark = Backoff("p", NOW + 1, 1, launch_basis="old")
    status = Status("n", "p", "x", 1, NOW, launch_basis="old")
    assert swept({"n": mark}, {"n": status}, NOW) == {"n": mark}
    assert swept({"n": mark}, {"n": replace(status, launch_basis="new")}, NOW) == {}
    assert swept({"n": mark}, {}, NOW) == {"n": mark}


def test_a_price_is_plausible_up_to_a_factor_of_the_reference() -> None:
    assert [is_plausible(price, 0.0) for price in (-0.1, 0.0, 1e6)] == [False, True, True]
    assert [is_plausible(2.0 * factor, 2.0) for factor in (0.049, 0.051, 19.9, 20.1)] == [
        False, True, True, False,
    ]  # fmt: skip
