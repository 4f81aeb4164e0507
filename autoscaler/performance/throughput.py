"""Throughput of one instance under its SLOs, in each phase.

Searches the highest rate at which the declared percentile of requests attains both limits.
`stage_table` (pipelines) is also exported here, so that callers need one import only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.token_times import TokenTimes
from autoscaler.domain.validation import finite
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance.attainment import GRID, SEED, Engine, Run, build_engine
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S
from autoscaler.performance.pipeline import PipelineSlices, pipeline_times
from autoscaler.performance.profile import Profile
from autoscaler.performance.request_sample import REQUESTS, measured_part
from autoscaler.performance.stage_throughput import stage_table
from autoscaler.performance.step_times import StepTimes, step_times

__all__ = ["InstanceRate", "instance_throughput", "max_req_per_s", "stage_table"]

_MEASURED = len(range(REQUESTS)[measured_part(REQUESTS)])
# if a smaller share of misses is allowed, a longer sample must confirm the result
_RARE_MISSES = 0.02
_MEMORY_WAIT_SHARE = (
    # if requests wait for KV cache in more than this share of the busy time, memory causes late
    # first tokens
    0.2
)


@dataclass(frozen=True, slots=True)
class InstanceRate:
    """The sustained rate of one instance.

    req_per_s: capacity of the instance. At a load of capacity x utilisation, the declared
    percentile of requests attains both limits. 0 if it misses a limit even if each request is alone
    on the instance. batch: mean number of decoding sequences at the planned load. ttft_ms, tpot_ms:
    latencies at the declared percentile and the planned load; the TTFT of a decode instance is only
    its own part. bound_by: "compute", "ttft", "tpot", "memory", "sequences" or "does not fit".
    token_times: median time per token; None for prefill and pipelines.
    """

    req_per_s: float
    batch: float
    ttft_ms: float
    tpot_ms: float
    bound_by: str
    uncertain: bool
    token_times: TokenTimes | None = None


def instance_throughput(
    model: ModelSpec,
    node: NodeSlice | PipelineSlices,
    phase: Phase,
    slo: Slo,
    lengths: Lengths,
    profile: Profile,
    utilisation: float = 0.85,
    percentile: float = 0.95,
    arrival_cv: float = 1.0,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> InstanceRate:
    """Capacity in requests/s of one instance of `model` on `node` (one or several nodes) at
    `lengths` within `slo`. The caller loads the instance to at most `utilisation` of it. The
    capacity is the lesser of the saturation rate and lambda* / utilisation. lambda* is the highest
    rate at which `percentile` of the requests attain both limits (`attainment`). A prefill and a
    decode instance may each cause half of the allowed misses: at 0.95, each attains 0.975.
    link_gb_s: rate in 1e9 bytes/s of KV transfer between these two.

    The rates to try are a grid that depends neither on the SLO nor on the percentile. So a tighter
    SLO or percentile, under which fewer requests attain, never raises the rate.
    """
    finite("utilisation", utilisation, 1e-3, 1.0)
    finite("percentile", percentile, 0.0, 1.0)
    times, lanes = _instance_times(model, node, phase, profile)
    if times.kv_capacity_tokens < 1.0:
        return InstanceRate(0.0, 0.0, 0.0, 0.0, "does not fit", times.uncertain)
    wanted = percentile if phase is Phase.AGGREGATED else 0.5 + 0.5 * percentile
    built = build_engine(times, phase, lengths, arrival_cv, SEED, link_gb_s)
    share = _with_margin(wanted)
    saturation, full = built.saturation()
    top = math.ceil(utilisation * GRID)
    low = top
    if built.attained_share(built.run_at_step(top), slo) < share:
        # Without load, at least as many requests attain as at half the load.
        half = built.attained_share(built.run_at_step(top // 2), slo)
        if half < share and built.attained_share(alone := built.run_at_step(0), slo) < wanted:
            bound = _limiting_slo(built, alone, slo)
            return InstanceRate(0.0, 0.0, 0.0, 0.0, bound, times.uncertain)
        low, high = 0, top
        while high - low > 1:
            middle = (low + high) // 2
            if built.attained_share(built.run_at_step(middle), slo) >= share:
                low = middle
            else:
                high = middle
    step = _interpolate_step(built, built.run_at_step, slo, share, low, top)
    run = built.run_at_step
    if 1.0 - wanted < _RARE_MISSES:
        run = built.long_run_at_step
        while low > 0 and built.attained_share(run(low), slo) < share:
            low -= 1
        step = min(step, _interpolate_step(built, run, slo, share, low, top))
    if step == top:
        capacity, bound = saturation, _saturation_limit(built, full)
    else:
        capacity = min(saturation, saturation * step / GRID / utilisation)
        bound = _limiting_slo(built, run(math.floor(step) + 1), slo)
    planned = run(low)
    has_token_times = isinstance(node, NodeSlice) and phase is not Phase.PREFILL
    return InstanceRate(
        req_per_s=capacity * lanes,
        batch=planned.batch * lanes,
        ttft_ms=float(np.quantile(built.own_ttft_ms(planned), wanted, method="lower")),
        tpot_ms=float(np.quantile(planned.tpot_ms, wanted, method="lower")),
        bound_by=bound,
        uncertain=times.uncertain,
        token_times=_token_times(built, low, run) if has_token_times else None,
    )


@PLAN_CACHES.by_value(4096)
def max_req_per_s(
    model: ModelSpec,
    node: NodeSlice | PipelineSlices,
    phase: Phase,
    lengths: Lengths,
    profile: Profile,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> float:
    """Highest requests/s of one instance under any SLO; 0 if the model does not fit."""
    times, lanes = _instance_times(model, node, phase, profile)
    if times.kv_capacity_tokens < 1.0:
        return 0.0
    return build_engine(times, phase, lengths, 1.0, SEED, link_gb_s).saturation()[0] * lanes


@PLAN_CACHES.by_value(1024)
def unloaded_latency(
    model: ModelSpec,
    node: NodeSlice,
    lengths: Lengths,
    profile: Profile,
    percentile: float = 0.95,
) -> tuple[float, float]:
    """TTFT and TPOT in ms that `percentile` of requests attain if each is alone on an instance.
    These are lower bounds at any load and for any number of instances. Infinite if the model does
    not fit.
    """
    times = step_times(model, node, Phase.AGGREGATED, profile)
    if times.kv_capacity_tokens < 1.0:
        return math.inf, math.inf
    built = build_engine(times, Phase.AGGREGATED, lengths)
    alone = built.run_at_step(0)
    return (
        float(np.quantile(built.own_ttft_ms(alone), percentile, method="lower")),
        float(np.quantile(alone.tpot_ms, percentile, method="lower")),
    )


def _token_times(built: Engine, planned: int, run: Callable[[int], Run]) -> TokenTimes | None:
    """The token times of an instance at the step `planned` and at half of it; None if the two runs
    do not show how they rise with load."""
    steps = planned, planned // 2
    tpot_ms, half_tpot_ms = (float(np.median(run(step).tpot_ms)) for step in steps)
    if not 0.0 < half_tpot_ms < tpot_ms < math.inf:
        return None
    batch, half_batch = (
        built.rate_at_step(step) * built.traffic.lengths.output_tokens * each_ms / 1e3
        for step, each_ms in zip(steps, (tpot_ms, half_tpot_ms), strict=True)
    )
    return TokenTimes(batch, tpot_ms, half_batch, half_tpot_ms)


def _instance_times(
    model: ModelSpec, node: NodeSlice | PipelineSlices, phase: Phase, profile: Profile
) -> tuple[StepTimes, int]:
    if isinstance(node, NodeSlice):
        return step_times(model, node, phase, profile), 1
    return pipeline_times(model, node, phase, profile)


def _with_margin(share: float) -> float:
    """The share of the sample that must attain so that `share` of all requests does: half a
    standard error more. Without this margin, chance would bias the capacity upwards; a whole
    standard error would be too cautious.
    """
    allowed = (1.0 - share) * _MEASURED
    return 1.0 - max(0.0, allowed - 0.5 * math.sqrt(allowed)) / _MEASURED


def _interpolate_step(
    built: Engine, run: Callable[[int], Run], slo: Slo, share: float, low: int, top: int
) -> float:
    """The step at which `share` of the requests attain, interpolated between `low`, at which at
    least `share` attains, and the next step."""
    if low == top:
        return float(top)
    here, there = built.attained_share(run(low), slo), built.attained_share(run(low + 1), slo)
    if there >= share:
        return low + 1.0
    return low + (here - share) / (here - there) if here > share else float(low)


def _limiting_slo(built: Engine, run: Run, slo: Slo) -> str:
    """The limit that more requests miss, "ttft" or "tpot"; "memory" if requests wait for KV
    cache."""
    ttft, tpot = built.attained(run, slo)
    if np.count_nonzero(tpot) < np.count_nonzero(ttft):
        return "tpot"
    refused = float(np.mean(np.isinf(run.ttft_ms)))
    return "memory" if run.memory_waits > _MEMORY_WAIT_SHARE or refused > 0.01 else "ttft"


def _saturation_limit(built: Engine, run: Run) -> str:
    """The resource that limits an instance that meets its SLO at every load up to saturation."""
    if run.memory_waits > 0.5:
        return "memory"
    return "sequences" if run.batch >= 0.95 * built.times.max_batch else "compute"
