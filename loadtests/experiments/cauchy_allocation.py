"""Cauchy, sec. 4.3: the deployment ILP of eq. 16, its two rivals and our planner.

The paper's cluster has 8 H800, 8 H20 and 8 A800, two GPUs in a server, and the prices of its Table
1. It serves Llama-3.1-8B on each of the paper's workloads at the paper's requests/s. Throughputs
are those of our performance model. The paper names no SLO; here the limits are 2 s to the first
token and 100 ms per token.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.simulation.strategies.registry import strategy
from loadtests.results.entry import Figures

GPUS = {"H800": ("H800", 2.69), "H20": ("H20", 1.50), "A800": ("A800-PCIe-80GB", 1.19)}
"""Catalogue name and USD per GPU-hour (Table 1)."""
SERVERS, PER_SERVER = 4, 2
WORKLOADS = {
    "DailyMail": (702, 42, 54.0),
    "ShareGPT": (290, 207, 50.0),
    "LongWriter": (337, 1330, 6.0),
}
"""Mean input and output tokens, requests/s (sec. 4.1)."""
STRATEGIES = ("mce-lp", "mc-lp", "cauchy", "shoal")


@dataclass(frozen=True, slots=True)
class Row:
    """One plan."""

    workload: str
    strategy: str
    usd_per_h: float


def cluster_of(input_tokens: float, output_tokens: float) -> Cluster:
    """The paper's servers and its one model."""
    pools = tuple(
        Pool("lab", name.lower(), catalog.gpu(gpu), PER_SERVER, SERVERS, Market.ON_DEMAND,
             PER_SERVER * usd)
        for name, (gpu, usd) in GPUS.items()
    )  # fmt: skip
    service = Service(
        model="llama",
        architecture=catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
        slo=Slo(2000.0, 100.0),
        max_len_tokens=8192,
        lengths=Lengths.expected(input_tokens, output_tokens),
        utilization=1.0,
    )
    return Cluster(pools, (service,), Policy(k_start=0.0, k_load=0.0, k_switch=0.0))


def planned(workload: str, name: str) -> Row:
    """The plan of one strategy; raises InvalidValue if it does not serve the demand."""
    inputs, outputs, rate = WORKLOADS[workload]
    cluster = cluster_of(inputs, outputs)
    lengths = cluster.services[0].lengths
    options = PlanOptions(gap=2e-3, time_limit_s=60.0)
    demands = {"llama": Demand("llama", rate, lengths)}
    problem = make_problem(cluster, demands, default_profile(), options=options)
    made = strategy(name).solve(problem)
    if made.shortfall_req_per_s:
        raise InvalidValue(f"{workload}: req/s", rate, "what the cluster can serve")
    return Row(workload, name, made.cost_usd_per_h)


def measure(seed: int) -> Figures:
    """USD/h of each strategy for each workload."""
    del seed
    return {
        workload: {name: planned(workload, name).usd_per_h for name in STRATEGIES}
        for workload in WORKLOADS
    }
