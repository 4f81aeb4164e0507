"""Attainment that sizing predicts against what the simulated engine attains.

`python -m loadtests.sizing_bench [--trace FILE]... [--seeds N] [--json OUT]`: for each case (model,
GPU, SLO, lengths), percentile and load (60, 80, 95% of planned load; planned load = utilisation x
capacity) requests with Poisson arrivals go through `serving.batching.Batcher`, with lengths drawn
from a lognormal distribution or from a trace's own (input, output) pairs. What sizing knows of
them are means and the quantiles at `LEVELS`, as telemetry gives them.

predicted: share that the model says attains.  simulated: share that does.  spare: the rate that
an independent sample bears at the percentile, over the planned load at its bound (both capped by
saturation): how much too safe the capacity is.  Exit status 1 when a prediction is more than two
points too high.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import LEVELS, Lengths, Phase, Slo
from autoscaler.performance import catalog, engine_kernel
from autoscaler.performance.attainment import attainment, engine
from autoscaler.performance.engine_limits import batched_tokens
from autoscaler.performance.profile import default_profile
from autoscaler.performance.steps import StepTimes, step_times
from autoscaler.performance.throughput import InstanceRate, instance_throughput
from autoscaler.performance.timing_grid import timing_grid
from autoscaler.serving.batching import Batcher
from autoscaler.serving.requests import Finished, FirstToken, Limits, Work
from streams.files.errors import UserError
from streams.replay.traces import load_trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PERCENTILES = (0.9, 0.95, 0.99)
LOADS = (0.6, 0.8, 0.95)
_UTILISATION = 0.8
_REQUESTS = 4000
_EDGE = 500  # requests at either end that are not counted
_SPARE_REQUESTS = 24_000
# model, quantization, GPU, GPUs, TTFT ms, TPOT ms
_ENGINES = (
    ("openai/gpt-oss-20b", None, "L4", 1, 1000.0, 50.0),
    ("openai/gpt-oss-20b", None, "L4", 1, 4000.0, 80.0),
    ("openai/gpt-oss-20b", None, "L40S", 1, 1000.0, 50.0),
    ("meta-llama/Llama-3.1-8B", None, "L4", 1, 3000.0, 100.0),
    ("meta-llama/Llama-3.1-8B", None, "A100", 1, 1000.0, 30.0),
    ("meta-llama/Llama-3.1-8B", None, "H100", 1, 500.0, 20.0),
    ("Qwen/Qwen3-32B", "fp8", "L40S", 1, 2000.0, 80.0),
    ("Qwen/Qwen3-32B", "fp8", "L40S", 2, 2000.0, 80.0),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", "L40S", 4, 2000.0, 60.0),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", "H100", 4, 2000.0, 60.0),
)
# name, mean input, mean output, standard deviation over mean; the last is long prompts (p95 7,300)
_DRAWN = (
    ("fixed", 1155.0, 211.0, 0.0),
    ("chat", 1155.0, 211.0, 1.0),
    ("short", 400.0, 120.0, 0.7),
    ("long", 2000.0, 250.0, 1.6),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to draw from: (input, output) pairs, (n,) each; drawn with replacement."""

    name: str
    inputs: Ints
    outputs: Ints

    def lengths(self) -> Lengths:
        """What telemetry would know: means and quantiles."""
        if len(set(self.inputs)) == len(set(self.outputs)) == 1:
            return Lengths(float(self.inputs[0]), float(self.outputs[0]))
        return Lengths(
            float(self.inputs.mean()),
            float(self.outputs.mean()),
            tuple(np.maximum(1.0, np.quantile(self.inputs, LEVELS)).tolist()),
            tuple(np.maximum(1.0, np.quantile(self.outputs, LEVELS)).tolist()),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One case at one percentile and one load; spare and the rate are those of the percentile."""

    engine: str
    traffic: str
    percentile: float
    load: float
    batch: float
    req_per_s: float
    bound_by: str
    reachable: float
    predicted: float
    simulated: float
    spare: float
    capacity_ms: float


def drawn_traffic() -> Iterator[Traffic]:
    """Lognormal lengths, and fixed ones."""
    random = np.random.default_rng(7)
    for name, mean_in, mean_out, cv in _DRAWN:
        sigma = np.sqrt(np.log1p(cv * cv))
        pairs = [
            np.maximum(
                1, np.rint(mean * np.exp(sigma * random.standard_normal(20_000) - sigma**2 / 2))
            )
            for mean in (mean_in, mean_out)
        ]
        yield Traffic(name, pairs[0].astype(np.int64), pairs[1].astype(np.int64))


def trace_traffic(path: Path, most: int = 16_000) -> Traffic:
    """The pairs of a trace, each count at least 1 and at most `most`."""
    trace = load_trace(path)
    inputs = np.clip(np.array(trace.input_tokens), 1, most).astype(np.int64)
    outputs = np.clip(np.array(trace.output_tokens), 1, most).astype(np.int64)
    return Traffic(path.name.split(".")[0], inputs, outputs)


def draw(traffic: Traffic, count: int, seed: int) -> tuple[Floats, Ints, Ints]:
    """Arrivals at 1 per ms, input and output tokens."""
    random = np.random.default_rng(seed)
    at = random.integers(0, len(traffic.inputs), count)
    gaps = random.exponential(1.0, count)
    return np.cumsum(gaps), traffic.inputs[at], traffic.outputs[at]


def simulated(times: StepTimes, slo: Slo, traffic: Traffic, req_per_s: float, seed: int) -> float:
    """Share of requests that attain in the Batcher."""
    unit, inputs, outputs = draw(traffic, _REQUESTS, seed)
    arrivals = unit * 1e3 / req_per_s
    batched = batched_tokens(Phase.AGGREGATED, times.max_batch)
    kv_tokens = int(times.kv_capacity_tokens)
    batcher = Batcher(times, Limits(times.max_batch, kv_tokens, batched))
    first, last = np.full(_REQUESTS, np.inf), np.full(_REQUESTS, np.inf)

    def advance(to_ms: float) -> None:
        for event in batcher.advance(to_ms):
            if isinstance(event, FirstToken):
                first[event.id] = event.at_ms
            elif isinstance(event, Finished):
                last[event.id] = event.at_ms

    for i, at_ms in enumerate(arrivals):
        advance(at_ms)
        if inputs[i] + outputs[i] <= kv_tokens:
            batcher.submit(Work(i, int(inputs[i]), int(outputs[i])))
    advance(float(arrivals[-1]) + 1e8)
    return _share(times, slo, arrivals, first, last, outputs)


def bears(
    times: StepTimes, slo: Slo, traffic: Traffic, percentile: float, rates: Floats, seed: int
) -> float:
    """Highest of `rates` at which a long independent sample keeps the percentile, 0 if none.

    By the compiled engine, which a test holds to the Batcher.
    """
    unit, inputs, outputs = draw(traffic, _SPARE_REQUESTS, seed)
    batched = batched_tokens(Phase.AGGREGATED, times.max_batch)
    grid = timing_grid(times, batched)
    first, last = np.empty(len(unit)), np.empty(len(unit))
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        arrivals = unit * 1e3 / rates[middle]
        engine_kernel.serve(
            engine_kernel.WHOLE, arrivals, inputs, outputs, np.zeros(len(unit)), times.max_batch,
            int(times.kv_capacity_tokens), batched, grid.scalars, grid.dense, grid.head,
            grid.prompt_factor, grid.factors, first, last, np.zeros(5),
        )  # fmt: skip
        if _share(times, slo, arrivals, first, last, outputs) >= percentile:
            low = middle
        else:
            high = middle
    return float(rates[low]) if low >= 0 else 0.0


def _share(
    times: StepTimes, slo: Slo, arrivals: Floats, first: Floats, last: Floats, outputs: Ints
) -> float:
    with np.errstate(invalid="ignore"):
        tpot = (last - first) / np.maximum(outputs - 1, 1)
    kept = (first - arrivals + times.first_token_ms <= slo.ttft_ms) & (tpot <= slo.tpot_ms)
    return float(np.mean(kept[_EDGE:-_EDGE]))


def measure(
    setup: tuple[str, str | None, str, int, float, float], traffic: Traffic, seeds: int
) -> Iterator[Row]:
    """The rows of one engine under one traffic; none where no rate attains the percentile."""
    name, quantization, gpu, gpus, ttft_ms, tpot_ms = setup
    model = catalog.model(name)
    if quantization is not None:
        model = catalog.quantized(model, quantization)
    node, slo, profile = NodeSlice(catalog.gpu(gpu), gpus), Slo(ttft_ms, tpot_ms), default_profile()
    times = step_times(model, node, Phase.AGGREGATED, profile)
    lengths = traffic.lengths()
    label = f"{name.split('/')[1]} {gpus}x{gpu} {ttft_ms:g}/{tpot_ms:g} ms"
    for percentile in PERCENTILES:
        engine.cache_clear()
        started = time.process_time()
        rate = instance_throughput(
            model, node, Phase.AGGREGATED, slo, lengths, profile, _UTILISATION, percentile
        )
        took_ms = (time.process_time() - started) * 1e3
        yield from _rows(label, times, slo, traffic, lengths, percentile, rate, took_ms, seeds)


def _rows(
    label: str, times: StepTimes, slo: Slo, traffic: Traffic, lengths: Lengths,
    percentile: float, rate: InstanceRate, took_ms: float, seeds: int,
) -> Iterator[Row]:  # fmt: skip
    saturation, _ = engine(times, Phase.AGGREGATED, lengths).saturation_req_per_s()
    bound = _UTILISATION * saturation
    if bound <= 0.0:
        return
    planned = rate.req_per_s * _UTILISATION
    rates = np.arange(1, 401) / 400 * bound
    most = np.mean([bears(times, slo, traffic, percentile, rates, 900 + s) for s in range(seeds)])
    spare = (
        float(most / planned) if planned > 0.0 else (float("inf") if most > 0.02 * bound else 1.0)
    )
    for load in LOADS:
        predicted = share = 1.0
        if planned > 0.0:
            told = attainment(times, Phase.AGGREGATED, slo, lengths, load * planned)
            predicted, batch = told.attained, told.batch
            share = float(
                np.mean(
                    [simulated(times, slo, traffic, load * planned, 100 + s) for s in range(seeds)]
                )
            )
        else:
            batch = 0.0
        yield Row(
            label, traffic.name, percentile, load, batch, rate.req_per_s, rate.bound_by,
            rate.reachable, predicted, share, spare, took_ms,
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; 1 when a prediction is more than two points too high, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sizing_bench")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engines", type=int, default=len(_ENGINES), help="the first N only")
    args = parser.parse_args(argv)
    try:
        traffic = [*drawn_traffic(), *(trace_traffic(path) for path in args.trace)]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    rows: list[Row] = []
    for setup in _ENGINES[: args.engines]:
        for each in traffic:
            for row in measure(setup, each, args.seeds):
                rows.append(row)
                print(
                    f"{row.engine:42} {row.traffic:10} p{100 * row.percentile:g} {row.load:4.0%} of "
                    f"{_UTILISATION * row.req_per_s:6.2f} req/s, batch {row.batch:5.1f}: predicted "
                    f"{row.predicted:6.1%} simulated {row.simulated:6.1%} spare {row.spare:4.2f} "
                    f"{row.bound_by} reachable {row.reachable:.1%} {row.capacity_ms:.0f} ms",
                    flush=True,
                )
    bad = _summary(rows)
    if args.json:
        args.json.write_bytes(orjson.dumps([asdict(row) for row in rows]))
    return 1 if bad else 0


def _summary(rows: list[Row]) -> int:
    served = [row for row in rows if row.req_per_s > 0.0]
    over = [row.predicted - row.simulated for row in served]
    short = [row.percentile - row.simulated for row in served]
    spares = sorted({(r.engine, r.traffic, r.percentile): r.spare for r in served}.values())
    refused = {(r.engine, r.traffic, r.percentile): r.spare for r in rows if r.req_per_s == 0.0}
    bad = sum(each > 0.02 for each in over)
    print(
        f"{len(served)} rows with a rate: predicted above simulated by at most {max(over):.1%}, "
        f"{bad} rows by more than 2 points; below the percentile by at most {max(short):.1%}; "
        f"spare rate median {np.median(spares):.3f}, p95 {np.quantile(spares, 0.95):.3f}, worst "
        f"{spares[-1]:.3f}, least {spares[0]:.3f}; median {np.median([r.capacity_ms for r in rows]):.1f}"
        f" ms of CPU a capacity; out of reach: {len(refused)}, of which an independent sample bears "
        f"some: {sum(each > 1.0 for each in refused.values())}"
    )
    return bad


if __name__ == "__main__":
    sys.exit(main())
