"""Prices and available nodes of pools, from feeds, with plausibility checks.

The last good value stays valid until the next one. An implausible price (more than a factor from
the last good one) is ignored. Each rented node reduces the number of available nodes of its pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.domain.reason import Reason
from topics.reason_codes import ReasonCode
from topics.supply import Availability, Price

STALE_MS = 1_800_000
"""Age in ms from which a price or an offer is not trusted: a stale price counts as at least the
declared one."""
_STALE_MIN = STALE_MS / 60_000
"""`STALE_MS` in minutes, for the reason."""
MOST_TIMES = 20.0
"""A price is implausible if it is above the last good price times this factor, or below the last
good price divided by it."""


@dataclass(frozen=True, slots=True)
class GoodPrice:
    """USD per node and hour, valid since `observed_ms`.

    stale_usd_per_h: the minimum price for plans if the feed is silent; else 0.
    """

    usd_per_h: float
    observed_ms: int
    stale_usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Number of further nodes of a pool that can be rented at `observed_ms`. stale: the feed is
    silent."""

    nodes: int
    observed_ms: int
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Supply:
    """Last good values by pool id. A pool without a value has its declared price and its maximum.

    aside: implausible prices; each is kept until a later price arrives.
    """

    prices: Mapping[str, GoodPrice] = field(default_factory=dict)
    offers: Mapping[str, Offer] = field(default_factory=dict)
    aside: Mapping[str, GoodPrice] = field(default_factory=dict)

    def prices_usd_per_h(self) -> dict[str, float]:
        """USD per node and hour of pools with a price from a feed."""
        return {p: max(one.usd_per_h, one.stale_usd_per_h) for p, one in self.prices.items()}


def fold(
    supply: Supply,
    cluster: Cluster,
    prices: Mapping[str, Price],
    availability: Mapping[str, Availability],
    now_ms: int = 0,
) -> Supply:
    """`supply` after the latest records; the unchanged object if they bring no change.

    Values older than STALE_MS at `now_ms` are stale: a stale price counts as at least the declared
    price, and a stale offer as at most one node.

    Records of undeclared pools and prices of owned pools are ignored.
    """
    pools = {pool.id: pool for pool in cluster.pools if pool.market is not Market.OWNED}
    good = {pool: price for pool, price in supply.prices.items() if pool in pools}
    aside = {pool: price for pool, price in supply.aside.items() if pool in pools}
    for pool_id, record in prices.items():
        pool = pools.get(pool_id)
        known = good.get(pool_id)
        if pool is None or (known is not None and record.observed_ms <= known.observed_ms):
            continue
        if is_plausible(record.usd_per_node_h, known.usd_per_h if known else pool.price_usd_per_h):
            good[pool_id] = GoodPrice(record.usd_per_node_h, record.observed_ms)
            aside.pop(pool_id, None)
        else:
            aside[pool_id] = GoodPrice(record.usd_per_node_h, record.observed_ms)
    offers = {pool: offer for pool, offer in supply.offers.items() if pool in pools}
    for pool_id, offered in availability.items():
        before = offers.get(pool_id)
        if pool_id in pools and (before is None or offered.observed_ms > before.observed_ms):
            offers[pool_id] = Offer(offered.nodes, offered.observed_ms)
    for pool_id, price in good.items():
        least = pools[pool_id].price_usd_per_h if now_ms - price.observed_ms > STALE_MS else 0.0
        if price.stale_usd_per_h != least:
            good[pool_id] = replace(price, stale_usd_per_h=least)
    for pool_id, offer in offers.items():
        if offer.stale != (now_ms - offer.observed_ms > STALE_MS):
            offers[pool_id] = replace(offer, stale=not offer.stale)
    if (good, offers, aside) == (supply.prices, supply.offers, supply.aside):
        return supply
    return Supply(good, offers, aside)


def supply_notices(before: Supply, now: Supply) -> Iterator[Reason]:
    """One notice for each value that became stale, became fresh again, or was ignored as
    implausible. The subject of a notice is the pool."""
    if before is now:
        return
    for pool, price in now.aside.items():
        if before.aside.get(pool) != price:
            good = now.prices.get(pool)
            stands = (good.usd_per_h,) if good else ()
            prices = price.usd_per_h, *stands
            yield Reason(ReasonCode.PRICE_SET_ASIDE, pool, quantities=prices)
    for pool, price in now.prices.items():
        was = before.prices.get(pool)
        if bool(price.stale_usd_per_h) != bool(was and was.stale_usd_per_h):
            stale = Reason(ReasonCode.PRICE_STALE, pool, quantities=(_STALE_MIN,))
            yield stale if price.stale_usd_per_h else Reason(ReasonCode.PRICE_FRESH, pool)
    for pool, offer in now.offers.items():
        if offer.stale != (pool in before.offers and before.offers[pool].stale):
            stale = Reason(ReasonCode.OFFER_STALE, pool, quantities=(_STALE_MIN,))
            yield stale if offer.stale else Reason(ReasonCode.OFFER_FRESH, pool)


def is_plausible(usd_per_h: float, last_good_usd_per_h: float) -> bool:
    """Whether a price differs from the last good price by at most a factor of MOST_TIMES.

    After a price of 0, every finite price is plausible.
    """
    if last_good_usd_per_h <= 0.0:
        return usd_per_h >= 0.0
    ratio = usd_per_h / last_good_usd_per_h
    return 1.0 / MOST_TIMES <= ratio <= MOST_TIMES


def obtainable(
    supply: Supply,
    pools: Iterable[Pool],
    rented_since_ms: Mapping[str, Iterable[int]],
    scarce: Iterable[str],
) -> dict[str, int]:
    """Number of further nodes that can be rented now, per rented pool with known supply.

    rented_since_ms: per pool, the first use of each rented node. Nodes rented since the feed's last
    value are subtracted from it.
    """
    found = {
        pool: max(
            0,
            (min(1, offer.nodes) if offer.stale else offer.nodes)
            - sum(at > offer.observed_ms for at in rented_since_ms.get(pool, ())),
        )
        for pool, offer in supply.offers.items()
    }
    closed = frozenset(scarce)
    found.update({p.id: 0 for p in pools if p.id in closed and p.market is not Market.OWNED})
    return found
