"""Attainment predicted by sizing, compared with the simulated engine.

For each engine (model, GPU, SLO) and kind of traffic, the planned load is utilisation x capacity at
95% of requests within the SLO. Requests with Poisson arrivals at 80% and 100% of it go through the
compiled engine, which a test compares with the simulator's. Lengths are drawn from a lognormal
distribution. Sizing gets their means and quantiles, as from telemetry.
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import numpy.typing as npt

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase, Slo
from autoscaler.performance import catalog, engine_kernel
from autoscaler.performance.attainment import KINDS, build_engine
from autoscaler.performance.engine_limits import batched_tokens
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import StepTimes, step_times
from autoscaler.performance.throughput import instance_throughput
from autoscaler.performance.timing_grid import timing_grid
from loadtests.results.entry import Figures
from loadtests.sizing_cases import ENGINES, Traffic, draw, drawn_traffic

Setup = tuple[str, str | None, str, int, float, float]

PERCENTILE, LOADS = 0.95, (0.8, 1.0)
_UTILISATION = 0.85
_REQUESTS = 12_000
_EDGE = 500  # requests at either end that are not counted


def measure(seed: int) -> Figures:
    """Predicted less simulated shares of all cases, and shares at the planned load."""
    apart: list[float] = []
    planned: list[float] = []
    for setup in ENGINES:
        for traffic in drawn_traffic():
            for load, predicted, simulated in _case(setup, traffic, seed):
                apart.append(predicted - simulated)
                if load == 1.0:
                    planned.append(simulated)
    return {
        "cases": len(apart),
        "mean_error": fmean(map(abs, apart)),
        "most_too_high": max(apart),
        "most_too_low": -min(apart),
        "mean_at_planned_load": fmean(planned),
        "least_at_planned_load": min(planned),
    }


def _case(setup: Setup, traffic: Traffic, seed: int) -> list[tuple[float, float, float]]:
    """(load, predicted share, simulated share); empty if no rate reaches the percentile."""
    model, times, slo = _placed(setup)
    node, lengths = NodeSlice(catalog.gpu(setup[2]), setup[3]), traffic.lengths()
    rate = instance_throughput(
        model, node, Phase.AGGREGATED, slo, lengths, default_profile(), _UTILISATION, PERCENTILE
    )
    if rate.req_per_s <= 0.0:
        return []
    built = build_engine(times, Phase.AGGREGATED, lengths)
    found = []
    for load in LOADS:
        req_per_s = load * _UTILISATION * rate.req_per_s
        told = built.long_run(req_per_s, built.run(req_per_s))
        share = simulated_share(times, slo, traffic, req_per_s, seed)
        found.append((load, built.attained_share(told, slo), share))
    return found


def _placed(setup: Setup) -> tuple[ModelSpec, StepTimes, Slo]:
    name, quantization, gpu, gpus, ttft_ms, tpot_ms = setup
    model = catalog.model(name)
    if quantization is not None:
        model = catalog.quantized(model, quantization)
    node = NodeSlice(catalog.gpu(gpu), gpus)
    times = step_times(model, node, Phase.AGGREGATED, default_profile())
    return model, times, Slo(ttft_ms, tpot_ms)


def simulated_share(
    times: StepTimes, slo: Slo, traffic: Traffic, req_per_s: float, seed: int
) -> float:
    """Share of requests that meet the SLO in the compiled engine."""
    unit, inputs, outputs = draw(traffic, _REQUESTS, seed)
    arrivals = unit * 1e3 / req_per_s
    first, last = _served(times, arrivals, inputs, outputs)
    with np.errstate(invalid="ignore"):
        tpot = (last - first) / np.maximum(outputs - 1, 1)
    kept = (first - arrivals + times.first_token_ms <= slo.ttft_ms) & (tpot <= slo.tpot_ms)
    return float(np.mean(kept[_EDGE:-_EDGE]))


def _served(
    times: StepTimes,
    arrivals: npt.NDArray[np.float64],
    inputs: npt.NDArray[np.int64],
    outputs: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Times of the first and last token of each request, in ms."""
    batched = batched_tokens(Phase.AGGREGATED, times.max_batch)
    grid = timing_grid(times, batched)
    first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
    engine_kernel.serve(
        KINDS[Phase.AGGREGATED], arrivals, inputs, outputs, np.zeros(len(arrivals)),
        np.zeros_like(inputs), times.max_batch, int(times.kv_capacity_tokens), batched,
        grid.scalars, grid.dense, grid.head, grid.prompt_factor, grid.factors, first, last,
        np.zeros(5),
    )  # fmt: skip
    return first, last
