"""The requests of one model as a flow through the instances that serve it.

It holds the queue in front of the instances, and computes the share of the requests that attain the
SLO and the times at which requests end. The latencies of an instance are those of the sizing
model's engine at the instance's load (`performance.attainment`), in steps of 1/GRID of saturation.
Requests beyond the capacity wait in order of arrival, and the wait counts towards their TTFT.

Misses are clustered, because one long prompt or a short burst causes several. Therefore each
instance takes the sampled requests in their order, and jumps to a random position from time to time
(the stationary bootstrap of Politis and Romano, 1994). Round robin over n instances makes Poisson
arrivals more even: the gaps at each instance have a coefficient of variation of 1 / sqrt(n).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance.attainment import GRID, Engine, build_engine
from autoscaler.performance.numba_decorators import compiled
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import Batch, Ints, empty_sketch
from topics.sketch import GAMMA, HIGHEST, LOWEST

_SMOOTH_S = 15.0
"""Just after a change of the rate, the load is the mean over about the time that a request
stays."""
_SETTLE_S, _MEAN_S = 60.0, 300.0
"""From `_SETTLE_S` after a change on, the load is the mean since the change, at most `_MEAN_S`."""
_REDRAW_S = 60.0
"""Mean time that an instance walks along the sample before it jumps to another position."""
_SIGMAS, _MIN_CHANGE = 3.0, 0.03
"""A rate has changed if it differs by more than this relative change and by more than chance
(standard deviations)."""

Floats = npt.NDArray[np.float32]
Sketch = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
SampleStats = tuple[Ints, Sketch, Sketch]
"""Statistics of a sample: for 0, 1, ... n, how many of its first requests are within both limits (n
+ 1,); then the distributions of TTFT and TPOT as a gateway measures them, each as (buckets -
LOWEST, cumulative shares)."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of a sample of requests: ms to the first token, and ms per token after that.

    stats_cache: statistics of requests that did not wait.
    """

    ttft_ms: Floats
    tpot_ms: Floats
    stats_cache: dict[Slo, SampleStats] = field(default_factory=dict)

    def stats(self, slo: Slo, wait_ms: float) -> SampleStats:
        """Statistics of requests that have each waited `wait_ms` before they were sent."""
        found = self.stats_cache.get(slo) if wait_ms == 0.0 else None
        if found is None:
            hit = (self.ttft_ms + wait_ms <= slo.ttft_ms) & (self.tpot_ms <= slo.tpot_ms)
            upto = np.append(0, np.cumsum(hit)).astype(np.int64)
            found = upto, _sketch(self.ttft_ms + np.float32(wait_ms)), _sketch(self.tpot_ms)
            if wait_ms == 0.0:
                self.stats_cache[slo] = found
        return found


class InstanceSpeed:
    """Capacity and latencies of one instance, including its share of the decode instances behind
    it.

    All instances of a kind share one object.
    """

    def __init__(
        self,
        first: tuple[EngineSetup, Phase],
        decode: tuple[EngineSetup, float] | None,
        lengths: Lengths,
        arrival_cv: float,
    ) -> None:
        """first: setup and phase of the instance. decode: setup of the decode instances behind it,
        and their number per first instance."""
        setup, phase = first
        self._first = build_engine(setup.times, phase, lengths, arrival_cv)
        self.req_per_s = self._first.saturation()[0]
        self._decode: Engine | None = None
        self._decodes = 1.0
        if decode is not None:
            behind, self._decodes = decode
            self._decode = build_engine(
                behind.times, Phase.DECODE, lengths, arrival_cv, link_gb_s=behind.kv_gb_s
            )
            self.req_per_s = min(self.req_per_s, self._decodes * self._decode.saturation()[0])
        self._by_step: dict[int, tuple[Latencies, float]] = {}
        self._output_tokens = lengths.output_tokens

    def at(self, step: int) -> tuple[Latencies, float]:
        """(latencies at `step` / GRID of the instance's capacity, seconds that a request stays)."""
        if step not in self._by_step:
            self._by_step[step] = self._compute(step * self.req_per_s / GRID)
        return self._by_step[step]

    def _compute(self, req_per_s: float) -> tuple[Latencies, float]:
        run = self._first.run_at_step(_step(self._first, req_per_s))
        ttft, tpot = run.ttft_ms + np.float32(self._first.times.first_token_ms), run.tpot_ms
        if self._decode is not None:
            behind = self._decode.run_at_step(_step(self._decode, req_per_s / self._decodes))
            ttft, tpot = ttft + behind.ttft_ms, behind.tpot_ms
        ttft, tpot = np.nan_to_num(ttft, posinf=1e9), np.nan_to_num(tpot, posinf=1e9)
        # Use the median, because requests of the sample that were never served have infinite times.
        stay = float(np.median(ttft) + np.median(tpot) * self._output_tokens) / 1000.0
        return Latencies(ttft, tpot), stay


instance_speed = lru_cache(maxsize=256)(InstanceSpeed)


class InstanceSet:
    """Groups of one kind: `count` first (aggregated or prefill) instances with `weight` in total.

    The instances keep their positions in the sample as long as this object exists.
    """

    def __init__(
        self, weight: float, count: int, speed: InstanceSpeed, random: np.random.Generator
    ) -> None:
        self.weight = weight
        self.req_per_s = count * speed.req_per_s
        self._speed = speed
        self._random = random
        self._positions = random.random(count)  # position of each instance in the sample, in [0, 1)

    def at(self, req_per_s: float) -> tuple[Latencies, float]:
        """(latencies if the whole set serves `req_per_s`, seconds that a request stays)."""
        total_req_per_s = self.req_per_s
        return self._speed.at(
            min(GRID, round(GRID * req_per_s / total_req_per_s)) if total_req_per_s else GRID
        )

    def attained(self, upto: Ints, requests: float, span_s: float) -> float:
        """Number of `requests` in `span_s` that meet both limits. upto: as in `SampleStats`."""
        used = min(len(self._positions), max(1, round(requests)))
        draws = self._random.random((2, used))
        moves = min(1.0, span_s / _REDRAW_S)
        steps = max(1, round(requests / used))
        return requests * _walk_sample(upto, self._positions, steps, moves, draws)


def _step(one: Engine, req_per_s: float) -> int:
    total_req_per_s = one.saturation()[0]
    return (
        min(GRID, max(0, round(GRID * req_per_s / total_req_per_s)))
        if total_req_per_s > 0.0
        else GRID
    )


@dataclass(slots=True)
class Cohort:
    """Requests that arrived in one span.

    unsent: number of requests not yet sent to an instance. served, attained: counts of the sent
    requests. ttft, tpot: counts of the served requests by bucket minus LOWEST. due_s: time at which
    the requests end.
    """

    at_s: float
    batch: Batch
    unsent: int
    served: int = 0
    attained: float = 0.0
    refused: int = 0
    due_s: float = 0.0
    ttft: Ints = field(default_factory=empty_sketch)
    tpot: Ints = field(default_factory=empty_sketch)


@dataclass(slots=True)
class Flow:
    """The requests of one model.

    waiting: cohorts in order of arrival. in_service: sent cohorts, by due time. hold_s: longest
    wait while no instance serves. queue_s: longest wait while some instance serves. max_waiting:
    maximum number of waiting requests. req_per_s: current load. stay_s: time that a request stays.
    """

    slo: Slo
    hold_s: float
    queue_s: float
    max_waiting: int
    waiting: deque[Cohort] = field(default_factory=deque)
    in_service: deque[Cohort] = field(default_factory=deque)
    req_per_s: float = 0.0
    stay_s: float = 0.0
    _recent_req_per_s: float = 0.0
    _steady_s: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        sent = sum(cohort.served for cohort in (*self.in_service, *self.waiting))
        return sent + sum(cohort.unsent for cohort in self.waiting)

    def is_steady(self, requests: float, span_s: float) -> bool:
        """Whether no request waits, and `requests` in the next `span_s` match the recent rate
        within chance."""
        usual = self.req_per_s * span_s
        chance = _SIGMAS * math.sqrt(max(1.0, usual))
        return not self.waiting and abs(requests - usual) <= max(chance, _MIN_CHANGE * usual)

    def advance(
        self, batch: Batch, from_s: float, to_s: float, instance_sets: Sequence[InstanceSet]
    ) -> list[Cohort]:
        """Add `batch`, which arrived in [from_s, to_s). Returns the cohorts that have ended by
        `to_s`."""
        span_s = to_s - from_s
        self._update_rate(batch.servable / span_s, span_s)
        if batch.requests:
            self.waiting.append(Cohort(0.5 * (from_s + to_s), batch, batch.servable))
        total_req_per_s = sum(instance_set.req_per_s for instance_set in instance_sets)
        if total_req_per_s > 0.0:
            self._serve(from_s, to_s, instance_sets, total_req_per_s)
        self._refuse(to_s, total_req_per_s > 0.0)
        ended = []
        while self.in_service and self.in_service[0].due_s <= to_s:
            ended.append(self.in_service.popleft())
        return ended

    def _update_rate(self, arrived_req_per_s: float, span_s: float) -> None:
        """Update the load after a span with arrivals at `arrived_req_per_s`.

        Latencies at a load already contain the effect of random arrivals, and a mean rate over a
        few seconds would count it twice. So the load is the mean rate since the last significant
        change.
        """
        self._recent_req_per_s += (1.0 - math.exp(-span_s / _SMOOTH_S)) * (
            arrived_req_per_s - self._recent_req_per_s
        )
        self._steady_s = min(_MEAN_S, self._steady_s + span_s)
        if self._steady_s > _SETTLE_S:
            self.req_per_s += span_s / self._steady_s * (arrived_req_per_s - self.req_per_s)
            usual = max(self.req_per_s, 1.0 / _SMOOTH_S)
            chance = _SIGMAS * math.sqrt(usual / (2.0 * _SMOOTH_S))
            if abs(self._recent_req_per_s - self.req_per_s) <= max(chance, _MIN_CHANGE * usual):
                return
            self._steady_s = 0.0
        self.req_per_s = self._recent_req_per_s

    def _serve(
        self,
        from_s: float,
        to_s: float,
        instance_sets: Sequence[InstanceSet],
        total_req_per_s: float,
    ) -> None:
        room = total_req_per_s * (to_s - from_s)
        overloaded = sum(cohort.unsent for cohort in self.waiting) > room
        rate = total_req_per_s if overloaded else self.req_per_s
        weights = sum(instance_set.weight for instance_set in instance_sets)
        shares = [
            instance_set.weight / weights if weights else 1.0 / len(instance_sets)
            for instance_set in instance_sets
        ]
        found = [
            instance_set.at(rate * share)
            for instance_set, share in zip(instance_sets, shares, strict=True)
        ]
        self.stay_s = sum(s * stay for s, (_, stay) in zip(shares, found, strict=True))
        done = 0.0
        while self.waiting and (done < room or not self.waiting[0].unsent):
            cohort = self.waiting[0]
            part = min(cohort.unsent, math.ceil(room - done))
            starts_s = max(cohort.at_s, from_s + (done + 0.5 * part) / total_req_per_s)
            wait_ms = 1000.0 * (starts_s - cohort.at_s)
            for instance_set, share, (latencies, _) in zip(
                instance_sets, shares, found, strict=True
            ):
                upto, ttft, tpot = latencies.stats(self.slo, wait_ms)
                cohort.attained += instance_set.attained(upto, part * share, to_s - from_s)
                _count_sketch(cohort.ttft, *ttft, part * share)
                _count_sketch(cohort.tpot, *tpot, part * share)
            cohort.unsent -= part
            cohort.served += part
            done += part
            if cohort.unsent:
                return
            cohort.due_s = starts_s + self.stay_s
            self.in_service.append(self.waiting.popleft())

    def _refuse(self, now_s: float, serves: bool) -> None:
        longest_s = self.queue_s if serves else self.hold_s
        while self.waiting and now_s - self.waiting[0].at_s > longest_s:
            self._refuse_part(self.waiting.popleft(), now_s, None)
        over = sum(cohort.unsent for cohort in self.waiting) - self.max_waiting
        while over > 0:
            newest = self.waiting[-1]
            gone = min(over, newest.unsent)
            over -= gone
            if gone == newest.unsent:
                self.waiting.pop()
            self._refuse_part(newest, now_s, gone)

    def _refuse_part(self, cohort: Cohort, now_s: float, count: int | None) -> None:
        gone = cohort.unsent if count is None else count
        cohort.unsent -= gone
        cohort.refused += gone
        if not cohort.unsent:
            cohort.due_s = now_s
            self.in_service.appendleft(cohort)


def _sketch(values_ms: Floats) -> Sketch:
    places = np.log(np.maximum(values_ms, 1e-3)) / np.float32(math.log(GAMMA))
    buckets = np.clip(np.ceil(places), LOWEST, HIGHEST).astype(np.int64) - LOWEST
    counts = np.bincount(buckets)
    at = np.flatnonzero(counts)
    return at, np.cumsum(counts[at]) / len(values_ms)


@compiled
def _walk_sample(
    upto: Ints,
    places: npt.NDArray[np.float64],
    steps: int,
    moves: float,
    draws: npt.NDArray[np.float64],
) -> float:
    """Share of requests that meet the limits if each instance takes the next `steps` requests of
    the sample.

    draws, (2, used): random numbers, one column per instance. With probability `moves` an instance
    first jumps to a random position. The sample is circular. `places` is updated.
    """
    count = len(upto) - 1
    used = len(draws[0])
    hits = 0
    for one in range(used):
        if draws[0, one] < moves:
            places[one] = draws[1, one]
        begin = int(places[one] * count)
        rounds, end = divmod(begin + steps, count)
        hits += rounds * upto[count] + upto[end] - upto[begin]
        places[one] = (end + 0.5) / count
    return hits / (steps * used)


@compiled
def _count_sketch(
    counts: Ints, places: Ints, upto: npt.NDArray[np.float64], requests: float
) -> None:
    """Add `requests` requests with the distribution (places, upto) to the sketch `counts`."""
    before = 0
    for at in range(len(places)):
        now = int(np.rint(upto[at] * requests))
        counts[places[at]] += now - before
        before = now


def scale_counts(counts: Ints, share: float) -> Ints:
    """`counts` times `share`, rounded."""
    return counts if share >= 1.0 else np.rint(share * counts).astype(np.int64)
