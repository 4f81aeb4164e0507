"""Compile frequently used code before any caller waits for it.

Without a cache on disk, compilation takes seconds. A new leader would not respond during that time,
and its first plan would be late. The module compiles the code that reads telemetry, evaluates it
each second, and evaluates instances for plans.
"""

from __future__ import annotations

import asyncio
import logging

import numpy as np

from autoscaler.domain.cluster import Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.estimate.change_point import change_index
from autoscaler.estimate.length_distribution import SHAPE_REQUESTS
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import poisson_tail
from autoscaler.estimate.queue_model import erlang_c
from autoscaler.estimate.request_lengths import estimate_lengths
from autoscaler.estimate.windows import TelemetryWindows, WindowLengths
from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.instances import evaluate_instance
from autoscaler.planning.pipelines import irreducible_pipelines
from streams.ports.telemetry_wire import read_reported
from topics.codec import encode
from topics.telemetry import Telemetry

log = logging.getLogger(__name__)
_NOW_MS = 1_700_000_000_000
_LONG_S = 2.0


async def warmed(pipelines: bool) -> None:
    """Run `warm_up` and `warm_plans` in threads, concurrently with other work of the caller.

    A long duration and a failure are logged. A failure only makes the first use slower.
    """
    work = asyncio.gather(
        asyncio.to_thread(warm_up), asyncio.to_thread(warm_plans, pipelines), return_exceptions=True
    )
    done, _ = await asyncio.wait({work}, timeout=_LONG_S)
    if not done:
        log.info("compiling code for this machine; only the first start takes this long")
    for error in await work:
        if error is not None:
            log.warning("compiling ahead of time failed, first plans may be slow: %r", error)


def warm_up() -> None:
    """Compile telemetry code, or load the compiled code from disk. May run in a thread."""
    record = Telemetry(
        "model", "gateway", "boot", 1, _NOW_MS, 1000, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        ttft_ms={1: 1},
    )  # fmt: skip
    records, _ = read_reported([encode(record)])
    windows = TelemetryWindows()
    windows.add_all(records, np.array([_NOW_MS]))
    windows.stats("model", _NOW_MS, 60)
    change_index(np.ones((1, 3)), 1.0)
    erlang_c(1, 0.5)
    for count in (1, 2):  # One count is at the mean, one above it.
        poisson_tail(count, 1.0)
    dispersion(((10, 1), (10, 2)))
    many = {1: SHAPE_REQUESTS}
    seen = WindowLengths(many, many, 1.0, 1.0, SHAPE_REQUESTS, SHAPE_REQUESTS)
    declared = Lengths.expected(500.0, 100.0)
    estimate_lengths(declared, declared, ModelDemand(local_lengths=seen, long_lengths=seen))


def warm_plans(pipelines: bool) -> None:
    """Compile plan code; with `pipelines` also for multi-node instances."""
    model = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
    service = Service("model", model, Slo(2000.0, 80.0), pipelines="same-slice")
    node, lengths = NodeSlice(catalog.gpu("L40S"), 1), Lengths.expected(500.0, 100.0)
    evaluate_instance(service, node, Phase.AGGREGATED, lengths, default_profile())
    compile_kernels()
    if pipelines:
        irreducible_pipelines(service, Phase.PREFILL, (node,), lengths, default_profile())


if __name__ == "__main__":  # the build of the image
    warm_up()
    warm_plans(pipelines=True)
