"""Small clusters and hand-made combos for the planning tests."""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Demand, Lengths, Phase, Slo
from autoscaler.performance.catalog import gpu, model
from autoscaler.performance.packaged_profile import default_profile

CONVERSATION = Lengths(1155.0, 211.0)
PROFILE = default_profile()


def pool(
    region: str, name: str, gpu_name: str, per_node: int, nodes: int, market: Market, usd: float
) -> Pool:
    return Pool(region, name, gpu(gpu_name), per_node, nodes, market, usd)


def small_cluster(policy: Policy | None = None) -> Cluster:
    """An owned H100 node; rented L40S (also spot) in one region; rented L4
    (also spot) in another.
    """
    pools = (
        pool("us-east", "h100", "H100", 8, 1, Market.OWNED, 0.0),
        pool("us-east", "l40s", "L40S", 4, 8, Market.ON_DEMAND, 7.2),
        pool("us-east", "l40s", "L40S", 4, 8, Market.SPOT, 2.9),
        pool("eu-west", "l4", "L4", 1, 20, Market.ON_DEMAND, 0.85),
        pool("eu-west", "l4", "L4", 1, 20, Market.SPOT, 0.32),
    )
    services = (
        service("chat", "meta-llama/Llama-3.3-70B-Instruct", Slo(2000.0, 60.0)),
        service("code", "Qwen/Qwen3-32B", Slo(1000.0, 40.0), spot_share=0.5),
        service("mini", "meta-llama/Llama-3.1-8B-Instruct", Slo(500.0, 30.0), spot_share=0.5),
    )
    return Cluster(pools, services, policy or Policy())


def service(name: str, source: str, slo: Slo, spot_share: float = 0.0, **more: object) -> Service:
    fields: dict[str, object] = {"max_len_tokens": 8192, "lengths": CONVERSATION}
    fields |= {"utilization": 0.8, **more}
    return Service(name, model(source), slo, spot_share=spot_share, **fields)  # type: ignore[arg-type]


def combo(name: str, req_per_s: float, usd_per_h: float, pool_id: str, gpus: int = 1) -> Combo:
    """An aggregated combo on one slice. `name` is "model:suffix" with any suffix."""
    member = ComboMember(Phase.AGGREGATED, pool_id, gpus, 1, req_per_s)
    owner, _, _ = name.partition(":")
    region = pool_id.split("/")[0]
    return Combo(name, owner, region, (member,), req_per_s, usd_per_h, 100.0, 20.0, 60.0)


def demands(cluster: Cluster, *rates: float) -> dict[str, Demand]:
    """Demand for each service of `cluster`, in order, at `rates` requests/s."""
    return {
        s.model: Demand(s.model, rate, CONVERSATION)
        for s, rate in zip(cluster.services, rates, strict=False)
    }


A, B = "r/a/on-demand", "r/b/on-demand"
TWO_POOLS = (
    pool("r", "a", "L40S", 1, 20, Market.ON_DEMAND, 1.0),
    pool("r", "b", "H100", 1, 20, Market.ON_DEMAND, 4.0),
)
"""Pools of one-GPU nodes for 1 and 4 USD/h, with the ids A and B."""
