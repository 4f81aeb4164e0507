"""The figures of one run, from its timeline and the truth about its demand.

Owns the definitions:

Attainment: a request attains its SLO iff it was served, its TTFT and its mean time per output
token are within the model's limits. Everything that arrived counts. `late` attainment leaves out
what arrived in the first three minutes.

Ordered capacity: what the planner's own figures (`combo_named` at the lengths that really came)
say of all groups that are wanted and not told to drain, ready or not; raw, before utilization.
Needed capacity: the true rate / utilization.

First scale-out after a step: the first time that ordered capacity rises after the step. Sufficient:
the first time from the step on that it is at least what the new rate needs. Both are 0 where the
fleet was sufficient at the step.

Over-provisioning: the mean over time, from the first arrival on, of ordered x utilization / true
rate, minus 1, where the true rate is not 0.

A scale-out (scale-in) is an applied decision that only adds (removes) groups of a model, or one
that does both, raises (lowers) what was ordered by more than a tenth, and costs more (less); the
rest are exchanges. A reversal is one that follows its opposite for the same model; per hour is the
most within any hour of any model. A false scale-out is one after the first possible arrival, while
what was ordered already was sufficient, and no node had been lost in the two minutes before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.workload import Arrivals, Lengths, Slo
from autoscaler.performance.known import profile_of
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combos import combo_named
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.requests import Ending
from autoscaler.simulation.timeline import FlowRow, RequestRow, Timeline

START_S = 180.0
"""The first minutes, that `late` attainment leaves out."""
EXCHANGE = 0.1
_AFTER_LOSS_S = 120.0
_SMOOTH_S = 120.0
_HOUR_S = 3600.0

Rate = Callable[[float], float]
"""The true requests/s of a model at a second of the simulation."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What only a simulation knows. rates: per model; lengths: per model, as they came."""

    rates: Mapping[str, Rate]
    lengths: Mapping[str, Lengths]


@dataclass(frozen=True, slots=True)
class Reversals:
    """Moves that followed their opposite. at_s: when they were."""

    at_s: tuple[float, ...] = ()

    @property
    def most_per_h(self) -> int:
        """The most within an hour."""
        at_s = self.at_s
        return max((bisect_right(at_s, at + _HOUR_S) - i for i, at in enumerate(at_s)), default=0)


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model. attained, late_*: counts; ratios as defined above. over_p99: None of flows, which
    do not say when within a tick their requests came."""

    requests: int
    served: int
    attained: int
    late_requests: int
    late_attained: int
    over_provisioning: float
    over_p99: float | None
    reversed: Reversals
    false_scale_outs: int

    @property
    def slo_attainment(self) -> float:
        """Attained / arrived; 1 where nothing arrived."""
        return self.attained / self.requests if self.requests else 1.0

    @property
    def late_attainment(self) -> float:
        """The same without the first minutes."""
        return self.late_attained / self.late_requests if self.late_requests else 1.0


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Seconds from a step to what followed; None where it never came."""

    first_scale_out_s: float | None
    sufficient_s: float | None


def attains(row: RequestRow, slo: Slo) -> bool:
    """Whether `row` attains `slo`."""
    if row.outcome != Ending.SERVED or row.first_token_s is None or row.end_s is None:
        return False
    ttft_ms = 1000.0 * (row.first_token_s - row.arrival_s)
    gaps = row.output_tokens - 1
    tpot_ms = 1000.0 * (row.end_s - row.first_token_s) / gaps if gaps > 0 else 0.0
    return ttft_ms <= slo.ttft_ms and tpot_ms <= slo.tpot_ms


def flows_of(service: Service, timeline: Timeline) -> list[FlowRow]:
    """What became of the requests of `service`; a single one is a flow of one."""
    if timeline.flows:
        return [row for row in timeline.flows if row.model == service.model]
    mine = (row for row in timeline.requests if row.model == service.model)
    return [_as_flow(row, service.slo) for row in mine]


def _as_flow(row: RequestRow, slo: Slo) -> FlowRow:
    hit = attains(row, slo)
    served = int(row.outcome == Ending.SERVED)
    tokens = row.output_tokens if hit else 0
    return FlowRow(row.model, row.arrival_s, 1, served, float(hit), tokens)


def cost_usd(timeline: Timeline) -> float:
    """What the nodes cost."""
    return sum(span.usd for span in timeline.nodes)


class Capacity:
    """Raw capacity of ordered groups, by the planner's figures at the lengths that came.

    req_per_s: per model, the rate that its instances share; what is not named arrives at one.
    """

    def __init__(
        self,
        cluster: Cluster,
        lengths: Mapping[str, Lengths],
        req_per_s: Mapping[str, float] | None = None,
    ) -> None:
        self._req_per_s = req_per_s or {}
        self._cluster = cluster
        self._lengths = lengths
        self._known: dict[str, tuple[str, float]] = {}

    def of(self, combo_id: str) -> tuple[str, float]:
        """(model, requests/s) of one combo."""
        found = self._known.get(combo_id)
        if found is None:
            model, _ = parse_combo_id(combo_id)
            service = self._cluster.service(model)
            lengths = self._lengths.get(model, service.lengths)
            raw = self._req_per_s.get(model, 0.0) / service.utilization
            combo = combo_named(
                combo_id, self._cluster, service, lengths, profile_of(self._cluster), Arrivals(raw)
            )
            found = self._known[combo_id] = model, combo.req_per_s
        return found

    def total(self, counts: Iterable[tuple[str, float]], model: str) -> float:
        """Requests/s of `model` that (combo id, count) pairs hold."""
        total = 0.0
        for combo_id, count in counts:
            owner, req_per_s = self.of(combo_id)
            total += count * req_per_s if owner == model else 0.0
        return total


@dataclass(frozen=True, slots=True)
class Orders:
    """Raw capacity ordered of one model over time: `values[i]` from `at_s[i]` on."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]

    def value(self, at_s: float) -> float:
        """What was ordered at `at_s`."""
        index = bisect_right(self.at_s, at_s)
        return self.values[index - 1] if index else 0.0

    def before(self, at_s: float) -> float:
        """What was ordered just before `at_s`."""
        index = bisect_right(self.at_s, at_s - 1e-9)
        return self.values[index - 1] if index else 0.0


def orders(timeline: Timeline, capacity: Capacity, model: str) -> Orders:
    """What was ordered of `model`."""
    return Orders(
        tuple(row.at_s for row in timeline.ordered),
        tuple(capacity.total(row.counts.items(), model) for row in timeline.ordered),
    )


def step_figures(found: Orders, step_s: float, needed_req_per_s: float) -> StepFigures:
    """How the orders answered a step at `step_s` to a raw need of `needed_req_per_s`."""
    enough = needed_req_per_s * (1.0 - 1e-9)
    if found.value(step_s) >= enough:
        return StepFigures(0.0, 0.0)
    first = sufficient = None
    last = found.before(step_s)
    for at_s, value in zip(found.at_s, found.values, strict=True):
        if at_s < step_s:
            continue
        if first is None and value > last:
            first = at_s - step_s
        if sufficient is None and value >= enough:
            sufficient = at_s - step_s
        last = value
    return StepFigures(first, sufficient)


def model_figures(
    model: str,
    timeline: Timeline,
    cluster: Cluster,
    capacity: Capacity,
    truth: Truth,
    span_s: tuple[float, float],
    lost_s: Sequence[float] = (),
) -> ModelFigures:
    """The figures of `model` over `span_s` (first possible arrival, end). lost_s: when nodes were
    lost."""
    service = cluster.service(model)
    rows = flows_of(service, timeline)
    late = [row for row in rows if row.arrival_s >= span_s[0] + START_S]
    ordered = orders(timeline, capacity, model)
    rate = truth.rates.get(model, _no_rate)
    usable = [service.utilization * ordered.value(at_s) for at_s in _seconds(span_s)]
    over = [u / rate(s) for u, s in zip(usable, _seconds(span_s), strict=True) if rate(s) > 0.0]
    over_p99: float | None = None
    if not timeline.flows:
        p99 = p99_of_10s_rates([row.arrival_s for row in rows], span_s)
        over_p99 = sum(usable) / len(usable) / p99 if p99 > 0.0 else 0.0
    moves = model_moves(model, timeline, capacity)
    enough = [
        at_s
        for at_s, direction in moves
        if direction > 0
        and at_s >= span_s[0]
        and 0.0 < rate(at_s) <= service.utilization * ordered.before(at_s)
        and not any(0.0 <= at_s - lost < _AFTER_LOSS_S for lost in lost_s)
    ]
    return ModelFigures(
        requests=sum(row.requests for row in rows),
        served=sum(row.served for row in rows),
        attained=round(sum(row.attained for row in rows)),
        late_requests=sum(row.requests for row in late),
        late_attained=round(sum(row.attained for row in late)),
        over_provisioning=sum(over) / len(over) - 1.0 if over else 0.0,
        over_p99=over_p99,
        reversed=reversals(moves),
        false_scale_outs=len(enough),
    )


def p99_of_10s_rates(arrivals_s: Sequence[float], span_s: tuple[float, float]) -> float:
    """The 99th percentile of requests/s in whole spans of 10 s; 0 where there is none."""
    bins = int((span_s[1] - span_s[0]) / 10.0)
    if bins < 1:
        return 0.0
    counts = [0] * bins
    for at_s in arrivals_s:
        index = int((at_s - span_s[0]) / 10.0)
        if 0 <= index < bins:
            counts[index] += 1
    counts.sort()
    return counts[min(bins - 1, int(0.99 * bins))] / 10.0


def smoothed_rates(arrivals: Sequence[Arrival], lead_s: float) -> dict[str, Rate]:
    """The true rate of recorded arrivals: their number within a minute before and after."""
    times: dict[str, list[float]] = {}
    for arrival in arrivals:
        times.setdefault(arrival.model, []).append(arrival.at_s + lead_s)

    def rate_of(at: list[float]) -> Rate:
        at.sort()
        first, last = at[0], at[-1]

        def rate(now_s: float) -> float:
            low, high = max(first, now_s - _SMOOTH_S / 2), min(last, now_s + _SMOOTH_S / 2)
            if high <= low:
                return 0.0
            return (bisect_right(at, high) - bisect_right(at, low)) / (high - low)

        return rate

    return {model: rate_of(at) for model, at in times.items()}


def _no_rate(_at_s: float) -> float:
    return 0.0


def _seconds(span_s: tuple[float, float]) -> range:
    return range(int(span_s[0]), int(span_s[1]))


def reversals(moves: Sequence[tuple[float, int]]) -> Reversals:
    """The moves that followed their opposite."""
    return Reversals(tuple(at for (_, last), (at, now) in pairwise(moves) if last != now))


def model_moves(model: str, timeline: Timeline, capacity: Capacity) -> list[tuple[float, int]]:
    """(second, +1 = scale-out or -1 = scale-in) of each."""
    ordered = orders(timeline, capacity, model)
    moves: list[tuple[float, int]] = []
    for decision in timeline.decisions:
        if not decision.applied:
            continue
        at_s = timeline.second_of(decision.at_ms)
        mine = [(c, n) for c, n in decision.change if n and capacity.of(c)[0] == model]
        net = capacity.total(mine, model)
        direction = 1 if net > 0 else -1
        if len({n > 0 for _, n in mine}) == 2 and (
            abs(net) <= EXCHANGE * ordered.before(at_s)
            or direction * decision.cost_delta_usd_per_h <= 0.0
        ):
            continue
        if mine:
            moves.append((at_s, direction))
    return moves
