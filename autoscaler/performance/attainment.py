"""Simulate one instance to find the share of requests that meet the SLO at a given rate.

A closed formula is not accurate enough: a request's time per token is a mean over iterations that
other prompts lengthen, batch and queue depend on each other, and one long prompt can make short
answers miss the SLO. Therefore the compiled engine serves a fixed sample of requests.

Requests of one decode batch miss their limit together, so a sample has only as many independent
observations as batches. Capacity is searched on the short sample. If misses must be rare, the
result is confirmed on a sample in which the requests in flight change `TURNOVERS` times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import engine_kernel as kernel
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S, batched_tokens
from autoscaler.performance.request_sample import (
    REQUESTS,
    Ints,
    measured_part,
    sample_lengths,
    unit_arrivals,
)
from autoscaler.performance.roofline import kv_transfer_ms
from autoscaler.performance.step_times import StepTimes
from autoscaler.performance.timing_grid import TimingGrid, timing_grid

Floats = npt.NDArray[np.float64]

SEED = 20260
TURNOVERS = 320
_MAX_SAMPLES = 10  # a long sample has at most this many times REQUESTS
GRID = 64
"""Capacity is searched among multiples of saturation / GRID."""
KINDS = {
    Phase.AGGREGATED: kernel.WHOLE,
    Phase.PREFILL: kernel.PREFILL,
    Phase.DECODE: kernel.DECODE,
}
DECODE_TTFT_SHARE = 0.15
"""Share of the TTFT limit that a decode instance has for the transfer of KV and its first steps;
the rest is for prefill."""
_ALONE_GAP_MS = 1e8  # ms between arrivals at which no two requests overlap


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Result at one rate, independent of any SLO: latencies of each measured request in ms, and the
    engine's state. batch: mean number of decoding requests. memory_waits: share of the busy time in
    which a request waited for KV cache.
    """

    ttft_ms: npt.NDArray[np.float32]
    tpot_ms: npt.NDArray[np.float32]
    batch: float
    memory_waits: float


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Parameters of the requests of a sample."""

    model: ModelSpec
    phase: Phase
    lengths: Lengths
    arrival_cv: float
    seed: int
    link_gb_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Requests, in arrays of shape (n,). The arrivals have a rate of 1 per ms. cached: prompt
    tokens that the prefix cache has."""

    arrivals: Floats
    inputs: Ints
    outputs: Ints
    transfer_ms: Floats
    cached: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One instance that serves one distribution of request lengths; create it with
    `build_engine`."""

    times: StepTimes
    phase: Phase
    grid: TimingGrid
    traffic: _Traffic
    _saturation: list[tuple[float, Run]] = field(default_factory=list)

    def run(self, req_per_s: float, requests: int = REQUESTS) -> Run:
        """Serve a sample of `requests` at `req_per_s`. At 0, each request is served alone."""
        gap_ms = 1e3 / req_per_s if req_per_s > 0.0 else _ALONE_GAP_MS
        sample = _draw_sample(self.traffic, requests)
        arrival_ms = sample.arrivals * gap_ms
        return self._serve(sample, arrival_ms, sample.outputs, self.times.max_batch)[0]

    def run_at_step(self, step: int) -> Run:
        """Serve the sample at `step` / GRID of saturation; results are cached."""
        return _run_at_step(self, step)

    def long_run_at_step(self, step: int) -> Run:
        """As `run_at_step`, but the sample is long enough for the number of requests in flight at
        `step`."""
        return _long_run_at_step(self, step)

    def long_run(self, req_per_s: float, short: Run) -> Run:
        """Serve a sample at `req_per_s` that is long enough for the number of requests in flight in
        `short`."""
        samples = min(_MAX_SAMPLES, math.ceil(TURNOVERS * short.batch / REQUESTS))
        return self.run(req_per_s, samples * REQUESTS) if samples > 1 else short

    def rate_at_step(self, step: int) -> float:
        """Requests/s at `step` / GRID of saturation."""
        return self.saturation()[0] * step / GRID if step else 0.0

    def saturation(self) -> tuple[float, Run]:
        """The highest requests/s that the engine serves, and its state at that rate. The queue
        never empties in this run, so the arrival process does not matter and the result is computed
        only once.
        """
        if not self._saturation:
            one = self.traffic
            if one.arrival_cv == 1.0:
                self._saturation.append(self._saturate())
            else:
                seed, link_gb_s = one.seed, one.link_gb_s
                plain = build_engine(self.times, one.phase, one.lengths, 1.0, seed, link_gb_s)
                self._saturation.append(plain.saturation())
        return self._saturation[0]

    def attained(self, run: Run, slo: Slo) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Whether each measured request is within its TTFT limit, and within its TPOT limit.

        In a prefill-decode pair, the decode instance has DECODE_TTFT_SHARE of the TTFT limit and
        the prefill instance the remainder.
        """
        limit_ms = slo.ttft_ms
        if self.phase is Phase.DECODE:
            limit_ms = DECODE_TTFT_SHARE * slo.ttft_ms
        elif self.phase is Phase.PREFILL:
            limit_ms = (1.0 - DECODE_TTFT_SHARE) * slo.ttft_ms
        return self.own_ttft_ms(run) <= limit_ms, run.tpot_ms <= slo.tpot_ms

    def own_ttft_ms(self, run: Run) -> npt.NDArray[np.float32]:
        """TTFT of each measured request in ms, without the other phase's part."""
        outside_ms = 0.0 if self.phase is Phase.DECODE else self.times.first_token_ms
        return run.ttft_ms + np.float32(outside_ms)

    def attained_share(self, run: Run, slo: Slo) -> float:
        """Share of requests within both limits."""
        ttft, tpot = self.attained(run, slo)
        return float(np.count_nonzero(ttft & tpot)) / len(ttft)

    def _saturate(self) -> tuple[float, Run]:
        """Requests/s while the queue never empties, over the whole sample.

        The first batch starts at random points of its answers; otherwise requests of equal length
        would always end together. The run ends when the last request gets its first token. The
        missing part of the first batch and the unfinished part of the last batch then add up to one
        batch.
        """
        sample = _draw_sample(self.traffic, REQUESTS)
        outputs = self._staggered(sample, self.times.max_batch)
        run, first_ms, _ = self._serve(sample, np.zeros(REQUESTS), outputs, self.times.max_batch)
        served = first_ms[np.isfinite(first_ms)]
        if not len(served):
            return 0.0, run
        return float((len(served) - run.batch) / served.max() * 1e3), run

    def full_run(self, in_flight: int) -> tuple[float, Run]:
        """Requests/s, and the run, of an engine that always holds `in_flight` requests, because one
        arrives whenever another one ends.

        At most a quarter of the sample is in flight, so that the sample covers several turnovers.
        """
        sample = _draw_sample(self.traffic, REQUESTS)
        held = max(1, min(in_flight, REQUESTS // 4))
        batch = min(held, self.times.max_batch)
        arrival_ms = np.zeros(REQUESTS)
        outputs = self._staggered(sample, batch)
        _, _, last_ms = self._serve(sample, arrival_ms, outputs, batch)
        ends_ms = np.sort(last_ms)
        arrival_ms[held:] = ends_ms[:-held]
        run, _, last_ms = self._serve(sample, arrival_ms, outputs, batch)
        counted = measured_part(REQUESTS)
        ends_ms = np.sort(last_ms)[counted]
        span_ms = float(ends_ms[-1] - ends_ms[0])
        if not 0.0 < span_ms < math.inf:
            return 0.0, run
        return (len(ends_ms) - 1) / span_ms * 1e3, run

    def _staggered(self, sample: _Sample, most: int) -> Ints:
        """Outputs of `sample`, whose first batch of at most `most` requests starts at random points
        of its answers."""
        outputs = sample.outputs.copy()
        context = sample.inputs.mean() + 0.5 * np.mean(outputs**2) / outputs.mean()
        tokens = self.times.kv_tokens_at(context)
        batch = int(np.clip(tokens / context, 1, most))
        outputs[:batch] = np.ceil(outputs[:batch] * np.arange(1, batch + 1) / batch)
        return outputs

    def _serve(
        self, sample: _Sample, arrival_ms: Floats, outputs: Ints, max_batch: int
    ) -> tuple[Run, Floats, Floats]:
        """The run, and ms of the first and of the last token of each request."""
        count = len(arrival_ms)
        counted = measured_part(count)
        first, last, stats = np.empty(count), np.empty(count), np.zeros(5)
        times, grid = self.times, self.grid
        context = float(sample.inputs.mean() + 0.5 * sample.outputs.mean())
        longest = int((sample.inputs + sample.outputs).max())
        # A single sequence may use the whole KV cache, although a full batch has less, because each
        # sequence needs memory for its state.
        room = min(max(times.kv_tokens_at(context), longest), times.kv_capacity_tokens)
        kernel.serve(
            KINDS[self.phase],
            arrival_ms,
            sample.inputs,
            outputs,
            sample.transfer_ms,
            sample.cached,
            max_batch,
            int(room),
            batched_tokens(self.phase, times.max_batch),
            grid.scalars,
            grid.dense,
            grid.head,
            grid.prompt_factor,
            grid.factors,
            first,
            last,
            stats,
        )
        refused = np.isinf(first[counted])
        with np.errstate(invalid="ignore"):
            tpot = (last - first)[counted] / np.maximum(outputs[counted] - 1, 1)
        tpot[refused] = np.inf
        ttft = (first - arrival_ms)[counted]
        worked = max(stats[0], 1e-9)
        run = Run(
            ttft.astype(np.float32),
            tpot.astype(np.float32),
            float(stats[1] / worked),
            float(stats[2] / worked),
        )
        return run, first, last


@PLAN_CACHES.by_value(1024)
def _run_at_step(engine: Engine, step: int) -> Run:
    return engine.run(engine.rate_at_step(step))


@PLAN_CACHES.by_value(256)
def _long_run_at_step(engine: Engine, step: int) -> Run:
    return engine.long_run(engine.rate_at_step(step), engine.run_at_step(step))


@PLAN_CACHES.by_value(128)
def build_engine(
    times: StepTimes,
    phase: Phase,
    lengths: Lengths,
    arrival_cv: float = 1.0,
    seed: int = SEED,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> Engine:
    """The engine of `times` under `lengths`; see `request_sample.unit_arrivals` for `arrival_cv`.

    link_gb_s: rate in 1e9 bytes/s at which KV moves from prefill to decode.
    """
    traffic = _Traffic(times.roofline.model, phase, lengths, arrival_cv, seed, link_gb_s)
    return Engine(times, phase, timing_grid(times, batched_tokens(phase, times.max_batch)), traffic)


@PLAN_CACHES.by_value(64)
def _draw_sample(traffic: _Traffic, count: int) -> _Sample:
    model, phase = traffic.model, traffic.phase
    inputs, outputs = sample_lengths(traffic.lengths, model.max_position, traffic.seed, count)
    if phase is Phase.PREFILL:
        outputs = np.ones_like(outputs)
    per_token_ms = kv_transfer_ms(model, 1.0, traffic.link_gb_s)
    if phase is Phase.AGGREGATED:
        per_token_ms = 0.0
    arrivals = unit_arrivals(traffic.arrival_cv, traffic.seed, count)
    share = 0.0 if phase is Phase.DECODE else traffic.lengths.prefix_hit
    cached = np.floor(share * inputs).astype(np.int64)
    return _Sample(arrivals, inputs, outputs, inputs.astype(np.float64) * per_token_ms, cached)
