"""Possible fixed fleets of one model, and their price per hour.

A fleet has a count for each instance kind: the region, GPU type and number of GPUs of an aggregated
instance. For each kind, owned nodes are filled first, then spot nodes up to the service's spot
share, then on-demand nodes. Every fleet obeys the declared minimum and maximum numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.candidate_combos import evaluate_combo, usable_pools
from autoscaler.planning.combo_names import combo_id
from autoscaler.simulation.fixed_fleet import combos_by_id, place_groups

_MOST_SPLITS = 2000
_ORDER = {Market.OWNED: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}

Counts = tuple[int, ...]
"""Number of instances of each kind."""


@dataclass(frozen=True, slots=True)
class InstanceKind:
    """Equal instances. pools: in the order in which they are filled. req_per_s: capacity of one
    instance. offered: most instances by pool id, if fewer nodes are offered than declared."""

    name: str
    gpus: int
    pools: tuple[Pool, ...]
    req_per_s: float
    offered: Mapping[str, int] = field(default_factory=dict)

    def max_count(self) -> int:
        """Number of instances that the pools can hold."""
        return sum(self._room(pool) for pool in self.pools)

    def _room(self, pool: Pool) -> int:
        declared = pool.max_nodes * (pool.per_node // self.gpus)
        return min(declared, self.offered.get(pool.id, declared))

    def max_count_in(self, *markets: Market) -> int:
        """Number of instances that the pools of `markets` can hold."""
        return sum(self._room(pool) for pool in self.pools if pool.market in markets)

    def count_by_pool(self, by_market: dict[Market, int]) -> dict[str, int]:
        """Distribute the counts per market over pools. Returns pool id -> count."""
        left, found = dict(by_market), dict[str, int]()
        for pool in self.pools:
            count = min(left.get(pool.market, 0), self._room(pool))
            if count:
                found[pool.id] = count
                left[pool.market] -= count
        return found

    def usd_per_h(self, market: Market) -> float:
        """Price of one instance (its share of a node) in the cheapest pool of `market`; 0 if the
        market has no pool."""
        prices = [p.price_usd_per_h * self.gpus / p.per_node for p in self.pools]
        mine = [
            price for price, pool in zip(prices, self.pools, strict=True) if pool.market is market
        ]
        return min(mine, default=0.0)


def instance_kinds(
    cluster: Cluster, service: Service, lengths: Lengths
) -> tuple[InstanceKind, ...]:
    """Every kind of instance that could serve `service`."""
    grouped: dict[tuple[str, str, int], list[Pool]] = {}
    for pool in usable_pools(cluster, service):
        for gpus in SLICE_SIZES:
            if gpus <= pool.largest_slice:
                grouped.setdefault((pool.region, pool.gpu.name, gpus), []).append(pool)
    found = []
    for (region, gpu, gpus), pools in sorted(grouped.items()):
        name = combo_id(service.model, [(Phase.AGGREGATED, gpus, pools[0].id, 1)])
        try:
            made = evaluate_combo(name, cluster, service, lengths, cluster_profile(cluster))
        except InvalidValue:
            continue  # skip: the weights or a single request do not fit
        ordered = tuple(sorted(pools, key=lambda p: (_ORDER[p.market], p.price_usd_per_h)))
        found.append(InstanceKind(f"{gpus}x{gpu} {region}", gpus, ordered, made.req_per_s))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Fleets of `service`, the only service of `cluster`, at the given lengths."""

    cluster: Cluster
    service: Service
    lengths: Lengths
    kinds: tuple[InstanceKind, ...]

    def combo_counts(self, counts: Counts) -> dict[str, int]:
        """Combo id -> count: owned nodes first, then the cheapest split of the other instances
        between spot and on-demand.

        Raises InvalidValue if the pools hold too few instances.
        """
        pairs = list(zip(counts, self.kinds, strict=True))
        owned = [min(count, kind.max_count_in(Market.OWNED)) for count, kind in pairs]
        rest = tuple(count - own for count, own in zip(counts, owned, strict=True))
        total = sum(count * kind.req_per_s for count, kind in pairs)
        on_spot = self._spot(rest, self.service.spot_share * total + 1e-9)
        found: dict[str, int] = {}
        for kind, own, spot, both in zip(self.kinds, owned, on_spot, rest, strict=True):
            if both - spot > kind.max_count_in(Market.ON_DEMAND):
                raise InvalidValue(
                    "fleet", counts, "at most the counts that pools and spot share allow"
                )
            by_market = {Market.OWNED: own, Market.SPOT: spot, Market.ON_DEMAND: both - spot}
            for pool, count in kind.count_by_pool(by_market).items():
                found[combo_id(self.service.model, [(Phase.AGGREGATED, kind.gpus, pool, 1)])] = (
                    count
                )
        return found

    def usd_per_h(self, counts: Counts) -> float | None:
        """Price of all nodes of the fleet, each counted whole; None if the fleet does not fit."""
        least, most = self.service.min_instances, self.service.max_instances
        if sum(counts) < least or (most and sum(counts) > most):
            return None
        try:
            fleet = self.combo_counts(counts)
            combos = combos_by_id(fleet, self.cluster, self.lengths_by_model)
            groups = place_groups(fleet, self.cluster, combos)
        except InvalidValue:
            return None
        nodes = {(item.node, item.pool) for group in groups for item in group.placed}
        return sum(self.cluster.pool(pool).price_usd_per_h for _, pool in nodes)

    def lower_bound_usd_per_h(self, counts: Counts) -> float:
        """A lower bound of the price: each instance pays its share of a node, and spot nodes go to
        the kinds that save most."""
        pairs = list(zip(counts, self.kinds, strict=True))
        spot = self.service.spot_share * sum(count * kind.req_per_s for count, kind in pairs)
        usd, saving = 0.0, list[tuple[float, float]]()
        for count, kind in pairs:
            rest = count - min(count, kind.max_count_in(Market.OWNED))
            prices = kind.usd_per_h(Market.ON_DEMAND), kind.usd_per_h(Market.SPOT)
            dear = prices[0] if kind.max_count_in(Market.ON_DEMAND) else prices[1]
            usd += rest * dear
            if kind.max_count_in(Market.SPOT) and prices[1] < dear:
                saving.append(((dear - prices[1]) / kind.req_per_s, rest * kind.req_per_s))
        for per_req, req_per_s in sorted(saving, reverse=True):
            usd -= per_req * min(req_per_s, spot)
            spot -= min(req_per_s, spot)
        return usd

    @property
    def lengths_by_model(self) -> Mapping[str, Lengths]:
        """The lengths by model, as deciders expect them."""
        return {self.service.model: self.lengths}

    def _spot(self, rest: Counts, most_req_per_s: float) -> Counts:
        """Spot instances of each kind: the split that saves most, with at most `most_req_per_s` on
        spot.

        The result is exact if there are few splits. Otherwise the kinds that save most per capacity
        come first.
        """
        pairs = list(zip(rest, self.kinds, strict=True))
        ranges = [range(min(count, kind.max_count_in(Market.SPOT)) + 1) for count, kind in pairs]
        saves = [
            kind.usd_per_h(Market.ON_DEMAND) - kind.usd_per_h(Market.SPOT) for kind in self.kinds
        ]
        rates = [kind.req_per_s for kind in self.kinds]
        if math.prod(map(len, ranges)) <= _MOST_SPLITS:
            allowed = [
                split
                for split in itertools.product(*ranges)
                if sum(n * rate for n, rate in zip(split, rates, strict=True)) <= most_req_per_s
            ]
            return max(
                allowed, key=lambda split: sum(n * s for n, s in zip(split, saves, strict=True))
            )
        chosen = [0] * len(rest)
        for index in sorted(range(len(rest)), key=lambda i: (-saves[i] / rates[i], i)):
            count = min(ranges[index][-1], int(most_req_per_s / rates[index]))
            chosen[index] = count
            most_req_per_s -= count * rates[index]
        return tuple(chosen)
