"""Figures of the decisions of one run, from its timeline and its true demand.

Definitions:

`late` attainment excludes the arrivals of the first three minutes.

Needed capacity: the true rate / utilization.

First scale-out after a step: the first time at which ordered capacity rises after the step.
Sufficient: the first time after the step at which ordered capacity is enough for the new rate. Both
are 0 if the fleet was sufficient at the step.

Over-provisioning: the mean of ordered capacity x utilization / true rate, minus 1. It covers the
time after the first arrival with a true rate above 0.

A scale-out is false if ordered capacity was sufficient and no node was lost in the two minutes
before. Scale-outs before the first possible arrival do not count.

Attainment, ordered capacity and reversals are as `autoscaler.simulation.run_measures` defines them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Lengths
from autoscaler.simulation.arrivals import Arrival, p99_10s_req_per_s
from autoscaler.simulation.run_measures import (
    ComboCapacity,
    OrderedCapacity,
    Reversals,
    flows_of,
    model_moves,
    ordered_capacity,
    reversals,
)
from autoscaler.simulation.timeline import Timeline

START_S = 180.0
"""Length of the first part of a run, which `late` attainment leaves out, in s."""
_AFTER_LOSS_S = 120.0
_SMOOTH_S = 120.0

Rate = Callable[[float], float]
"""The true requests/s of a model at a second of the simulation."""


@dataclass(frozen=True, slots=True)
class Truth:
    """True demand of a simulation. rates: per model; lengths: per model, in order of arrival."""

    rates: Mapping[str, Rate]
    lengths: Mapping[str, Lengths]


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of one model. attained, late_*: counts. Ratios are as defined above. over_p99: None
    for a simulation by rates, which has no arrival times within a tick.
    """

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
        """Attained / arrived; 1 without arrivals."""
        return self.attained / self.requests if self.requests else 1.0

    @property
    def late_attainment(self) -> float:
        """Attainment without the arrivals of the first three minutes."""
        return self.late_attained / self.late_requests if self.late_requests else 1.0


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Seconds from a step to each event that followed; None if the event did not occur."""

    first_scale_out_s: float | None
    sufficient_s: float | None


def step_figures(found: OrderedCapacity, step_s: float, needed_req_per_s: float) -> StepFigures:
    """How ordered capacity follows a step at `step_s` after which `needed_req_per_s` are needed."""
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
    capacity: ComboCapacity,
    truth: Truth,
    span_s: tuple[float, float],
    lost_s: Sequence[float] = (),
) -> ModelFigures:
    """The figures of `model` over `span_s` (first possible arrival, end). lost_s: times of node
    losses."""
    service = cluster.service(model)
    rows = flows_of(service, timeline)
    late = [row for row in rows if row.arrival_s >= span_s[0] + START_S]
    ordered = ordered_capacity(timeline, capacity, model)
    rate = truth.rates.get(model, _no_rate)
    usable = [service.utilization * ordered.value(at_s) for at_s in _seconds(span_s)]
    over = [u / rate(s) for u, s in zip(usable, _seconds(span_s), strict=True) if rate(s) > 0.0]
    over_p99: float | None = None
    if not timeline.flows:
        p99 = p99_10s_req_per_s([row.arrival_s for row in rows], span_s)
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


def smoothed_rates(arrivals: Sequence[Arrival], lead_s: float) -> dict[str, Rate]:
    """The true rate of recorded arrivals at a time.

    It is the mean rate in a window around that time. lead_s: added to the times of arrivals.
    """
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
