"""What share of requests attains its SLO on one instance at a given rate.

Owns `Attainment` and the runs of the compiled engine behind it. A closed formula does not do: a
request's time per token is a mean over iterations that other requests' prompts stretch, batch and
queue move together, and short answers miss by one long prompt. So the engine itself is run, on
a fixed sample of requests; 3,600 take about a millisecond. Knows no prices and no fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autoscaler.domain.checks import finite
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import engine_kernel as kernel
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S, batched_tokens
from autoscaler.performance.roofline import kv_transfer_ms
from autoscaler.performance.sample import MEASURED, REQUESTS, Ints, lengths_of, unit_arrivals
from autoscaler.performance.steps import StepTimes
from autoscaler.performance.timing_grid import TimingGrid, timing_grid

Floats = npt.NDArray[np.float64]

SEED = 20260
GRID = 64
"""Rates that capacities are searched among: multiples of a 64th of saturation."""
KINDS = {
    Phase.AGGREGATED: kernel.WHOLE,
    Phase.PREFILL: kernel.PREFILL,
    Phase.DECODE: kernel.DECODE,
}
DECODE_TTFT_SHARE = 0.15
"""Of the TTFT limit: what a decode instance has for the transfer of KV and its first step, so that
a prefill instance knows what is left for it. At 2 s that is 300 ms: the KV of 1,155 tokens
of a 32B model takes 12 ms, and two to three steps pass."""
_ALONE_MS = 1e8  # between requests that never meet


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares of requests at one rate.

    attained: within both limits; ttft, tpot: within that one.  batch: mean sequences that decode
    while the engine works.  busy: share of the time in which it works.  ttft_ms, tpot_ms: of each
    measured request, (m,).
    """

    attained: float
    ttft: float
    tpot: float
    batch: float
    busy: float
    memory_waits: float
    ttft_ms: Floats
    tpot_ms: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What came out of one rate, before any SLO: ms per measured request, and the engine's state.

    memory_waits: share of the working time in which a request waited for KV cache.
    """

    ttft_ms: npt.NDArray[np.float32]
    tpot_ms: npt.NDArray[np.float32]
    batch: float
    busy: float
    memory_waits: float


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """One instance under one distribution of lengths. Build it with `engine(...)`."""

    times: StepTimes
    phase: Phase
    grid: TimingGrid
    arrivals: Floats
    inputs: Ints
    outputs: Ints
    transfer_ms: Floats
    _known: dict[int, Run] = field(default_factory=dict)
    _saturation: list[tuple[float, Run]] = field(default_factory=list)

    def run(self, req_per_s: float) -> Run:
        """Serve the sample at `req_per_s`; 0 = every request alone."""
        gap_ms = 1e3 / req_per_s if req_per_s > 0.0 else _ALONE_MS
        return self._serve(self.arrivals * gap_ms, self.outputs)[0]

    def at(self, step: int) -> Run:
        """Serve the sample at `step` / GRID of saturation; what was served before is kept."""
        found = self._known.get(step)
        if found is None:
            rate = self.saturation()[0] * step / GRID if step else 0.0
            found = self._known[step] = self.run(rate)
        return found

    def saturation(self) -> tuple[float, Run]:
        """The highest requests/s of any load, and the engine's state then."""
        if not self._saturation:
            self._saturation.append(self._saturate())
        return self._saturation[0]

    def attained(self, run: Run, slo: Slo) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Per measured request: within its TTFT limit, within its TPOT limit.

        Of a pair, decode has its share of the TTFT limit, prefill the rest.
        """
        limit_ms = slo.ttft_ms
        if self.phase is Phase.DECODE:
            limit_ms = DECODE_TTFT_SHARE * slo.ttft_ms
        elif self.phase is Phase.PREFILL:
            limit_ms = (1.0 - DECODE_TTFT_SHARE) * slo.ttft_ms
        return self.own_ttft_ms(run) <= limit_ms, run.tpot_ms <= slo.tpot_ms

    def own_ttft_ms(self, run: Run) -> npt.NDArray[np.float32]:
        """What counts against this phase's part of the TTFT, per measured request."""
        outside_ms = 0.0 if self.phase is Phase.DECODE else self.times.first_token_ms
        return run.ttft_ms + np.float32(outside_ms)

    def share(self, run: Run, slo: Slo) -> float:
        """Share of requests within both limits."""
        ttft, tpot = self.attained(run, slo)
        return float(np.count_nonzero(ttft & tpot)) / len(ttft)

    def _saturate(self) -> tuple[float, Run]:
        """Requests/s while the queue never empties: the whole sample, so that no part of it counts.

        The first batch is met at a random point of its life, or else requests of one length
        would end together for ever. What it lacks and what the last batch has not done yet when
        the last request gets its first token is a batch of requests in all.
        """
        context = self.inputs.mean() + 0.5 * np.mean(self.outputs**2) / self.outputs.mean()
        batch = int(np.clip(self.times.kv_capacity_tokens / context, 1, self.times.max_batch))
        outputs = self.outputs.copy()
        outputs[:batch] = np.ceil(outputs[:batch] * np.arange(1, batch + 1) / batch)
        run, first_ms = self._serve(np.zeros(REQUESTS), outputs)
        served = first_ms[np.isfinite(first_ms)]
        if not len(served):
            return 0.0, run
        return float((len(served) - run.batch) / served.max() * 1e3), run

    def _serve(self, arrival_ms: Floats, outputs: Ints) -> tuple[Run, Floats]:
        first, last, stats = np.empty(REQUESTS), np.empty(REQUESTS), np.zeros(5)
        times, grid = self.times, self.grid
        kernel.serve(
            KINDS[self.phase],
            arrival_ms,
            self.inputs,
            outputs,
            self.transfer_ms,
            times.max_batch,
            int(times.kv_capacity_tokens),
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
        refused = np.isinf(first[MEASURED])
        with np.errstate(invalid="ignore"):
            tpot = (last - first)[MEASURED] / np.maximum(outputs[MEASURED] - 1, 1)
        tpot[refused] = np.inf
        ttft = (first - arrival_ms)[MEASURED]
        worked = max(stats[0], 1e-9)
        wall = max(arrival_ms[-1], worked)
        run = Run(
            ttft.astype(np.float32),
            tpot.astype(np.float32),
            float(stats[1] / worked),
            float(worked / wall),
            float(stats[2] / worked),
        )
        return run, first


@lru_cache(maxsize=128)
def engine(
    times: StepTimes,
    phase: Phase,
    lengths: Lengths,
    arrival_cv: float = 1.0,
    seed: int = SEED,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> Engine:
    """The engine of `times` under `lengths`; see `sample.unit_arrivals` for `arrival_cv`.

    link_gb_s: rate in 1e9 bytes/s at which KV moves from prefill to decode.
    """
    model = times.roofline.model
    inputs, outputs = lengths_of(lengths, model.max_position, seed)
    if phase is Phase.PREFILL:
        outputs = np.ones_like(outputs)
    per_token_ms = kv_transfer_ms(model, 1.0, link_gb_s)
    if phase is Phase.AGGREGATED:
        per_token_ms = 0.0
    transfer_ms: Floats = inputs.astype(np.float64) * per_token_ms
    grid = timing_grid(times, batched_tokens(phase, times.max_batch))
    arrivals = unit_arrivals(arrival_cv, seed)
    return Engine(times, phase, grid, arrivals, inputs, outputs, transfer_ms)


def attainment(
    times: StepTimes,
    phase: Phase,
    slo: Slo,
    lengths: Lengths,
    req_per_s: float,
    arrival_cv: float = 1.0,
    seed: int = SEED,
) -> Attainment:
    """What one instance attains at `req_per_s`, 0 = every request alone.

    InvalidValue: a rate that is not a finite number from 0.
    """
    finite("req_per_s", req_per_s, 0.0, 1e9)
    built = engine(times, phase, lengths, arrival_cv, seed)
    run = built.run(req_per_s)
    ttft, tpot = built.attained(run, slo)
    return Attainment(
        attained=float(np.mean(ttft & tpot)),
        ttft=float(np.mean(ttft)),
        tpot=float(np.mean(tpot)),
        batch=run.batch,
        busy=run.busy,
        memory_waits=run.memory_waits,
        ttft_ms=run.ttft_ms.astype(np.float64),
        tpot_ms=run.tpot_ms.astype(np.float64),
    )
