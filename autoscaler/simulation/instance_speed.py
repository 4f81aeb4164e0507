"""Latencies of instances in the rate simulator, and how many requests attain their SLO.

The latencies of an instance are those of the sizing model's engine at the instance's load
(`performance.attainment`), in steps of 1/GRID of saturation. The gateway sends no more requests to
an instance than its slots. While requests wait at the gateway, the slots are full, and the
latencies are those of an engine that always holds as many requests.

Misses are clustered, because one long prompt or a short burst causes several. Therefore each
instance takes the sampled requests in their order, and jumps to a random position from time to time
(the stationary bootstrap of Politis and Romano, 1994). Round robin over n instances makes Poisson
arrivals more even: the gaps at each instance have a coefficient of variation of 1 / sqrt(n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance.attainment import GRID, Engine, Run, build_engine
from autoscaler.performance.numba_decorators import compiled
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import Ints
from topics.sketch import GAMMA, HIGHEST, LOWEST

_NO_LIMIT = 1 << 20
_REDRAW_S = 60.0
"""Mean time that an instance walks along the sample before it jumps to another position."""

Floats = npt.NDArray[np.float32]
Sketch = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
SampleStats = tuple[Ints, Sketch, Sketch]
"""Statistics of a sample: for 0, 1, ... n, how many of its first requests are within both limits (n
+ 1,); then the distributions of TTFT and TPOT as a gateway measures them, each as (buckets -
LOWEST, cumulative shares)."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of a sample of requests: ms to the first token, and ms per token after that.

    stay_s: seconds from the arrival at the first instance to the end of the answer. first_s: the
    part of stay_s at the first instance. stats_cache: statistics of requests that did not wait.
    """

    ttft_ms: Floats
    tpot_ms: Floats
    stay_s: float
    first_s: float
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
        self._by_step: dict[int, Latencies] = {}
        self._full: dict[int, tuple[Latencies, float]] = {}
        self._output_tokens = lengths.output_tokens

    def at(self, step: int) -> Latencies:
        """Latencies at `step` / GRID of saturation."""
        if step not in self._by_step:
            self._by_step[step] = self._compute(step * self.req_per_s / GRID)
        return self._by_step[step]

    def full(self, slots: int) -> tuple[Latencies, float]:
        """Latencies and requests/s of an instance whose `slots` are always full; 0 slots = no
        limit."""
        if slots not in self._full:
            self._full[slots] = self._compute_full(slots or _NO_LIMIT)
        return self._full[slots]

    def _compute_full(self, slots: int) -> tuple[Latencies, float]:
        req_per_s, run = self._first.full_run(slots)
        if self._decode is not None:
            behind_req_per_s = self._decodes * self._decode.saturation()[0]
            if behind_req_per_s < req_per_s:
                return self.at(GRID), behind_req_per_s
        return self._latencies(run, req_per_s), req_per_s

    def _compute(self, req_per_s: float) -> Latencies:
        return self._latencies(self._first.run_at_step(_step(self._first, req_per_s)), req_per_s)

    def _latencies(self, run: Run, req_per_s: float) -> Latencies:
        """Latencies if `run` is the run of the first instance."""
        ttft, tpot = run.ttft_ms + np.float32(self._first.times.first_token_ms), run.tpot_ms
        prefill_s = float(np.median(ttft)) / 1000.0
        if self._decode is not None:
            behind = self._decode.run_at_step(_step(self._decode, req_per_s / self._decodes))
            ttft, tpot = ttft + behind.ttft_ms, behind.tpot_ms
        ttft, tpot = np.nan_to_num(ttft, posinf=1e9), np.nan_to_num(tpot, posinf=1e9)
        # Use the median, because requests of the sample that were never served have infinite times.
        stay_s = float(np.median(ttft) + np.median(tpot) * self._output_tokens) / 1000.0
        return Latencies(ttft, tpot, stay_s, stay_s if self._decode is None else prefill_s)


instance_speed = lru_cache(maxsize=256)(InstanceSpeed)


class InstanceSet:
    """Groups of one kind: `count` first (aggregated or prefill) instances with `weight` in total.

    slots: most requests that the gateway sends to one first instance, 0 = no limit. The instances
    keep their positions in the sample as long as this object exists.
    """

    def __init__(
        self,
        weight: float,
        count: int,
        speed: InstanceSpeed,
        slots: int,
        random: np.random.Generator,
    ) -> None:
        self.weight = weight
        self.full, each_req_per_s = speed.full(slots)
        self.req_per_s = count * each_req_per_s
        self._count = count
        self._speed = speed
        self._random = random
        self._positions = random.random(count)  # position of each instance in the sample, in [0, 1)

    @property
    def room(self) -> float:
        """Number of requests that the instances can hold in addition to the requests that they hold
        at their highest rate."""
        open_ = self.at(self.req_per_s)
        return max(0.0, self.req_per_s * (self.full.first_s - open_.first_s))

    def at(self, req_per_s: float) -> Latencies:
        """Latencies if the whole set serves `req_per_s`."""
        most = self._count * self._speed.req_per_s
        return self._speed.at(min(GRID, round(GRID * req_per_s / most)) if most else GRID)

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
