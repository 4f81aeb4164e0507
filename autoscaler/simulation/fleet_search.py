"""The search for the cheapest fixed fleet that attains a target, by simulating fleets.

Models share no engines, so each is swept alone and totals add up; two models that fill the same
node pay for it twice here.

Search: the smallest sufficient fleet of each kind alone (bisection) bounds the cost; mixes below
that are tried from the cheapest on. Left out are mixes that cannot be enough: where n of a kind are
just enough and n - 1 are not, one of them is at most 1 / (n - 1) of what is needed, and those parts
must add up to `LEAST_PARTS` (below 1, as two kinds may help each other).

A simulation ends as soon as more requests have missed than the target allows: most of the fleets
that are tried are too small, and show it in the first minutes. With `fluid` fleets are simulated
as flows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.domain.workload import Lengths
from autoscaler.simulation.fixed_fleet import FixedFleet, combos_of, placed
from autoscaler.simulation.fleet_options import Counts, Kind, Mixes, kinds
from autoscaler.simulation.rate_simulator import FlowWorld
from autoscaler.simulation.run_measures import cost_usd, flows_of
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Call, Ending
from autoscaler.simulation.simulator import World
from autoscaler.simulation.timeline import Timeline

LEAST_PARTS = 0.9
MOST_MIXES = 150
_LOOK_EVERY_S = 30.0


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


def sweep(
    scenario: Scenario,
    lengths: Mapping[str, Lengths],
    model: str,
    targets: Sequence[float],
    fluid: bool = False,
) -> Sweep:
    """The cheapest fixed fleet of `model` for each of `targets`, at these lengths."""
    search = _Search(scenario, lengths, model, min(targets), fluid)
    found = {target: search.cheapest(target) for target in sorted(set(targets))}
    return Sweep(model, found, len(search.known), search.cut)


@dataclass(slots=True)
class _Search:
    scenario: Scenario
    lengths: Mapping[str, Lengths]
    model: str
    least: float  # the lowest target: below it a fleet is not simulated to the end
    fluid: bool = False
    mixes: Mixes = field(init=False)
    kinds: tuple[Kind, ...] = field(init=False)
    known: dict[Counts, Fleet | None] = field(default_factory=dict)
    cut: bool = False
    _alone: Scenario = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.scenario
        service = scenario.cluster.service(self.model)
        alone = replace(scenario.cluster, services=(service,))
        lengths = self.lengths.get(self.model, service.lengths)
        self.kinds = kinds(alone, service, lengths)
        self.mixes = Mixes(alone, service, lengths, self.kinds)
        mine = [arrival for arrival in scenario.arrivals if arrival.model == self.model]
        self._alone = replace(scenario, cluster=alone, arrivals=mine)

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
        mean = len(self._alone.arrivals) / self._alone.duration_s
        parts = [
            1.0 / max(1, count - 1) if count else kind.req_per_s / max(mean, 1e-9)
            for kind, count in zip(self.kinds, singles, strict=True)
        ]
        tried = 0
        for least_usd_per_h, counts in sorted(self._mixes(parts, best.usd_per_h)):
            if least_usd_per_h >= best.usd_per_h - 1e-9:
                break
            usd_per_h = self.mixes.usd_per_h(counts)
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
            usd_per_h = self.mixes.least_usd_per_h(counts)
            if usd_per_h < most_usd_per_h:
                yield usd_per_h, counts

    def _simulate(self, counts: Counts) -> Fleet | None:
        """The fleet's figures, None where it does not fit. The attainment of one that misses
        every target is a bound from above, its cost that of the time that was simulated."""
        if counts in self.known:
            return self.known[counts]
        usd_per_h = self.mixes.usd_per_h(counts)
        fleet: Fleet | None = None
        if usd_per_h is not None:
            chosen = self.mixes.fleet(counts)
            timeline = self._run(chosen)
            rows = flows_of(self.mixes.service, timeline)
            missed = sum(row.requests - row.attained for row in rows)
            asked = len(self._alone.arrivals)
            share = 1.0 - missed / asked if asked else 1.0
            fleet = Fleet(tuple(sorted(chosen.items())), usd_per_h, cost_usd(timeline), share)
        self.known[counts] = fleet
        return fleet

    def _run(self, chosen: Mapping[str, int]) -> Timeline:
        """Simulate a fleet on a cluster of no more nodes than it fills, until it is over or has
        missed too much."""
        cluster = self.mixes.cluster
        combos = combos_of(chosen, cluster, self.mixes.at_lengths)
        filled = {
            item.node: item.pool for g in placed(chosen, cluster, combos) for item in g.placed
        }
        nodes = Counter(filled.values())
        pools = tuple(replace(p, max_nodes=nodes[p.id]) for p in cluster.pools if p.id in nodes)
        where = replace(cluster, pools=pools)
        scenario = replace(self._alone, cluster=where)
        fleet = FixedFleet(chosen, where, self.mixes.at_lengths)
        world = (FlowWorld if self.fluid else World)(scenario, fleet)
        allowed = (1.0 - self.least) * len(scenario.arrivals) + 1e-9
        missed, looked = 0.0, 0
        open_: list[Call] = []
        at_s = scenario.lead_s
        while at_s < scenario.end_s and missed <= allowed:
            at_s += _LOOK_EVERY_S
            world.advance(at_s)
            if isinstance(world, FlowWorld):
                rows = world.gateway.rows[looked:]
                looked += len(rows)
                missed += sum(row.requests - row.attained for row in rows)
                continue
            calls = world.timeline.calls
            open_ += calls[looked:]
            looked = len(calls)
            late = [call for call in open_ if self._has_missed(call, world.agenda.now_ms)]
            missed += len(late)
            gone = {call.id for call in late}
            open_ = [c for c in open_ if c.ending is Ending.PENDING and c.id not in gone]
        return world.finish()

    def _has_missed(self, call: Call, now_ms: float) -> bool:
        """Whether `call` will not attain its SLO whatever comes."""
        slo = self.mixes.service.slo
        if call.ending not in (Ending.PENDING, Ending.SERVED):
            return True
        first_ms = now_ms if call.first_ms is None else call.first_ms
        if first_ms - call.arrival_ms > slo.ttft_ms + 1.0:
            return True
        if call.first_ms is None:
            return False
        end_ms = now_ms if call.end_ms is None else call.end_ms
        gaps = max(1, call.output_tokens - 1)
        return end_ms - call.first_ms > gaps * (slo.tpot_ms + 1.0)


def _cheaper(one: Fleet | None, other: Fleet | None) -> Fleet | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda fleet: (fleet.usd_per_h, -fleet.attainment))
