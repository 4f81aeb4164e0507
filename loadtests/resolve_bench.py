"""Duration of a full re-solve in the controller: `python -m loadtests.resolve_bench`.

It plans MODELS models on GPUS GPUs in REGIONS regions with the controller's solver process. That
plan becomes the running fleet, and is solved again with other demands and prices. The output has
wall and CPU seconds of these solves (with the process already running), the gap, and the peak
memory of this process and the solver together.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, Urgency
from loadtests.large_estate import PER_NODE, Estate
from streams.files.shoal_yaml import load_config
from streams.solver.solver_client import Solver, solver_argv


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures; exit code 1 if no plan was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--gpus", type=int, default=600)
    parser.add_argument("--regions", type=int, default=3)
    parser.add_argument("--load", type=float, default=8.0, help="times 2 to 6 req/s a model")
    parser.add_argument("--solves", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", type=Path, help="plan this shoal.yaml at its declared rates")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    if given.config:
        cluster = load_config(given.config).cluster
    else:
        nodes = given.gpus // PER_NODE
        estate = Estate(given.models, nodes, given.regions, given.load, given.models)
        estate.declare(given.models)
        cluster = estate.cluster
    found = asyncio.run(_measured(cluster, given.solves, given.seed))
    if found is None:
        print("resolve_bench: no plan came out", file=sys.stderr)
        return 1
    held = {
        "models": len(cluster.services),
        "gpus": sum(pool.max_nodes * pool.per_node for pool in cluster.pools),
        "regions": len({pool.region for pool in cluster.pools}),
        **found,
    }
    for key, value in held.items():
        print(f"{key:22} {value if isinstance(value, int) else f'{value:.4g}'}")
    if given.json:
        given.json.write_bytes(orjson.dumps(held, option=orjson.OPT_INDENT_2))
    return 0


async def _measured(cluster: Cluster, solves: int, seed: int) -> dict[str, float] | None:
    random = np.random.default_rng(seed)
    solver = Solver(solver_argv(), full_limit_s=600.0)
    running = asyncio.create_task(solver.run())
    try:
        first = await _solved(solver, cluster, PlanRequest(1, Urgency.FULL, 0, _demands(cluster)))
        if first.outcome is Outcome.NONE:
            return None
        wall_s, gaps, fleet = [], [], first.counts
        for number in range(2, 2 + solves):
            factors = random.uniform(0.7, 1.4, len(cluster.services)).tolist()
            prices = tuple(
                (pool.id, pool.price_usd_per_h * float(random.uniform(0.8, 1.2)))
                for pool in cluster.pools
            )
            request = PlanRequest(
                number, Urgency.FULL, 0, _demands(cluster, factors), fleet, prices_usd_per_h=prices
            )
            began = time.monotonic()
            answer = await _solved(solver, cluster, request)
            wall_s.append(time.monotonic() - began)
            if answer.outcome is Outcome.NONE:
                return None
            gaps.append(answer.gap)
            fleet = answer.counts
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    mine = resource.getrusage(resource.RUSAGE_SELF)
    solver_used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "combos": sum(count for _, count in fleet),
        "resolves": solves,
        "resolve_p50_s": float(np.median(wall_s)),
        "resolve_max_s": max(wall_s),
        "solver_cpu_s_all": solver_used.ru_utime + solver_used.ru_stime,
        "worst_gap": max(gaps),
        "peak_rss_mib_both": (mine.ru_maxrss + solver_used.ru_maxrss) / 1024.0,
    }


async def _solved(solver: Solver, cluster: Cluster, request: PlanRequest) -> PlanAnswer:
    solver.ask(request, cluster)
    while True:
        for answer in solver.take():
            if answer.number == request.number:
                return answer
        await asyncio.sleep(0.01)


def _demands(cluster: Cluster, factors: Sequence[float] | None = None) -> tuple[Demand, ...]:
    """Return the declared demands, each multiplied by its factor."""
    times = [1.0] * len(cluster.services) if factors is None else factors
    return tuple(
        Demand(s.model, s.req_per_s * float(f), s.lengths)
        for s, f in zip(cluster.services, times, strict=True)
    )


if __name__ == "__main__":
    raise SystemExit(main())
