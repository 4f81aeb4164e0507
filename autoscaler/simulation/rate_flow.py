"""One model's requests as a flow through the instances that serve it.

Owns the queue in front of them, what share of a flow attains its SLO and when it has left. An
instance's latencies are those of the sizing model's engine at its load (`performance.attainment`),
read off at 64ths of saturation; what exceeds the capacity waits in order of arrival, and its wait
counts against its TTFT. Misses come together, as one long prompt or a short burst makes them, so an
instance goes along the sampled requests in their order, for a while from each place that is drawn
(the stationary bootstrap of Politis and Romano, 1994). Round robin over n instances makes Poisson
arrivals more even: the gaps at each have a coefficient of variation of 1 / sqrt(n). Knows no clock
and no routes' history.
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
from autoscaler.performance.attainment import GRID, Engine, engine
from autoscaler.performance.numba_decorators import compiled
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import Batch, Ints, no_counts
from topics.sketch import GAMMA, HIGHEST, LOWEST

_SMOOTH_S = 15.0
"""Where the load has just changed it is a mean over about as long as a request stays."""
_SETTLES_S, _MEAN_S = 60.0, 300.0
_TOGETHER_S = 60.0
"""For about so long an instance goes along the sample before it is somewhere else in it."""
_SIGMAS, _CHANGE = 3.0, 0.03

Floats = npt.NDArray[np.float32]
Sketch = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
Looks = tuple[Ints, Sketch, Sketch]
"""Of a sample: how many of its first 0, 1, ... requests are within both limits, (n + 1,), and what
a gateway sees of TTFT and TPOT, as (buckets less LOWEST, cumulated shares)."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of a sample of requests: ms to the first token, ms per token after it. known: what was
    asked of those that waited for nothing."""

    ttft_ms: Floats
    tpot_ms: Floats
    known: dict[Slo, Looks] = field(default_factory=dict)

    def seen(self, slo: Slo, wait_ms: float) -> Looks:
        """Where each has waited `wait_ms` before."""
        found = self.known.get(slo) if wait_ms == 0.0 else None
        if found is None:
            hit = (self.ttft_ms + wait_ms <= slo.ttft_ms) & (self.tpot_ms <= slo.tpot_ms)
            upto = np.append(0, np.cumsum(hit)).astype(np.int64)
            found = upto, _sketch(self.ttft_ms + np.float32(wait_ms)), _sketch(self.tpot_ms)
            if wait_ms == 0.0:
                self.known[slo] = found
        return found


class Pace:
    """How fast one instance is, with the decode instances behind it; the same for all of a kind."""

    def __init__(
        self,
        first: tuple[EngineSetup, Phase],
        decode: tuple[EngineSetup, float] | None,
        lengths: Lengths,
        arrival_cv: float,
    ) -> None:
        """first: the setup and phase of the instance; decode: the setup of those behind it, and
        how many there are for each first one."""
        setup, phase = first
        self._first = engine(setup.times, phase, lengths, arrival_cv)
        self.req_per_s = self._first.saturation()[0]
        self._decode: Engine | None = None
        self._decodes = 1.0
        if decode is not None:
            behind, self._decodes = decode
            self._decode = engine(
                behind.times, Phase.DECODE, lengths, arrival_cv, link_gb_s=behind.kv_gb_s
            )
            self.req_per_s = min(self.req_per_s, self._decodes * self._decode.saturation()[0])
        self._known: dict[int, tuple[Latencies, float]] = {}
        self._output_tokens = lengths.output_tokens

    def at(self, step: int) -> tuple[Latencies, float]:
        """Latencies at `step` / GRID of what it can do, and the seconds that a request stays."""
        if step not in self._known:
            self._known[step] = self._read(step * self.req_per_s / GRID)
        return self._known[step]

    def _read(self, req_per_s: float) -> tuple[Latencies, float]:
        run = self._first.at(_step(self._first, req_per_s))
        ttft, tpot = run.ttft_ms + np.float32(self._first.times.first_token_ms), run.tpot_ms
        if self._decode is not None:
            behind = self._decode.at(_step(self._decode, req_per_s / self._decodes))
            ttft, tpot = ttft + behind.ttft_ms, behind.tpot_ms
        ttft, tpot = np.nan_to_num(ttft, posinf=1e9), np.nan_to_num(tpot, posinf=1e9)
        # The mean of those that were served; the sample has some that never were.
        stay = float(np.median(ttft) + np.median(tpot) * self._output_tokens) / 1000.0
        return Latencies(ttft, tpot), stay


pace = lru_cache(maxsize=256)(Pace)


class Way:
    """Groups of the routes that are of one kind: `count` first instances, of `weight` together.
    Where each is in the sample of requests lasts as long as this object."""

    def __init__(self, weight: float, count: int, each: Pace, random: np.random.Generator) -> None:
        self.weight = weight
        self.req_per_s = count * each.req_per_s
        self._each = each
        self._random = random
        self._places = random.random(count)  # of the instances in the sample, as shares of it

    def at(self, req_per_s: float) -> tuple[Latencies, float]:
        """Latencies at this rate, and the seconds that a request stays."""
        full = self.req_per_s
        return self._each.at(min(GRID, round(GRID * req_per_s / full)) if full else GRID)

    def attained(self, upto: Ints, requests: float, span_s: float) -> float:
        """How many of `requests` that come in `span_s` meet both limits; `upto` as in `Looks`."""
        used = min(len(self._places), max(1, round(requests)))
        draws = self._random.random((2, used))
        moves = min(1.0, span_s / _TOGETHER_S)
        steps = max(1, round(requests / used))
        return requests * _go_along(upto, self._places, steps, moves, draws)


def _step(one: Engine, req_per_s: float) -> int:
    full = one.saturation()[0]
    return min(GRID, max(0, round(GRID * req_per_s / full))) if full > 0.0 else GRID


@dataclass(slots=True)
class Cohort:
    """What arrived in one span. left: not sent yet; served, attained: of the rest; ttft, tpot:
    of the served, counts by bucket less LOWEST; due_s: when it has left."""

    at_s: float
    batch: Batch
    left: int
    served: int = 0
    attained: float = 0.0
    refused: int = 0
    due_s: float = 0.0
    ttft: Ints = field(default_factory=no_counts)
    tpot: Ints = field(default_factory=no_counts)


@dataclass(slots=True)
class Flow:
    """The requests of one model. waiting: in order of arrival; under_way: sent, by due time.

    hold_s: the longest wait while nothing serves; queue_s: of all; most: how many may wait.
    """

    slo: Slo
    hold_s: float
    queue_s: float
    most: int
    waiting: deque[Cohort] = field(default_factory=deque)
    under_way: deque[Cohort] = field(default_factory=deque)
    req_per_s: float = 0.0
    stay_s: float = 0.0
    _lately: float = 0.0
    _steady_s: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        sent = sum(cohort.served for cohort in (*self.under_way, *self.waiting))
        return sent + sum(cohort.left for cohort in self.waiting)

    def is_usual(self, requests: float, span_s: float) -> bool:
        """Whether so many more in `span_s` are as many as lately, within chance, and none waits."""
        usual = self.req_per_s * span_s
        chance = _SIGMAS * math.sqrt(max(1.0, usual))
        return not self.waiting and abs(requests - usual) <= max(chance, _CHANGE * usual)

    def go_on(self, batch: Batch, from_s: float, to_s: float, ways: Sequence[Way]) -> list[Cohort]:
        """`batch` came in [from_s, to_s); what of everything has ended by `to_s`."""
        span_s = to_s - from_s
        self._see(batch.taken / span_s, span_s)
        if batch.requests:
            self.waiting.append(Cohort(0.5 * (from_s + to_s), batch, batch.taken))
        full = sum(way.req_per_s for way in ways)
        if full > 0.0:
            self._serve(from_s, to_s, ways, full)
        self._refuse(to_s, full > 0.0)
        ended = []
        while self.under_way and self.under_way[0].due_s <= to_s:
            ended.append(self.under_way.popleft())
        return ended

    def _see(self, come: float, span_s: float) -> None:
        """The load after a span in which `come` requests/s came.

        Latencies at a load contain what chance does to it: a mean over a few seconds would count
        that twice. So the mean since the last change beyond chance counts.
        """
        self._lately += (1.0 - math.exp(-span_s / _SMOOTH_S)) * (come - self._lately)
        self._steady_s = min(_MEAN_S, self._steady_s + span_s)
        if self._steady_s > _SETTLES_S:
            self.req_per_s += span_s / self._steady_s * (come - self.req_per_s)
            usual = max(self.req_per_s, 1.0 / _SMOOTH_S)
            chance = _SIGMAS * math.sqrt(usual / (2.0 * _SMOOTH_S))
            if abs(self._lately - self.req_per_s) <= max(chance, _CHANGE * usual):
                return
            self._steady_s = 0.0
        self.req_per_s = self._lately

    def _serve(self, from_s: float, to_s: float, ways: Sequence[Way], full: float) -> None:
        room = full * (to_s - from_s)
        behind = sum(cohort.left for cohort in self.waiting) > room
        rate = full if behind else self.req_per_s
        weights = sum(way.weight for way in ways)
        shares = [way.weight / weights if weights else 1.0 / len(ways) for way in ways]
        found = [way.at(rate * share) for way, share in zip(ways, shares, strict=True)]
        self.stay_s = sum(s * stay for s, (_, stay) in zip(shares, found, strict=True))
        done = 0.0
        while self.waiting and (done < room or not self.waiting[0].left):
            cohort = self.waiting[0]
            part = min(cohort.left, math.ceil(room - done))
            starts_s = max(cohort.at_s, from_s + (done + 0.5 * part) / full)
            wait_ms = 1000.0 * (starts_s - cohort.at_s)
            for way, share, (latencies, _) in zip(ways, shares, found, strict=True):
                upto, ttft, tpot = latencies.seen(self.slo, wait_ms)
                cohort.attained += way.attained(upto, part * share, to_s - from_s)
                _note(cohort.ttft, *ttft, part * share)
                _note(cohort.tpot, *tpot, part * share)
            cohort.left -= part
            cohort.served += part
            done += part
            if cohort.left:
                return
            cohort.due_s = starts_s + self.stay_s
            self.under_way.append(self.waiting.popleft())

    def _refuse(self, now_s: float, serves: bool) -> None:
        longest_s = self.queue_s if serves else self.hold_s
        while self.waiting and now_s - self.waiting[0].at_s > longest_s:
            self._give_up(self.waiting.popleft(), now_s, None)
        over = sum(cohort.left for cohort in self.waiting) - self.most
        while over > 0:
            newest = self.waiting[-1]
            gone = min(over, newest.left)
            over -= gone
            if gone == newest.left:
                self.waiting.pop()
            self._give_up(newest, now_s, gone)

    def _give_up(self, cohort: Cohort, now_s: float, count: int | None) -> None:
        gone = cohort.left if count is None else count
        cohort.left -= gone
        cohort.refused += gone
        if not cohort.left:
            cohort.due_s = now_s
            self.under_way.appendleft(cohort)


def _sketch(values_ms: Floats) -> Sketch:
    places = np.log(np.maximum(values_ms, 1e-3)) / np.float32(math.log(GAMMA))
    buckets = np.clip(np.ceil(places), LOWEST, HIGHEST).astype(np.int64) - LOWEST
    seen = np.bincount(buckets)
    at = np.flatnonzero(seen)
    return at, np.cumsum(seen[at]) / len(values_ms)


@compiled
def _go_along(
    upto: Ints,
    places: npt.NDArray[np.float64],
    steps: int,
    moves: float,
    draws: npt.NDArray[np.float64],
) -> float:
    """Go `steps` requests along the sample from each of the first places, one per column of draws,
    (2, used); the share of these requests that meet the limits. Before, a place is drawn anew with
    the probability `moves`. The sample begins again where it ends."""
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
def _note(counts: Ints, places: Ints, upto: npt.NDArray[np.float64], requests: float) -> None:
    """Count `requests` with the latencies of a sketch."""
    before = 0
    for at in range(len(places)):
        now = int(np.rint(upto[at] * requests))
        counts[places[at]] += now - before
        before = now


def scaled(counts: Ints, share: float) -> Ints:
    """`counts` of a share of all, rounded."""
    return counts if share >= 1.0 else np.rint(share * counts).astype(np.int64)
