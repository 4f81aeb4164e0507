"""Measures of one run, computed from its timeline.

Attainment: a request attains its SLO iff it was served and both its TTFT and its mean time per
output token are within the model's limits. Every arrived request counts.

Ordered capacity: requests/s of all assigned groups that are not draining, ready or not. Capacities
are the planner's (`evaluate_combo`) at the lengths of the trace, before utilization.

A scale-out (scale-in) is an applied decision that only adds (removes) groups of a model. A decision
that does both counts if it raises (lowers) the ordered capacity by more than a tenth and costs more
(less); otherwise it is an exchange. A reversal is a scale-out (scale-in) that follows a scale-in
(scale-out) of its model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.workload import Arrivals, Lengths, Slo
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.simulation.simulated_request import Ending
from autoscaler.simulation.timeline import FlowRow, RequestRow, Timeline

EXCHANGE_TOLERANCE = 0.1
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Reversals:
    """Scale-outs that followed a scale-in, or the reverse. at_s: the second of each."""

    at_s: tuple[float, ...] = ()

    @property
    def most_per_h(self) -> int:
        """The largest number of reversals within one hour."""
        at_s = self.at_s
        return max((bisect_right(at_s, at + _HOUR_S) - i for i, at in enumerate(at_s)), default=0)


def attains(row: RequestRow, slo: Slo) -> bool:
    """Whether the request of `row` attains `slo`."""
    if row.outcome != Ending.SERVED or row.first_token_s is None or row.end_s is None:
        return False
    ttft_ms = 1000.0 * (row.first_token_s - row.arrival_s)
    gaps = row.output_tokens - 1
    tpot_ms = 1000.0 * (row.end_s - row.first_token_s) / gaps if gaps > 0 else 0.0
    return ttft_ms <= slo.ttft_ms and tpot_ms <= slo.tpot_ms


def flows_of(service: Service, timeline: Timeline) -> list[FlowRow]:
    """Rows of the requests of `service`. If single requests were simulated, each is a row."""
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
    """Cost of the billed nodes."""
    return sum(span.usd for span in timeline.nodes)


class ComboCapacity:
    """Capacity of combos by the planner's figures, at the lengths of the trace.

    req_per_s: per model, the rate that its instances share. A model without an entry has a single
    instance that gets all arrivals.
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
        """Model and requests/s of one combo."""
        found = self._known.get(combo_id)
        if found is None:
            model, _ = parse_combo_id(combo_id)
            service = self._cluster.service(model)
            lengths = self._lengths.get(model, service.lengths)
            raw = self._req_per_s.get(model, 0.0) / service.utilization
            combo = evaluate_combo(
                combo_id,
                self._cluster,
                service,
                lengths,
                cluster_profile(self._cluster),
                Arrivals(raw),
            )
            found = self._known[combo_id] = model, combo.req_per_s
        return found

    def total(self, counts: Iterable[tuple[str, float]], model: str) -> float:
        """Total requests/s of the combos of `model` in `counts`, which are (combo id, count)
        pairs."""
        total = 0.0
        for combo_id, count in counts:
            owner, req_per_s = self.of(combo_id)
            total += count * req_per_s if owner == model else 0.0
        return total


@dataclass(frozen=True, slots=True)
class OrderedCapacity:
    """Ordered capacity of one model over time: it is `values[i]` requests/s from `at_s[i]` on."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]

    def value(self, at_s: float) -> float:
        """Requests/s ordered at `at_s`."""
        index = bisect_right(self.at_s, at_s)
        return self.values[index - 1] if index else 0.0

    def before(self, at_s: float) -> float:
        """Requests/s ordered just before `at_s`."""
        index = bisect_right(self.at_s, at_s - 1e-9)
        return self.values[index - 1] if index else 0.0


def ordered_capacity(timeline: Timeline, capacity: ComboCapacity, model: str) -> OrderedCapacity:
    """Ordered capacity of `model` over the run."""
    return OrderedCapacity(
        tuple(row.at_s for row in timeline.ordered),
        tuple(capacity.total(row.counts.items(), model) for row in timeline.ordered),
    )


def reversals(moves: Sequence[tuple[float, int]]) -> Reversals:
    """The `moves` whose previous move had the other direction."""
    return Reversals(tuple(at for (_, last), (at, now) in pairwise(moves) if last != now))


def model_moves(model: str, timeline: Timeline, capacity: ComboCapacity) -> list[tuple[float, int]]:
    """The second of each scale-out (+1) and scale-in (-1) of `model`."""
    ordered = ordered_capacity(timeline, capacity, model)
    moves: list[tuple[float, int]] = []
    for decision in timeline.decisions:
        if not decision.applied:
            continue
        at_s = timeline.second_of(decision.at_ms)
        mine = [(c, n) for c, n in decision.change if n and capacity.of(c)[0] == model]
        net = capacity.total(mine, model)
        direction = 1 if net > 0 else -1
        if len({n > 0 for _, n in mine}) == 2 and (
            abs(net) <= EXCHANGE_TOLERANCE * ordered.before(at_s)
            or direction * decision.cost_delta_usd_per_h <= 0.0
        ):
            continue
        if mine:
            moves.append((at_s, direction))
    return moves
