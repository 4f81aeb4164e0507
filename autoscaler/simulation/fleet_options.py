"""What a fixed fleet of one model may be, and what it costs per hour.

A fleet is a count per kind: region, GPU type and GPUs of an aggregated instance. Of each kind owned
nodes are filled first, then spot up to the service's share of capacity, then on-demand. Declared
floors and ceilings hold. Owns prices and splits; simulates nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.profile_sources import profile_of
from autoscaler.planning.candidate_combos import combo_named, usable_pools
from autoscaler.planning.combo_names import combo_id
from autoscaler.simulation.fixed_fleet import combos_of, placed

_MOST_SPLITS = 2000
_ORDER = {Market.OWNED: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}

Counts = tuple[int, ...]
"""How many of each kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal instances. pools: in the order in which they are filled; req_per_s: of one."""

    name: str
    gpus: int
    pools: tuple[Pool, ...]
    req_per_s: float

    def most(self) -> int:
        """How many the pools hold."""
        return sum(self._room(pool) for pool in self.pools)

    def _room(self, pool: Pool) -> int:
        return pool.max_nodes * (pool.per_node // self.gpus)

    def room(self, *markets: Market) -> int:
        """How many the pools of these markets hold."""
        return sum(self._room(pool) for pool in self.pools if pool.market in markets)

    def split(self, by_market: dict[Market, int]) -> dict[str, int]:
        """Pool id -> count, with so many in each market."""
        left, found = dict(by_market), dict[str, int]()
        for pool in self.pools:
            count = min(left.get(pool.market, 0), self._room(pool))
            if count:
                found[pool.id] = count
                left[pool.market] -= count
        return found

    def usd_per_h(self, market: Market) -> float:
        """Price of one instance's share of the cheapest such pool; 0 where there is none."""
        prices = [p.price_usd_per_h * self.gpus / p.per_node for p in self.pools]
        mine = [
            price for price, pool in zip(prices, self.pools, strict=True) if pool.market is market
        ]
        return min(mine, default=0.0)


def kinds(cluster: Cluster, service: Service, lengths: Lengths) -> tuple[Kind, ...]:
    """Everything that could serve `service`."""
    grouped: dict[tuple[str, str, int], list[Pool]] = {}
    for pool in usable_pools(cluster, service):
        for gpus in SLICE_SIZES:
            if gpus <= pool.per_node:
                grouped.setdefault((pool.region, pool.gpu.name, gpus), []).append(pool)
    found = []
    for (region, gpu, gpus), pools in sorted(grouped.items()):
        name = combo_id(service.model, [(Phase.AGGREGATED, gpus, pools[0].id, 1)])
        try:
            made = combo_named(name, cluster, service, lengths, profile_of(cluster))
        except InvalidValue:
            continue  # the weights or one request do not fit
        ordered = tuple(sorted(pools, key=lambda p: (_ORDER[p.market], p.price_usd_per_h)))
        found.append(Kind(f"{gpus}x{gpu} {region}", gpus, ordered, made.req_per_s))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Mixes:
    """Fleets of `service`, which is all that runs on `cluster`, at these lengths."""

    cluster: Cluster
    service: Service
    lengths: Lengths
    kinds: tuple[Kind, ...]

    def fleet(self, counts: Counts) -> dict[str, int]:
        """Combo id -> count: owned first, the cheapest split of the rest over spot and not."""
        pairs = list(zip(counts, self.kinds, strict=True))
        owned = [min(count, kind.room(Market.OWNED)) for count, kind in pairs]
        rest = tuple(count - own for count, own in zip(counts, owned, strict=True))
        total = sum(count * kind.req_per_s for count, kind in pairs)
        on_spot = self._spot(rest, self.service.spot_share * total + 1e-9)
        found: dict[str, int] = {}
        for kind, own, spot, both in zip(self.kinds, owned, on_spot, rest, strict=True):
            if both - spot > kind.room(Market.ON_DEMAND):
                raise InvalidValue("fleet", counts, "what the pools and the spot share allow")
            by_market = {Market.OWNED: own, Market.SPOT: spot, Market.ON_DEMAND: both - spot}
            for pool, count in kind.split(by_market).items():
                found[combo_id(self.service.model, [(Phase.AGGREGATED, kind.gpus, pool, 1)])] = (
                    count
                )
        return found

    def usd_per_h(self, counts: Counts) -> float | None:
        """Price of the whole nodes that the fleet fills, None where it does not fit."""
        least, most = self.service.min_instances, self.service.max_instances
        if sum(counts) < least or (most and sum(counts) > most):
            return None
        try:
            fleet = self.fleet(counts)
            combos = combos_of(fleet, self.cluster, self.at_lengths)
            groups = placed(fleet, self.cluster, combos)
        except InvalidValue:
            return None
        nodes = {(item.node, item.pool) for group in groups for item in group.placed}
        return sum(self.cluster.pool(pool).price_usd_per_h for _, pool in nodes)

    def least_usd_per_h(self, counts: Counts) -> float:
        """No fleet of `counts` costs less: shares of nodes, spot where it saves most."""
        pairs = list(zip(counts, self.kinds, strict=True))
        spot = self.service.spot_share * sum(count * kind.req_per_s for count, kind in pairs)
        usd, saving = 0.0, list[tuple[float, float]]()
        for count, kind in pairs:
            rest = count - min(count, kind.room(Market.OWNED))
            prices = kind.usd_per_h(Market.ON_DEMAND), kind.usd_per_h(Market.SPOT)
            dear = prices[0] if kind.room(Market.ON_DEMAND) else prices[1]
            usd += rest * dear
            if kind.room(Market.SPOT) and prices[1] < dear:
                saving.append(((dear - prices[1]) / kind.req_per_s, rest * kind.req_per_s))
        for per_req, req_per_s in sorted(saving, reverse=True):
            usd -= per_req * min(req_per_s, spot)
            spot -= min(req_per_s, spot)
        return usd

    @property
    def at_lengths(self) -> Mapping[str, Lengths]:
        """The lengths by model, as deciders take them."""
        return {self.service.model: self.lengths}

    def _spot(self, rest: Counts, most_req_per_s: float) -> Counts:
        """How many of each kind on spot: the split that saves most, capacity on spot bounded.

        Exact where there are few splits; else kinds that save most per capacity go first.
        """
        pairs = list(zip(rest, self.kinds, strict=True))
        ranges = [range(min(count, kind.room(Market.SPOT)) + 1) for count, kind in pairs]
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
