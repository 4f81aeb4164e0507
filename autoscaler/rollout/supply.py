"""Prices and available nodes of pools, from feeds, with plausibility checks.

The last good value stays valid until the next one. An implausible price (more than a factor from
the declared one) is ignored. A reading dated ahead counts from now, so it blocks no later reading.
Each rented node reduces the number of available nodes of its pool.
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
"""A price is implausible if it is above the declared price times this factor, or below the declared
price divided by it. The limit does not move with the readings: a feed that multiplies its price at
each reading would otherwise be followed without end."""


@dataclass(frozen=True, slots=True)
class GoodPrice:
    """USD per node and hour, valid since `observed_ms`.

    stale_usd_per_h: the minimum price for plans if the feed is silent; else 0. first_usd_per_h:
    first price of the pool, the reference if the declared price is 0. record_ms: time in the
    record, which only identifies it.
    """

    usd_per_h: float
    observed_ms: int
    stale_usd_per_h: float = 0.0
    first_usd_per_h: float = 0.0
    record_ms: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Number of further nodes of a pool that can be rented at `observed_ms`. stale: the feed is
    silent. record_ms: as in `GoodPrice`."""

    nodes: int
    observed_ms: int
    stale: bool = False
    record_ms: int = 0


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
    price, and a stale offer as at most one node. now_ms: 0 means that no reading is dated ahead. An
    offer counts as at most the `max_nodes` of its pool.

    Records of undeclared pools and prices of owned pools are ignored.
    """
    pools = {pool.id: pool for pool in cluster.pools if pool.market is not Market.OWNED}
    good = {pool: price for pool, price in supply.prices.items() if pool in pools}
    aside = {pool: price for pool, price in supply.aside.items() if pool in pools}
    for pool_id, record in prices.items():
        pool = pools.get(pool_id)
        known = good.get(pool_id)
        if pool is None or not _is_news(record, known, now_ms):
            continue
        first = (known.first_usd_per_h if known else 0.0) or record.usd_per_node_h
        found = GoodPrice(
            record.usd_per_node_h, _heard_ms(record, now_ms), 0.0, first, record.observed_ms
        )
        if is_plausible(record.usd_per_node_h, pool.price_usd_per_h or first):
            good[pool_id] = found
            aside.pop(pool_id, None)
        elif pool_id not in aside or aside[pool_id].record_ms != record.observed_ms:
            aside[pool_id] = found
    offers = {pool: offer for pool, offer in supply.offers.items() if pool in pools}
    for pool_id, offered in availability.items():
        if pool_id in pools and _is_news(offered, offers.get(pool_id), now_ms):
            nodes = min(offered.nodes, pools[pool_id].max_nodes)
            at_ms = _heard_ms(offered, now_ms)
            offers[pool_id] = Offer(nodes, at_ms, False, offered.observed_ms)
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


def _heard_ms(record: Price | Availability, now_ms: int) -> int:
    """The time of a reading, at most `now_ms`."""
    return min(record.observed_ms, now_ms) if now_ms else record.observed_ms


def _is_news(record: Price | Availability, known: GoodPrice | Offer | None, now_ms: int) -> bool:
    """Whether `record` is another reading than `known`, and not older."""
    if known is None:
        return True
    return record.observed_ms != known.record_ms and _heard_ms(record, now_ms) >= known.observed_ms


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


def is_plausible(usd_per_h: float, reference_usd_per_h: float) -> bool:
    """Whether a price differs from the reference by at most a factor of MOST_TIMES.

    Without a reference (0), every finite price is plausible.
    """
    if reference_usd_per_h <= 0.0:
        return usd_per_h >= 0.0
    ratio = usd_per_h / reference_usd_per_h
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
            - sum(at >= offer.observed_ms for at in rented_since_ms.get(pool, ())),
        )
        for pool, offer in supply.offers.items()
    }
    closed = frozenset(scarce)
    found.update({p.id: 0 for p in pools if p.id in closed and p.market is not Market.OWNED})
    return found
