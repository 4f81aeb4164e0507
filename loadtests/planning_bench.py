"""`python -m loadtests.planning_bench`: plan a declared cluster of many models, regions and pools.

The steps are those of `shoal plan` and the control loop: candidates, formulation, solve. It prints
CPU seconds of each and the proven gap; --json prints one line. The cluster is drawn from --seed.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import orjson

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.performance.catalog import gpu, model
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.milp_formulation import formulate
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy

GPUS = (("L4", 0.8), ("A10G", 1.0), ("L40S", 1.9), ("A100-SXM-80GB", 2.6), ("H100", 4.0))
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.3-70B-Instruct",
)


def declared(models: int, regions: int, configs: int, scarce: float, seed: int) -> Cluster:
    """A cluster with `configs` pools in each region.

    Pools combine GPU types, nodes of 1 to 8 GPUs and both markets, in turn.
    """
    rng = np.random.default_rng(seed)
    kinds = [(g, usd, per) for per in (1, 2, 4, 8) for g, usd in GPUS]
    pools = []
    for region in range(regions):
        for n in range(configs):
            name, usd, per_node = kinds[(n // 2) % len(kinds)]
            spot = bool(n % 2)
            price = usd * per_node * (0.4 if spot else 1.0) * float(rng.uniform(0.85, 1.15))
            most = max(1, int(rng.integers(5, 60) * (1.0 - scarce)))
            market = Market.SPOT if spot else Market.ON_DEMAND
            label = f"{name.lower()}-{per_node}-{n // (2 * len(kinds))}"
            pools.append(Pool(f"r{region}", label, gpu(name), per_node, most, market, price))
    services = tuple(
        Service(
            f"m{n}",
            model(MODELS[n % len(MODELS)]),
            Slo(float(rng.uniform(1500, 4000)), float(rng.uniform(50, 120))),
            spot_share=float(rng.choice((0.0, 0.5, 1.0))),
            max_len_tokens=8192,
        )
        for n in range(models)
    )
    return Cluster(tuple(pools), services, Policy())


def main(argv: list[str] | None = None) -> int:
    """Plan once and print."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.planning_bench", description=__doc__)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--regions", type=int, default=10)
    parser.add_argument("--configs", type=int, default=40)
    parser.add_argument("--scarce", type=float, default=0.0, help="share of the nodes taken away")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=0.002)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    parser.add_argument("--no-solve", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    cluster = declared(args.models, args.regions, args.configs, args.scarce, args.seed)
    rng = np.random.default_rng(args.seed + 1)
    demands = {
        s.model: Demand(
            s.model,
            float(rng.uniform(2.0, 40.0)),
            Lengths.expected(float(rng.uniform(300, 3000)), float(rng.uniform(50, 400))),
        )
        for s in cluster.services
    }
    wall_s = time.monotonic()
    options = PlanOptions(
        gap=args.gap, time_limit_s=args.time_limit, elapsed_s=lambda: time.monotonic() - wall_s
    )
    started_s = time.process_time()
    problem = make_problem(cluster, demands, default_profile(), options=options)
    candidates_s = time.process_time() - started_s
    started_s = time.process_time()
    arrays = formulate(problem)
    result: dict[str, object] = {
        "pools": len(cluster.pools),
        "candidates": sum(map(len, problem.candidates.values())),
        "columns": arrays.problem.columns,
        "rows": len(arrays.problem.demand_req_per_s),
        "candidates_cpu_s": candidates_s,
        "formulation_cpu_s": time.process_time() - started_s,
    }
    if not args.no_solve:
        started_s = time.process_time()
        made = ShoalStrategy().solve(problem)
        result |= {
            "solve_cpu_s": time.process_time() - started_s,
            "wall_s": time.monotonic() - wall_s,
            "status": made.status,
            "cost_usd_per_h": made.cost_usd_per_h,
            "gap": made.gap,
            "served_fraction_bound": made.served_fraction_bound,
            "shortfall_models": len(made.shortfall_req_per_s),
            "limits_hit": made.limits_hit,
        }
    if args.json:
        sys.stdout.buffer.write(orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
        return 0
    for name, value in result.items():
        print(f"{name:22} {value:.4g}" if isinstance(value, float) else f"{name:22} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
