"""Attainment predicted by sizing, compared with the simulated engine.

`python -m loadtests.sizing_bench [--trace FILE]... [--seeds N] [--json OUT]`: for each case (model,
GPU, SLO, lengths), percentile and load (60, 80, 95% of planned load; planned load = utilisation x
capacity) requests with Poisson arrivals go through `serving.batching.Batcher`. Lengths are drawn
from a lognormal distribution or from the (input, output) pairs of a trace. Sizing gets their means
and the quantiles at `LEVELS`, as from telemetry.

All shares are shares of requests that meet the SLO. predicted: share in the sample of the sizing
model. simulated: share of LONG_RUN independent requests in the compiled engine, which a test
compares with the Batcher. batcher: share of 4,000 x seeds requests in the Batcher itself; long
prompts vary between runs. spare: highest rate at which an independent sample keeps the percentile,
relative to the planned load. Both are at most utilisation x saturation. The exit code is 1 if a
prediction is more than two points too high, or a pair at planned load is more than two points below
its percentile.
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

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog, engine_kernel
from autoscaler.performance.attainment import KINDS, build_engine
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S, batched_tokens
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.roofline import kv_transfer_ms
from autoscaler.performance.step_times import StepTimes, step_times
from autoscaler.performance.throughput import InstanceRate, instance_throughput
from autoscaler.performance.timing_grid import timing_grid
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Finished, FirstToken, Limits, Work
from loadtests.sizing_cases import ENGINES, Traffic, draw, drawn_traffic, trace_traffic
from streams.files.user_errors import UserError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Setup = tuple[str, str | None, str, int, float, float]

PERCENTILES = (0.9, 0.95, 0.99)
LOADS = (0.6, 0.8, 0.95)
POOLS = (2, 3, 8)
_UTILISATION = 0.85
_USEFUL = 0.1  # cases below this share of saturation are reported separately
_REQUESTS = 4000
_EDGE = 500  # requests at either end that are not counted
_SPARE_REQUESTS = 24_000
LONG_RUN = 72_000


@dataclass(frozen=True, slots=True)
class Row:
    """Results for one case, percentile and load.

    spare and req_per_s depend on the percentile, not on the load.
    """

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
    batcher: float
    spare: float
    of_saturation: float
    capacity_ms: float


def simulated(times: StepTimes, slo: Slo, traffic: Traffic, req_per_s: float, seed: int) -> float:
    """Share of requests that meet the SLO in a simulation by the Batcher."""
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


def compiled_share(
    times: StepTimes, slo: Slo, traffic: Traffic, req_per_s: float, seed: int
) -> float:
    """Share of LONG_RUN / 12 requests that meet the SLO in the compiled engine."""
    unit, inputs, outputs = draw(traffic, LONG_RUN // 12, 500 + seed)
    arrivals = unit * 1e3 / req_per_s
    first, last = _served(times, Phase.AGGREGATED, arrivals, inputs, outputs, np.zeros(len(unit)))
    return _share(times, slo, arrivals, first, last, outputs)


def bears(
    times: StepTimes, slo: Slo, traffic: Traffic, percentile: float, rates: Floats, seed: int
) -> float:
    """The highest of `rates` at which a long independent sample keeps the percentile; 0 if none
    does.

    The compiled engine serves the sample. A test compares it with the Batcher.
    """
    unit, inputs, outputs = draw(traffic, _SPARE_REQUESTS, seed)
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        arrivals = unit * 1e3 / rates[middle]
        first, last = _served(
            times, Phase.AGGREGATED, arrivals, inputs, outputs, np.zeros(len(unit))
        )
        if _share(times, slo, arrivals, first, last, outputs) >= percentile:
            low = middle
        else:
            high = middle
    return float(rates[low]) if low >= 0 else 0.0


def _served(
    times: StepTimes, phase: Phase, arrivals: Floats, inputs: Ints, outputs: Ints, hold_ms: Floats
) -> tuple[Floats, Floats]:
    """Times of the first and last token of each request in the compiled engine, in ms."""
    batched = batched_tokens(phase, times.max_batch)
    grid = timing_grid(times, batched)
    first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
    engine_kernel.serve(
        KINDS[phase], arrivals, inputs, outputs, hold_ms, np.zeros_like(inputs), times.max_batch,
        int(times.kv_capacity_tokens), batched, grid.scalars, grid.dense, grid.head,
        grid.prompt_factor, grid.factors, first, last, np.zeros(5),
    )  # fmt: skip
    return first, last


def _share(
    times: StepTimes, slo: Slo, arrivals: Floats, first: Floats, last: Floats, outputs: Ints
) -> float:
    with np.errstate(invalid="ignore"):
        tpot = (last - first) / np.maximum(outputs - 1, 1)
    kept = (first - arrivals + times.first_token_ms <= slo.ttft_ms) & (tpot <= slo.tpot_ms)
    return float(np.mean(kept[_EDGE:-_EDGE]))


def measure(setup: Setup, traffic: Traffic, seeds: int) -> Iterator[Row]:
    """The rows of one engine under one traffic. None if no rate reaches the percentile."""
    name, _, gpu, gpus, ttft_ms, tpot_ms = setup
    model, times, slo = _placed(setup)
    node, profile = NodeSlice(catalog.gpu(gpu), gpus), default_profile()
    lengths = traffic.lengths()
    label = f"{name.split('/')[1]} {gpus}x{gpu} {ttft_ms:g}/{tpot_ms:g} ms"
    for percentile in PERCENTILES:
        build_engine.cache_clear()
        started = time.process_time()
        rate = instance_throughput(
            model, node, Phase.AGGREGATED, slo, lengths, profile, _UTILISATION, percentile
        )
        took_ms = (time.process_time() - started) * 1e3
        yield from _rows(label, times, slo, traffic, lengths, percentile, rate, took_ms, seeds)


def _placed(setup: Setup) -> tuple[ModelSpec, StepTimes, Slo]:
    name, quantization, gpu, gpus, ttft_ms, tpot_ms = setup
    model = catalog.model(name)
    if quantization is not None:
        model = catalog.quantized(model, quantization)
    node = NodeSlice(catalog.gpu(gpu), gpus)
    times = step_times(model, node, Phase.AGGREGATED, default_profile())
    return model, times, Slo(ttft_ms, tpot_ms)


def _rows(
    label: str, times: StepTimes, slo: Slo, traffic: Traffic, lengths: Lengths,
    percentile: float, rate: InstanceRate, took_ms: float, seeds: int,
) -> Iterator[Row]:  # fmt: skip
    built = build_engine(times, Phase.AGGREGATED, lengths)
    bound = _UTILISATION * built.saturation()[0]
    if bound <= 0.0:
        return
    planned = rate.req_per_s * _UTILISATION
    rates = np.arange(1, 401) / 400 * bound
    most = np.mean([bears(times, slo, traffic, percentile, rates, 900 + s) for s in range(seeds)])
    spare = (
        float(most / planned) if planned > 0.0 else (float("inf") if most > 0.02 * bound else 1.0)
    )
    for load in LOADS:
        predicted = share = long_run = 1.0
        if planned > 0.0:
            told = built.long_run(load * planned, built.run(load * planned))
            predicted, batch = built.attained_share(told, slo), told.batch
            share = float(
                np.mean(
                    [simulated(times, slo, traffic, load * planned, 100 + s) for s in range(seeds)]
                )
            )
            long_run = float(
                np.mean([compiled_share(times, slo, traffic, load * planned, s) for s in range(12)])
            )
        else:
            batch = 0.0
        yield Row(
            label, traffic.name, percentile, load, batch, rate.req_per_s, rate.bound_by,
            built.attained_share(built.run_at_step(0), slo), predicted, long_run, share, spare,
            planned / bound,
            took_ms,
        )  # fmt: skip


def pooled(setup: Setup, traffic: Traffic) -> list[float]:
    """Load per instance that POOLS instances behind one round-robin router sustain, relative to one
    instance alone.
    """
    model, _, slo = _placed(setup)
    node, lengths = NodeSlice(catalog.gpu(setup[2]), setup[3]), traffic.lengths()
    rates = [
        instance_throughput(
            model, node, Phase.AGGREGATED, slo, lengths, default_profile(), _UTILISATION, 0.95,
            count**-0.5,
        ).req_per_s
        for count in (1, *POOLS)
    ]  # fmt: skip
    return [rate / rates[0] for rate in rates[1:]] if rates[0] > 0.0 else []


def pair_attains(setup: Setup, traffic: Traffic, percentile: float, load: float) -> float | None:
    """Share of requests that meet the SLO on a prefill and a decode instance in a row, both at
    `load` of the planned load.

    The slower instance sets the pair's rate. None if an instance cannot keep the percentile.
    """
    model, _, slo = _placed(setup)
    node, lengths = NodeSlice(catalog.gpu(setup[2]), setup[3]), traffic.lengths()
    rate = (
        load
        * _UTILISATION
        * min(
            instance_throughput(
                model, node, phase, slo, lengths, default_profile(), _UTILISATION, percentile
            ).req_per_s
            for phase in (Phase.PREFILL, Phase.DECODE)
        )
    )
    if rate <= 0.0:
        return None
    unit, inputs, outputs = draw(traffic, _SPARE_REQUESTS, 31)
    arrivals = unit * 1e3 / rate
    transfer_ms = inputs * kv_transfer_ms(model, 1.0, KV_LINK_GB_PER_S)
    times = step_times(model, node, Phase.PREFILL, default_profile())
    ready, _ = _served(times, Phase.PREFILL, arrivals, inputs, np.ones_like(outputs), transfer_ms)
    order = np.argsort(ready, kind="stable")
    times = step_times(model, node, Phase.DECODE, default_profile())
    first, last = _served(
        times, Phase.DECODE, ready[order], inputs[order], outputs[order], transfer_ms[order]
    )
    return _share(times, slo, arrivals[order], first, last, outputs[order])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases. Exit codes: 1 a prediction is more than two points too high, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sizing_bench")
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engines", type=int, default=len(ENGINES), help="the first N only")
    args = parser.parse_args(argv)
    try:
        traffic = [*drawn_traffic(), *(trace_traffic(path) for path in args.trace)]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    rows: list[Row] = []
    for setup in ENGINES[: args.engines]:
        for each in traffic:
            for row in measure(setup, each, args.seeds):
                rows.append(row)
                print(
                    f"{row.engine:46} {row.traffic:10} p{100 * row.percentile:g} {row.load:4.0%} "
                    f"of {_UTILISATION * row.req_per_s:6.2f} req/s, batch {row.batch:5.1f}: "
                    f"predicted {row.predicted:6.1%} simulated {row.simulated:6.1%} "
                    f"(Batcher {row.batcher:.1%}) "
                    f"spare {row.spare:4.2f} {row.bound_by} reachable {row.reachable:.1%} "
                    f"{row.capacity_ms:.0f} ms",
                    flush=True,
                )
    bad = _summary(rows) + _more(traffic, ENGINES[: args.engines])
    if args.json:
        args.json.write_bytes(orjson.dumps([asdict(row) for row in rows]))
    return 1 if bad else 0


def _more(traffic: list[Traffic], setups: Sequence[Setup]) -> int:
    """Measure pools of instances behind one router, and pairs of prefill and decode.

    Returns the number of pairs that stay more than two points below the percentile.
    """
    bad = 0
    gains = [found for s in setups for t in traffic if (found := pooled(s, t))]
    for column, count in enumerate(POOLS):
        gain = [row[column] for row in gains]
        print(
            f"{count} instances at p95 each sustain {np.median(gain):.3f} times one alone in the "
            f"median of {len(gain)} cases, {min(gain):.3f} to {max(gain):.3f}"
        )
    for percentile in PERCENTILES:
        shares = [
            share
            for setup in setups
            for each in traffic
            if (share := pair_attains(setup, each, percentile, 1.0)) is not None
        ]
        if shares:
            print(
                f"{len(shares)} pairs of prefill and decode at planned load, "
                f"p{100 * percentile:g}: attain {np.median(shares):.1%} in the median, "
                f"at least {min(shares):.1%}"
            )
        bad += sum(percentile - share > 0.02 for share in shares)
    return bad


def _summary(rows: list[Row]) -> int:
    served = [row for row in rows if row.req_per_s > 0.0]
    over = [row.predicted - row.simulated for row in served]
    short = [row.percentile - row.simulated for row in served]
    apart = [row.batcher - row.simulated for row in served]
    cases = {(r.engine, r.traffic, r.percentile): r for r in served}.values()
    useful = sorted(row.spare for row in cases if row.of_saturation >= _USEFUL)
    cliff = sorted(row.spare for row in cases if row.of_saturation < _USEFUL)
    refused = {(r.engine, r.traffic, r.percentile): r.spare for r in rows if r.req_per_s == 0.0}
    bad = sum(each > 0.02 for each in over)
    cpu_ms = np.median([row.capacity_ms for row in rows])
    lost = sum(each > 1.0 for each in refused.values())
    print(
        f"Batcher less compiled engine: {min(apart):+.1%} to {max(apart):+.1%}, mean "
        f"{np.mean(apart):+.2%}"
    )
    print(
        f"{len(served)} rows with a rate: predicted above simulated by at most {max(over):.1%}, "
        f"{bad} rows by more than 2 points; below the percentile by at most {max(short):.1%}; "
        f"spare rate median {np.median(useful):.3f}, p95 {np.quantile(useful, 0.95):.3f}, worst "
        f"{useful[-1]:.3f}, least {useful[0]:.3f} in {len(useful)} cases; in {len(cliff)} that "
        f"keep the percentile only below {_USEFUL:.0%} of saturation: {cliff[:1]} to {cliff[-1:]}; "
        f"median {cpu_ms:.1f} ms of CPU a capacity; out of reach: {len(refused)} cases, of which "
        f"an independent sample bears some: {lost}"
    )
    return bad


if __name__ == "__main__":
    sys.exit(main())
