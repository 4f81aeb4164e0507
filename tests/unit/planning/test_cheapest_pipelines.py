"""With many pools, the filter of pipelines keeps exactly the cheapest of each region and market."""

from __future__ import annotations

from itertools import product

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import POISSON_ARRIVALS, Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.instance_options import gpu_usd_per_h, instance_options
from autoscaler.planning.pipelines import irreducible_pipelines

LENGTHS = Lengths.expected(700.0, 90.0)
KINDS = {"L40S": 1.9, "A10G": 1.0}


def pools() -> tuple[Pool, ...]:
    """Pools of nodes with one, two and four GPUs, of two GPU types, in two regions and both
    markets.
    """
    made = []
    for n, (region, kind, gpus, market) in enumerate(
        product(("eu", "us"), KINDS, (1, 2, 4), (Market.ON_DEMAND, Market.SPOT))
    ):
        price = KINDS[kind] * gpus * (0.4 if market is Market.SPOT else 1.0) * (1.0 + 0.01 * n)
        made.append(Pool(region, f"{kind}x{gpus}", catalog.gpu(kind), gpus, 9, market, price))
    return tuple(made)


def service() -> Service:
    model = catalog.model("Qwen/Qwen3-32B")
    return Service("m", model, Slo(2500.0, 90.0), pipelines="any", max_len_tokens=8192)


def test_the_cheapest_placements_of_all_stay() -> None:
    """The test prices every placement of every pipeline. Its twelve cheapest equal those of the
    filter.
    """
    profile = default_profile()
    slices = tuple(NodeSlice(catalog.gpu(kind), n) for kind in KINDS for n in (1, 2, 4))
    ratios: dict[tuple[str, Market], list[float]] = {}
    for pipeline in irreducible_pipelines(service(), Phase.PREFILL, slices, LENGTHS, profile, 1.0):
        nodes = [node for stage, _ in pipeline.stages for node in stage]
        names = list(dict.fromkeys(node.name for node in nodes))
        there = {
            name: [p for p in pools() for s in slices if s.name == name and s.gpu == p.gpu
                   and s.gpus <= p.per_node]
            for name in names
        }  # fmt: skip
        for chosen in product(*there.values()):
            if len({(pool.region, pool.market) for pool in chosen}) > 1:
                continue
            by_name = dict(zip(names, chosen, strict=True))
            usd = sum(node.gpus * gpu_usd_per_h(by_name[node.name]) for node in nodes)
            key = chosen[0].region, chosen[0].market
            ratios.setdefault(key, []).append(usd / pipeline.req_per_s)
    parts = instance_options(
        service(), Phase.PREFILL, LENGTHS, pools(), profile, 1.0, POISSON_ARRIVALS
    )
    assert len(ratios) == 4
    for (region, market), expected in ratios.items():
        stays = [
            part.usd_per_h / part.req_per_s
            for part in parts
            if len(part.nodes) > 1
            and part.nodes[0][0].region == region
            and part.nodes[0][0].market is market
        ]
        assert len(stays) == 12
        for got, best in zip(sorted(stays), sorted(expected), strict=False):
            assert abs(got - best) <= 1e-9 * best
