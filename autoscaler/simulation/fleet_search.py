"""Search for the cheapest fixed fleet that attains a target, by simulating fleets.

Models share no engines, so each model is searched alone and the costs are added. If two models fill
parts of one node, both pay for the whole node here.

The smallest sufficient fleet of each instance kind alone bounds the cost.
Cheaper mixes are then simulated, the cheapest first. Mixes that cannot be sufficient are skipped:
if n instances of a kind are just sufficient and n - 1 are not, one instance covers at most 1 / (n -
1) of the need, and these parts must add up to `MIN_PARTS` (below 1, because two kinds may help each
other).

A mix is simulated by rates first. It is simulated request by request only if it may then be
sufficient (within `SCREEN_MARGIN`), unless a single kind has shown that rates are wrong for this
demand. A simulation ends as soon as too many requests have missed. With `fluid`, rates alone are
simulated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.domain.workload import Lengths
from autoscaler.simulation.fixed_fleet import FixedFleet, combos_by_id, place_groups
from autoscaler.simulation.fleet_options import Counts, FleetOptions, InstanceKind, instance_kinds
from autoscaler.simulation.rate_simulator import RateSimulator
from autoscaler.simulation.run_measures import cost_usd, flows_of
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Call, Ending
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.timeline import Timeline

MIN_PARTS = 0.9
MAX_MIXES = 150
SCREEN_MARGIN = 0.15
"""If a fleet misses the target by more than this attainment with rates, it misses it with requests
too, because tests prove that the two differ by less at any load."""
_CHECK_EVERY_S = 30.0
_DEAR = 1.25
"""A kind is simulated request by request only if its fleet, sized by rates, costs at most this
multiple of the cheapest one."""


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """A fixed fleet of one model and its results. cost_usd: cost of the whole run."""

    counts: tuple[tuple[str, int], ...]
    usd_per_h: float
    cost_usd: float
    attainment: float


@dataclass(frozen=True, slots=True)
class FleetSearchResult:
    """The cheapest fixed fleets of one model.

    cheapest: fleet by target attainment; None if no fleet attains the target. fleets_simulated:
    number of simulated fleets. truncated: whether a search ended at `MAX_MIXES`, so that a cheaper
    mix may exist.
    """

    model: str
    cheapest: dict[float, SimulatedFleet | None]
    fleets_simulated: int
    truncated: bool = False


def search_fleets(
    scenario: Scenario,
    lengths: Mapping[str, Lengths],
    model: str,
    targets: Sequence[float],
    fluid: bool = False,
) -> FleetSearchResult:
    """The cheapest fixed fleet of `model` for each of `targets`, at `lengths`."""
    search = FleetSearch(scenario, lengths, model, fluid)
    found = {target: search.cheapest(target) for target in sorted(set(targets))}
    return FleetSearchResult(model, found, len(search.simulated), search.truncated)


@dataclass(slots=True)
class FleetSearch:
    """Searches fleets of one model; keeps the results of fleets from target to target.

    Searching the lowest target first simulates the fewest fleets.
    """

    scenario: Scenario
    lengths: Mapping[str, Lengths]
    model: str
    fluid: bool = False
    options: FleetOptions = field(init=False)
    kinds: tuple[InstanceKind, ...] = field(init=False)
    min_target: float = 1.0  # a fleet below it is not simulated to the end
    simulated: dict[Counts, SimulatedFleet | None] = field(default_factory=dict)
    by_rates: dict[Counts, float] = field(default_factory=dict)
    cut_at: dict[tuple[Counts, bool], float] = field(default_factory=dict)
    truncated: bool = False
    screens: bool = True  # until a fleet that rates would reject is sufficient with requests
    _scenario: Scenario = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.scenario
        service = scenario.cluster.service(self.model)
        alone = replace(scenario.cluster, services=(service,))
        lengths = self.lengths.get(self.model, service.lengths)
        self.kinds = instance_kinds(alone, service, lengths)
        self.options = FleetOptions(alone, service, lengths, self.kinds)
        mine = [arrival for arrival in scenario.arrivals if arrival.model == self.model]
        self._scenario = replace(scenario, cluster=alone, arrivals=mine)

    def cheapest(self, target: float) -> SimulatedFleet | None:
        """The cheapest fleet that attains `target`; None if none does."""
        self.min_target = min(self.min_target, target)
        guesses = [self._min_count_by_rates(index, target) for index in range(len(self.kinds))]
        singles = list(guesses)
        best: SimulatedFleet | None = None
        for index in sorted(range(len(self.kinds)), key=lambda i: self._price(i, guesses[i])):
            if best is not None and self._price(index, guesses[index]) > _DEAR * best.usd_per_h:
                break  # not needed exactly: the count is only used to choose mixes
            singles[index] = count = self._min_count(index, guesses[index], target)
            if count is not None:
                best = _cheaper(best, self._simulate(self._counts_of_one_kind(index, count)))
        if best is None:
            best = self._cheapest_full_fleet(target)
            if best is None:
                return None
        mean = self._scenario.requests / self._scenario.duration_s
        parts = [
            1.0 / max(1, count - 1) if count else kind.req_per_s / max(mean, 1e-9)
            for kind, count in zip(self.kinds, singles, strict=True)
        ]
        tried = 0
        for least_usd_per_h, counts in sorted(self._mixes(parts, best.usd_per_h)):
            if least_usd_per_h >= best.usd_per_h - 1e-9:
                break
            usd_per_h = self.options.usd_per_h(counts)
            if usd_per_h is None or usd_per_h >= best.usd_per_h - 1e-9:
                continue
            if tried >= MAX_MIXES:
                self.truncated = True
                break
            tried += 1
            fleet = self._simulate(counts)
            if fleet is not None and fleet.attainment >= target:
                best = _cheaper(best, fleet) or best
        return best

    def _cheapest_full_fleet(self, target: float) -> SimulatedFleet | None:
        """The cheapest sufficient fleet among those that fill all pools with equal slices per GPU
        type."""
        by_gpu: dict[str, list[int]] = {}
        for index, kind in enumerate(self.kinds):
            by_gpu.setdefault(kind.name.split("x", 1)[1], []).append(index)
        best: SimulatedFleet | None = None
        for chosen in itertools.product(*by_gpu.values()):
            for tenths in range(10, 0, -1):  # the spot share may exclude nodes
                most = [int(kind.max_count() * tenths / 10) for kind in self.kinds]
                counts = tuple(n if i in chosen else 0 for i, n in enumerate(most))
                fleet = self._simulate(counts)
                if fleet is not None:
                    if fleet.attainment >= target:
                        best = _cheaper(best, fleet)
                    break
        return best

    def _price(self, index: int, count: int | None) -> float:
        """USD per hour of `count` instances of one kind; infinite if there are not so many."""
        if count is None:
            return math.inf
        usd_per_h = self.options.usd_per_h(self._counts_of_one_kind(index, count))
        return math.inf if usd_per_h is None else usd_per_h

    def _min_count_by_rates(self, index: int, target: float) -> int | None:
        """Smallest number of instances of a single kind that attains `target` with rates; None if
        the pools hold too few."""
        low, high, most = 0, 1, self.kinds[index].max_count()
        while not self._share_by_rates(self._counts_of_one_kind(index, min(high, most))) >= target:
            if high >= most:
                return None
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            if self._share_by_rates(self._counts_of_one_kind(index, middle)) >= target:
                high = middle
            else:
                low = middle
        return high

    def _min_count(self, index: int, guess: int | None, target: float) -> int | None:
        """Smallest number of instances of a single kind that attains `target`, searched from
        `guess`; None if the pools hold too few."""
        most = self.kinds[index].max_count()
        count = most if guess is None else guess
        if self._is_enough(self._counts_of_one_kind(index, count), target):
            while count > 1 and self._is_enough(self._counts_of_one_kind(index, count - 1), target):
                count -= 1
            return count
        while count < most:
            count += 1
            if self._is_enough(self._counts_of_one_kind(index, count), target):
                return count
        return None

    def _is_enough(self, counts: Counts, target: float) -> bool:
        fleet = self._simulate(counts, screen=False)
        return fleet is not None and fleet.attainment >= target

    def _counts_of_one_kind(self, index: int, count: int) -> Counts:
        return tuple(count if i == index else 0 for i in range(len(self.kinds)))

    def _mixes(self, parts: list[float], most_usd_per_h: float) -> Iterator[tuple[float, Counts]]:
        """Mixes of two or more kinds that may be sufficient and cheaper, each with a lower bound of
        its price per hour.

        parts: per kind, the largest share of the need that one instance covers.
        """
        if most_usd_per_h <= 0.0:
            return
        ranges = [
            range(min(kind.max_count(), int(2.0 / part) + 1) + 1)
            for kind, part in zip(self.kinds, parts, strict=True)
        ]
        for counts in itertools.product(*ranges):
            if sum(map(bool, counts)) < 2:
                continue
            whole = sum(count * part for count, part in zip(counts, parts, strict=True))
            if whole < MIN_PARTS:
                continue
            usd_per_h = self.options.lower_bound_usd_per_h(counts)
            if usd_per_h < most_usd_per_h:
                yield usd_per_h, counts

    def _simulate(self, counts: Counts, screen: bool = True) -> SimulatedFleet | None:
        """The results of a fleet; None if it does not fit. screen: whether rates may decide that it
        is not sufficient.

        If the fleet misses every target, its attainment is an upper bound and its cost covers only
        the simulated time.
        """
        if counts not in self.simulated or self._was_cut(counts, self.fluid):
            self.simulated[counts] = self._result(counts, screen)
        return self.simulated[counts]

    def _result(self, counts: Counts, screen: bool) -> SimulatedFleet | None:
        usd_per_h = self.options.usd_per_h(counts)
        if usd_per_h is None:
            return None
        chosen = self.options.combo_counts(counts)
        listed = tuple(sorted(chosen.items()))
        if not self.fluid and screen and self.screens:
            share = self._share_by_rates(counts)
            if share < self.min_target - SCREEN_MARGIN:
                self.cut_at[counts, False] = self.min_target
                return SimulatedFleet(listed, usd_per_h, 0.0, share)
        timeline, share = self._run(counts, chosen, self.fluid)
        rejected = self.by_rates.get(counts, 1.0) < self.min_target - SCREEN_MARGIN
        self.screens = self.screens and not (rejected and share >= self.min_target)
        return SimulatedFleet(
            listed, usd_per_h, 0.0 if timeline is None else cost_usd(timeline), share
        )

    def _share_by_rates(self, counts: Counts) -> float:
        """Attainment of a fleet by the rate simulation; 0 if the fleet does not fit. If the fleet
        misses every target, the value is only an upper bound."""
        if counts not in self.by_rates or self._was_cut(counts, fluid=True):
            fits = self.options.usd_per_h(counts) is not None
            chosen = self.options.combo_counts(counts) if fits else {}
            self.by_rates[counts] = self._run(counts, chosen, fluid=True)[1] if fits else 0.0
        return self.by_rates[counts]

    def _was_cut(self, counts: Counts, fluid: bool) -> bool:
        """Whether a simulation of `counts` ended early for a higher target than the present one."""
        return self.cut_at.get((counts, fluid), 0.0) > self.min_target

    def _run(
        self, counts: Counts, chosen: Mapping[str, int], fluid: bool
    ) -> tuple[Timeline | None, float]:
        """Simulate a fleet on exactly the nodes that it fills; returns (timeline, attainment). The
        simulation ends when too many requests have missed; then the timeline is None and the
        attainment an upper bound.
        """
        cluster = self.options.cluster
        combos = combos_by_id(chosen, cluster, self.options.lengths_by_model)
        filled = {
            item.node: item.pool for g in place_groups(chosen, cluster, combos) for item in g.placed
        }
        nodes = Counter(filled.values())
        pools = tuple(replace(p, max_nodes=nodes[p.id]) for p in cluster.pools if p.id in nodes)
        where = replace(cluster, pools=pools)
        scenario = replace(self._scenario, cluster=where)
        fleet = FixedFleet(chosen, where, self.options.lengths_by_model)
        simulator = (RateSimulator if fluid else Simulator)(scenario, fleet)
        asked = max(1, scenario.requests)
        least = self.min_target - (SCREEN_MARGIN if fluid and not self.fluid else 0.0)
        allowed = (1.0 - least) * asked + 1e-9
        missed, checked = 0.0, 0
        open_: list[Call] = []
        at_s = scenario.lead_s
        while at_s < scenario.end_s and missed <= allowed:
            at_s += _CHECK_EVERY_S
            simulator.advance(at_s)
            if isinstance(simulator, RateSimulator):
                rows = simulator.gateway.rows[checked:]
                checked += len(rows)
                missed += sum(row.requests - row.attained for row in rows)
                continue
            calls = simulator.timeline.calls
            open_ += calls[checked:]
            checked = len(calls)
            late = [call for call in open_ if self._has_missed(call, simulator.events.now_ms)]
            missed += len(late)
            gone = {call.id for call in late}
            open_ = [c for c in open_ if c.ending is Ending.PENDING and c.id not in gone]
        self.cut_at.pop((counts, fluid), None)
        if missed > allowed:
            self.cut_at[counts, fluid] = self.min_target
            return None, 1.0 - missed / asked
        timeline = simulator.finish()
        rows = flows_of(self.options.service, timeline)
        return timeline, 1.0 - sum(row.requests - row.attained for row in rows) / asked

    def _has_missed(self, call: Call, now_ms: float) -> bool:
        """Whether `call` can no longer attain its SLO."""
        slo = self.options.service.slo
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


def _cheaper(one: SimulatedFleet | None, other: SimulatedFleet | None) -> SimulatedFleet | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda fleet: (fleet.usd_per_h, -fleet.attainment))
