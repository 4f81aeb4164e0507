"""Throughput of one instance under its SLOs, in each phase.

Owns the search for the highest rate at which the declared percentile of requests attains both
limits. Knows no prices and no fleet; `stage_table` (pipelines) is offered here too, so that
callers need one import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import finite
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance.attainment import GRID, SEED, Engine, Run, engine
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S
from autoscaler.performance.pipeline import PipelineSlices, pipeline_times
from autoscaler.performance.profile import Profile
from autoscaler.performance.request_sample import REQUESTS, measured
from autoscaler.performance.stage_throughput import stage_table
from autoscaler.performance.step_times import StepTimes, step_times

__all__ = ["InstanceRate", "instance_throughput", "most_req_per_s", "stage_table"]

_MEASURED = len(range(REQUESTS)[measured(REQUESTS)])
_RARE = 0.02  # share of misses below which a longer sample must confirm what the short one says
_MEMORY_WAITS = 0.2  # share of the working time from which on a late first token is memory's fault


@dataclass(frozen=True, slots=True)
class InstanceRate:
    """What one instance sustains.

    req_per_s: its capacity; loaded to the caller's utilisation of it, the percentile attains both
    limits. 0 when the percentile is out of reach of requests that are alone on the instance: then
    no rate is low enough.  batch: mean sequences that decode at the planned load.  ttft_ms,
    tpot_ms: what the percentile of requests keeps at the planned load; of a decode instance's TTFT
    its own part.  bound_by: "compute", "ttft", "tpot", "memory", "sequences" or "does not fit".
    """

    req_per_s: float
    batch: float
    ttft_ms: float
    tpot_ms: float
    bound_by: str
    uncertain: bool


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
    """Requests/s of one instance of `model` on `node`, or on several, at `lengths` within `slo`.

    The rate is the capacity: the caller loads the instance to `utilisation` of it at most. It is
    the lesser of the rate at which the instance saturates and lambda* / utilisation, lambda* the
    highest rate at which `percentile` of the requests attain both limits (`attainment`). Of a
    prefill and a decode instance each may miss half of what a request may miss: at 0.95, 0.975.
    link_gb_s: rate in 1e9 bytes/s at which KV moves between those two.

    The rates looked at are a grid that depends neither on SLO nor on percentile, and bisection on
    one grid can only end lower where less attains. So tightening either never raises the rate,
    whatever the chance in the sample.
    """
    finite("utilisation", utilisation, 1e-3, 1.0)
    finite("percentile", percentile, 0.0, 1.0)
    times, lanes = _times(model, node, phase, profile)
    if times.kv_capacity_tokens < 1.0:
        return InstanceRate(0.0, 0.0, 0.0, 0.0, "does not fit", times.uncertain)
    wanted = percentile if phase is Phase.AGGREGATED else 0.5 + 0.5 * percentile
    built = engine(times, phase, lengths, arrival_cv, SEED, link_gb_s)
    share = _with_margin(wanted)
    saturation, full = built.saturation()
    top = math.ceil(utilisation * GRID)
    low = top
    if built.share(built.at(top), slo) < share:
        # What half the load attains, requests alone attain too.
        half = built.share(built.at(top // 2), slo)
        if half < share and built.share(alone := built.at(0), slo) < wanted:
            bound = _late(built, alone, slo)
            return InstanceRate(0.0, 0.0, 0.0, 0.0, bound, times.uncertain)
        low, high = 0, top
        while high - low > 1:
            middle = (low + high) // 2
            if built.share(built.at(middle), slo) >= share:
                low = middle
            else:
                high = middle
    step = _between(built, built.at, slo, share, low, top)
    run = built.at
    if 1.0 - wanted < _RARE:
        run = built.confirmed
        while low > 0 and built.share(run(low), slo) < share:
            low -= 1
        step = min(step, _between(built, run, slo, share, low, top))
    if step == top:
        capacity, bound = saturation, _full(built, full)
    else:
        capacity = min(saturation, saturation * step / GRID / utilisation)
        bound = _late(built, run(math.floor(step) + 1), slo)
    planned = run(low)
    return InstanceRate(
        req_per_s=capacity * lanes,
        batch=planned.batch * lanes,
        ttft_ms=float(np.quantile(built.own_ttft_ms(planned), wanted, method="lower")),
        tpot_ms=float(np.quantile(planned.tpot_ms, wanted, method="lower")),
        bound_by=bound,
        uncertain=times.uncertain,
    )


@lru_cache(maxsize=4096)
def most_req_per_s(
    model: ModelSpec,
    node: NodeSlice | PipelineSlices,
    phase: Phase,
    lengths: Lengths,
    profile: Profile,
    link_gb_s: float = KV_LINK_GB_PER_S,
) -> float:
    """Requests/s beyond which no SLO lets one instance go; 0 where nothing fits."""
    times, lanes = _times(model, node, phase, profile)
    if times.kv_capacity_tokens < 1.0:
        return 0.0
    return engine(times, phase, lengths, 1.0, SEED, link_gb_s).saturation()[0] * lanes


@lru_cache(maxsize=1024)
def latency_alone(
    model: ModelSpec,
    node: NodeSlice,
    lengths: Lengths,
    profile: Profile,
    percentile: float = 0.95,
) -> tuple[float, float]:
    """TTFT and TPOT in ms that `percentile` of requests keep when each is alone on an instance.

    No load and no other instance of the same kind is faster than that. Infinite where the model
    does not fit.
    """
    times = step_times(model, node, Phase.AGGREGATED, profile)
    if times.kv_capacity_tokens < 1.0:
        return math.inf, math.inf
    built = engine(times, Phase.AGGREGATED, lengths)
    alone = built.at(0)
    return (
        float(np.quantile(built.own_ttft_ms(alone), percentile, method="lower")),
        float(np.quantile(alone.tpot_ms, percentile, method="lower")),
    )


def _times(
    model: ModelSpec, node: NodeSlice | PipelineSlices, phase: Phase, profile: Profile
) -> tuple[StepTimes, int]:
    if isinstance(node, NodeSlice):
        return step_times(model, node, phase, profile), 1
    return pipeline_times(model, node, phase, profile)


def _with_margin(share: float) -> float:
    """What the sample must attain for the share to be kept: half a standard error more.

    Of 2,900 requests at 0.95, 145 may miss, give or take 12: so 139. Without it the median case
    plans 1.7% more than an independent sample bears; with a whole one, 3% less.
    """
    allowed = (1.0 - share) * _MEASURED
    return 1.0 - max(0.0, allowed - 0.5 * math.sqrt(allowed)) / _MEASURED


def _between(
    built: Engine, run: Callable[[int], Run], slo: Slo, share: float, low: int, top: int
) -> float:
    """`low`, where `share` attains, and how far towards the next step it still does."""
    if low == top:
        return float(top)
    here, there = built.share(run(low), slo), built.share(run(low + 1), slo)
    if there >= share:
        return low + 1.0
    return low + (here - share) / (here - there) if here > share else float(low)


def _late(built: Engine, run: Run, slo: Slo) -> str:
    """Which limit more requests miss, and whether it is for want of memory."""
    ttft, tpot = built.attained(run, slo)
    if np.count_nonzero(tpot) < np.count_nonzero(ttft):
        return "tpot"
    refused = float(np.mean(np.isinf(run.ttft_ms)))
    return "memory" if run.memory_waits > _MEMORY_WAITS or refused > 0.01 else "ttft"


def _full(built: Engine, run: Run) -> str:
    """What ends the growth of an instance that keeps its limits up to saturation."""
    if run.memory_waits > 0.5:
        return "memory"
    return "sequences" if run.batch >= 0.95 * built.times.max_batch else "compute"
