"""Fixed fleets beside ours: the cheapest mixes of instances that attain as much.

Owns the enumeration of fixed fleets and the search for the cheapest. Models share no engines, so
each is swept alone and totals add up; two models that fill the same node pay for it twice here.

A fleet is a count per kind (region, GPU type, GPUs of the instance, aggregated). Of each kind
owned nodes are filled first, then spot up to the service's share of capacity, then on-demand.
Search for a target: the smallest sufficient fleet of each kind alone (bisection) bounds the cost;
mixes below that are tried from the cheapest on. Left out are mixes that cannot be enough: where n
of a kind are just enough and n - 1 are not, one of them is at most 1 / (n - 1) of what is needed,
and those parts must add up to `LEAST_PARTS` (below 1, as two kinds may help each other). Declared
floors and ceilings hold for fixed fleets, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.workload import Phase
from autoscaler.performance.profile import default_profile
from autoscaler.planning.combos import combo_id, combo_named, usable_pools
from autoscaler.simulation.fixed import FixedFleet, combos_of, placed
from autoscaler.simulation.measures import attains, cost_usd
from autoscaler.simulation.world import simulate
from loadtests.decision_cases import Prepared
from loadtests.decision_runs import Run

LEAST_PARTS = 0.9
MOST_MIXES = 150
_MOST_SPLITS = 2000
TARGETS = (0.97, 0.95)
_ORDER = {Market.OWNED: 0, Market.SPOT: 1, Market.ON_DEMAND: 2}

Counts = tuple[int, ...]


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


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fixed fleet of one model that was simulated. cost_usd: over the whole run."""

    counts: tuple[tuple[str, int], ...]
    usd_per_h: float
    cost_usd: float
    attainment: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """The cheapest fixed fleets of one model: target attainment -> fleet, None = none attains.

    simulated: how many fleets; cut: a search ended at `MOST_MIXES`, so a cheaper mix may exist.
    """

    model: str
    found: dict[float, Fleet | None]
    simulated: int
    cut: bool = False


def sweep(prepared: Prepared, model: str, targets: Sequence[float]) -> Sweep:
    """The cheapest fixed fleet of `model` for each of `targets`."""
    search = _Search(prepared, model)
    found = {target: search.cheapest(target) for target in sorted(set(targets))}
    return Sweep(model, found, len(search.known), search.cut)


def kinds(cluster: Cluster, service: Service, prepared: Prepared) -> tuple[Kind, ...]:
    """Everything that could serve `service`."""
    lengths = prepared.truth.lengths.get(service.model, service.lengths)
    grouped: dict[tuple[str, str, int], list[Pool]] = {}
    for pool in usable_pools(cluster, service):
        for gpus in SLICE_SIZES:
            if gpus <= pool.per_node:
                grouped.setdefault((pool.region, pool.gpu.name, gpus), []).append(pool)
    found = []
    for (region, gpu, gpus), pools in sorted(grouped.items()):
        name = combo_id(service.model, [(Phase.AGGREGATED, gpus, pools[0].id, 1)])
        try:
            made = combo_named(name, cluster, service, lengths, default_profile())
        except InvalidValue:
            continue  # the weights or one request do not fit
        ordered = tuple(sorted(pools, key=lambda p: (_ORDER[p.market], p.price_usd_per_h)))
        found.append(Kind(f"{gpus}x{gpu} {region}", gpus, ordered, made.req_per_s))
    return tuple(found)


@dataclass(slots=True)
class _Search:
    prepared: Prepared
    model: str
    cluster: Cluster = field(init=False)
    service: Service = field(init=False)
    kinds: tuple[Kind, ...] = field(init=False)
    known: dict[Counts, Fleet | None] = field(default_factory=dict)
    cut: bool = False
    _alone: Prepared = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.prepared.scenario
        self.service = scenario.cluster.service(self.model)
        self.cluster = replace(scenario.cluster, services=(self.service,))
        self.kinds = kinds(self.cluster, self.service, self.prepared)
        mine = [arrival for arrival in scenario.arrivals if arrival.model == self.model]
        alone = replace(scenario, cluster=self.cluster, arrivals=mine)
        self._alone = replace(self.prepared, scenario=alone)

    def cheapest(self, target: float) -> Fleet | None:
        """The cheapest fleet that attains `target`."""
        singles = [self._fewest(index, target) for index in range(len(self.kinds))]
        best: Fleet | None = None
        for index, count in enumerate(singles):
            if count is not None:
                best = _cheaper(best, self._simulate(self._only(index, count)))
        if best is None:
            best = self._of_the_fullest(target)
            if best is None:
                return None
        mean = len(self._alone.scenario.arrivals) / self._alone.scenario.duration_s
        parts = [
            1.0 / max(1, count - 1) if count else kind.req_per_s / max(mean, 1e-9)
            for kind, count in zip(self.kinds, singles, strict=True)
        ]
        tried = 0
        for least_usd_per_h, counts in sorted(self._mixes(parts, best.usd_per_h)):
            if least_usd_per_h >= best.usd_per_h - 1e-9:
                break
            usd_per_h = self._usd_per_h(counts)
            if usd_per_h is None or usd_per_h >= best.usd_per_h - 1e-9:
                continue
            if tried >= MOST_MIXES:
                self.cut = True
                break
            tried += 1
            fleet = self._simulate(counts)
            if fleet is not None and fleet.attainment >= target:
                best = _cheaper(best, fleet) or best
        return best

    def _of_the_fullest(self, target: float) -> Fleet | None:
        """The cheapest sufficient one of the fleets that fill all pools, each with equal slices."""
        by_gpu: dict[str, list[int]] = {}
        for index, kind in enumerate(self.kinds):
            by_gpu.setdefault(kind.name.split("x", 1)[1], []).append(index)
        best: Fleet | None = None
        for chosen in itertools.product(*by_gpu.values()):
            for tenths in range(10, 0, -1):  # the spot share may not let all nodes be used
                most = [int(kind.most() * tenths / 10) for kind in self.kinds]
                counts = tuple(n if i in chosen else 0 for i, n in enumerate(most))
                fleet = self._simulate(counts)
                if fleet is not None:
                    if fleet.attainment >= target:
                        best = _cheaper(best, fleet)
                    break
        return best

    def _fewest(self, index: int, target: float) -> int | None:
        """Instances of one kind alone that attain `target`, None where all of them do not."""
        low, high, most = 0, 1, self.kinds[index].most()
        while not self._enough(self._only(index, min(high, most)), target):
            if high >= most:
                return None
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            if self._enough(self._only(index, middle), target):
                high = middle
            else:
                low = middle
        return high

    def _enough(self, counts: Counts, target: float) -> bool:
        fleet = self._simulate(counts)
        return fleet is not None and fleet.attainment >= target

    def _only(self, index: int, count: int) -> Counts:
        return tuple(count if i == index else 0 for i in range(len(self.kinds)))

    def _mixes(self, parts: list[float], most_usd_per_h: float) -> Iterator[tuple[float, Counts]]:
        """Mixes of two kinds and more that may be enough and cost less, with the least that they
        can cost per hour."""
        if most_usd_per_h <= 0.0:
            return
        ranges = [
            range(min(kind.most(), int(2.0 / part) + 1) + 1)
            for kind, part in zip(self.kinds, parts, strict=True)
        ]
        for counts in itertools.product(*ranges):
            if sum(map(bool, counts)) < 2:
                continue
            whole = sum(count * part for count, part in zip(counts, parts, strict=True))
            if whole < LEAST_PARTS:
                continue
            usd_per_h = self._least_usd_per_h(counts)
            if usd_per_h < most_usd_per_h:
                yield usd_per_h, counts

    def _least_usd_per_h(self, counts: Counts) -> float:
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

    def _fleet(self, counts: Counts) -> dict[str, int]:
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
                found[combo_id(self.model, [(Phase.AGGREGATED, kind.gpus, pool, 1)])] = count
        return found

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

    def _usd_per_h(self, counts: Counts) -> float | None:
        """Price of the whole nodes that the fleet fills, None where it does not fit."""
        least, most = self.service.min_instances, self.service.max_instances
        if sum(counts) < least or (most and sum(counts) > most):
            return None
        try:
            fleet = self._fleet(counts)
            combos = combos_of(fleet, self.cluster, self.prepared.truth.lengths)
            groups = placed(fleet, self.cluster, combos)
        except InvalidValue:
            return None
        nodes = {(item.node, item.pool) for group in groups for item in group.placed}
        return sum(self.cluster.pool(pool).price_usd_per_h for _, pool in nodes)

    def _simulate(self, counts: Counts) -> Fleet | None:
        """The fleet's figures, None where it does not fit."""
        if counts in self.known:
            return self.known[counts]
        usd_per_h = self._usd_per_h(counts)
        fleet: Fleet | None = None
        if usd_per_h is not None:
            chosen = self._fleet(counts)
            decider = FixedFleet(chosen, self.cluster, self.prepared.truth.lengths)
            timeline = simulate(self._alone.scenario, decider)
            hits = sum(attains(row, self.service.slo) for row in timeline.requests)
            share = hits / len(timeline.requests) if timeline.requests else 1.0
            fleet = Fleet(tuple(sorted(chosen.items())), usd_per_h, cost_usd(timeline), share)
        self.known[counts] = fleet
        return fleet


def _cheaper(one: Fleet | None, other: Fleet | None) -> Fleet | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda fleet: (fleet.usd_per_h, -fleet.attainment))


def report(ours: Run, sweeps: Sequence[Sweep]) -> list[str]:
    """What the fixed fleets say of ours, for people."""
    lines = []
    for found in sweeps:
        for target, fleet in sorted(found.found.items(), reverse=True):
            if target not in TARGETS:
                continue
            lines.append(f"  fixed, {found.model} at {100 * target:.0f}%: {_say(fleet)}")
        cut = "; search cut short, a cheaper mix may exist" if found.cut else ""
        lines.append(f"    ({found.simulated} fleets simulated{cut})")
    for target in TARGETS:
        fleets = [found.found[target] for found in sweeps]
        if all(fleet is not None for fleet in fleets):
            total = sum(fleet.cost_usd for fleet in fleets if fleet is not None)
            lines.append(
                f"  fixed, every model at {100 * target:.0f}%: {total:.2f} USD; ours "
                f"{ours.cost_usd:.2f} USD ({100 * (ours.cost_usd / total - 1):+.1f}%)"
                if total > 0
                else f"  fixed, every model at {100 * target:.0f}%: 0 USD"
            )
    lines.append("  " + dominance(ours, sweeps))
    return lines


def as_good_usd(ours: Run, sweeps: Sequence[Sweep]) -> float | None:
    """What the cheapest fixed fleets cost that attain at least as much as ours for every model;
    None where for some model there is none."""
    total = 0.0
    for found in sweeps:
        fleet = found.found.get(ours.models[found.model].slo_attainment)
        if fleet is None:
            return None
        total += fleet.cost_usd
    return total


def is_dominated(ours: Run, sweeps: Sequence[Sweep]) -> bool:
    """Whether fixed fleets attain as much for each model for less, or more for as much."""
    total = as_good_usd(ours, sweeps)
    if total is None or total > ours.cost_usd:
        return False
    more = False
    for found in sweeps:
        share = ours.models[found.model].slo_attainment
        fleet = found.found[share]
        more = more or (fleet is not None and fleet.attainment > share)
    return total < ours.cost_usd or more


def dominance(ours: Run, sweeps: Sequence[Sweep]) -> str:
    """The same for people."""
    total = as_good_usd(ours, sweeps)
    if total is None:
        return "ours is not dominated: no fixed fleet attains as much for every model"
    if is_dominated(ours, sweeps):
        return f"ours is DOMINATED: fixed fleets attain as much for {total:.2f} USD"
    return f"ours is not dominated: fixed fleets that attain as much cost {total:.2f} USD"


def as_json(ours: Run, sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """The sweep of one scenario and seed."""
    return {
        "scenario": ours.scenario,
        "seed": ours.seed,
        "models": {
            found.model: {
                f"{target:.6f}": None
                if fleet is None
                else {
                    "counts": dict(fleet.counts),
                    "usd_per_h": fleet.usd_per_h,
                    "cost_usd": fleet.cost_usd,
                    "slo_attainment": fleet.attainment,
                }
                for target, fleet in found.found.items()
            }
            for found in sweeps
        },
        "as_good_usd": as_good_usd(ours, sweeps),
        "dominated": is_dominated(ours, sweeps),
    }


def _say(fleet: Fleet | None) -> str:
    if fleet is None:
        return "none attains it"
    parts = ", ".join(f"{count} {name}" for name, count in fleet.counts)
    return (
        f"{fleet.usd_per_h:.2f} USD/h, attains {100 * fleet.attainment:.2f}%, "
        f"{fleet.cost_usd:.2f} USD in all: {parts}"
    )
