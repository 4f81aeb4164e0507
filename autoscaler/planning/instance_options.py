"""Instances on their nodes, the parts that combos are made of: on one slice, or as a pipeline.

Owns where instances of a service could stand: on every slice of its pools, and as the template
library's pipelines over several nodes. Knows nothing of how prefill and decode are matched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.performance.startup import startup_s
from autoscaler.planning.combo_names import Member
from autoscaler.planning.instances import Instance, instance
from autoscaler.planning.links import link_gb_s
from autoscaler.planning.pipelines import Pipeline, irreducible, rate_of, spread

# Owned GPUs cost nothing at the margin, yet some order among them is wanted: fewer and smaller
# GPUs first. A thousandth of a USD per 100 TFLOPS and hour never outweighs a real price.
_OWNED_USD_PER_TFLOPS_H = 1e-5
_MOST_PAIRED = 12
"""Instances of one phase per region and set of markets that are paired with others."""


@dataclass(frozen=True, slots=True)
class Part:
    """One instance on its nodes: (pool, slice, stage, layers) of each; stage 0 on a single node.

    link_gb_s: at which its rate assumes that KV moves between prefill and decode.
    """

    phase: Phase
    nodes: tuple[tuple[Pool, NodeSlice, int, int], ...]
    req_per_s: float
    ttft_ms: float
    tpot_ms: float
    start_s: float
    uncertain: bool
    link_gb_s: float

    @property
    def region(self) -> str:
        return self.nodes[0][0].region

    @property
    def markets(self) -> frozenset[Market]:
        return frozenset(pool.market for pool, _, _, _ in self.nodes)

    @property
    def usd_per_h(self) -> float:
        """For ranking: see `gpu_usd_per_h`."""
        return sum(slice_.gpus * gpu_usd_per_h(pool) for pool, slice_, _, _ in self.nodes)


def _on_one_node(pool: Pool, made: Instance, link_gb_s: float) -> Part:
    return Part(
        made.phase,
        ((pool, made.slice, 0, 0),),
        made.req_per_s,
        made.ttft_ms,
        made.tpot_ms,
        made.start_s + pool.provision_s,
        made.uncertain,
        link_gb_s,
    )


def _on_many(service: Service, pipeline: Pipeline, pools: Mapping[str, Pool]) -> Part:
    """`pipeline` with each kind of slice in the pool that `pools` has for its name."""
    nodes = tuple(
        (pools[node.name], node, stage, layers)
        for stage, (slices, layers) in enumerate(pipeline.stages, start=1)
        for node in slices
    )
    return Part(
        pipeline.phase,
        nodes,
        pipeline.req_per_s,
        pipeline.ttft_ms,
        pipeline.tpot_ms,
        max(
            startup_s(service.architecture, node, layers) + pool.provision_s
            for pool, node, _, layers in nodes
        ),
        pipeline.uncertain,
        min(link_gb_s(pool, pool) for pool, _, _, _ in nodes),
    )


def part_named(
    service: Service,
    members: list[tuple[Member, tuple[Pool, NodeSlice]]],
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
    over_gb_s: float,
) -> tuple[int, Part]:
    """How many instances these members are together, and one of them.

    over_gb_s: the network that KV takes between the instances of its combo.
    """
    first, (pool, slice_) = members[0]
    if not first.stage:
        made = instance(
            service, slice_, first.phase, lengths, profile, stretch, arrivals, over_gb_s
        )
        return first.count, _on_one_node(pool, made, over_gb_s)
    count = math.gcd(*(member.count for member, _ in members))
    stages: dict[int, tuple[tuple[NodeSlice, ...], int]] = {}
    for member, (_, node) in members:
        held, _ = stages.get(member.stage, ((), 0))
        stages[member.stage] = ((*held, *(node,) * (member.count // count)), member.layers)
    made_of = tuple(stages[stage] for stage in sorted(stages))
    pipeline = rate_of(service, first.phase, made_of, lengths, profile, stretch, arrivals)
    by_name = {node.name: pool for _, (pool, node) in members}
    return count, _on_many(service, pipeline, by_name)


def parts_of(
    service: Service,
    phase: Phase,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> list[Part]:
    """Instances of one phase: on every slice of a node, and the best pipelines over nodes."""
    parts = []
    for pool in pools:
        for gpus in SLICE_SIZES:
            if gpus <= pool.per_node:
                node = NodeSlice(pool.gpu, gpus)
                own = link_gb_s(pool, pool)
                made = instance(service, node, phase, lengths, profile, stretch, arrivals, own)
                if made.req_per_s > 0.0:
                    parts.append(_on_one_node(pool, made, own))
    # An external scaler keeps a count of equal replicas on nodes of their own.
    if service.pipelines != "none" and not service.scale_targets:
        parts += _pipelines(service, phase, lengths, pools, profile, stretch, arrivals)
    return parts if phase is Phase.AGGREGATED else _worth_pairing(parts)


def over(
    service: Service,
    part: Part,
    over_gb_s: float,
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> Part:
    """`part` as it is where KV moves at `over_gb_s`; a pipeline's rate does not depend on it."""
    pool, node, stage, _ = part.nodes[0]
    if stage or part.link_gb_s == over_gb_s:
        return part
    made = instance(service, node, part.phase, lengths, profile, stretch, arrivals, over_gb_s)
    return _on_one_node(pool, made, over_gb_s)


def _worth_pairing(parts: list[Part]) -> list[Part]:
    """Per region and markets the cheapest few by request and the two smallest, as pairs multiply.

    A hundred instances of either phase would be ten thousand pairs of each region.
    """
    groups: dict[tuple[str, frozenset[Market]], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.region, part.markets), []).append(part)
    kept = []
    for group in groups.values():
        by_request = sorted(group, key=lambda p: p.usd_per_h / p.req_per_s)
        small = sorted(by_request[_MOST_PAIRED:], key=lambda p: p.usd_per_h)[:2]
        kept += by_request[:_MOST_PAIRED] + small
    return kept


def _pipelines(
    service: Service,
    phase: Phase,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> list[Part]:
    """The best pipelines in every region, on pools of one market; the cheapest few of each."""
    where: dict[str, dict[str, list[Pool]]] = {}
    slices: dict[str, NodeSlice] = {}
    for pool in pools:
        for gpus in SLICE_SIZES:
            if gpus <= pool.per_node:
                node = NodeSlice(pool.gpu, gpus)
                slices.setdefault(node.name, node)
                where.setdefault(pool.region, {}).setdefault(node.name, []).append(pool)
    groups: dict[tuple[str, frozenset[Market]], list[Part]] = {}
    every = tuple(slices.values())
    if phase is Phase.AGGREGATED:
        found = spread(service, every, lengths, profile, stretch, arrivals)
    else:
        found = irreducible(service, phase, every, lengths, profile, stretch)
    for pipeline in found:
        names = list(dict.fromkeys(n.name for nodes, _ in pipeline.stages for n in nodes))
        for region, there in where.items():
            for chosen in product(*(there.get(name, ()) for name in names)):
                part = _on_many(service, pipeline, dict(zip(names, chosen, strict=True)))
                if not mixes(part.markets):
                    groups.setdefault((region, part.markets), []).append(part)
    return [
        part
        for parts in groups.values()
        for part in sorted(parts, key=lambda p: p.usd_per_h / p.req_per_s)[:_MOST_PAIRED]
    ]


def mixes(markets: frozenset[Market]) -> bool:
    """On-demand with spot: such a combo is lost with its spot half, so it would be paid in vain."""
    return markets >= {Market.ON_DEMAND, Market.SPOT}


def members_of(count: int, part: Part) -> list[Member]:
    """`count` instances of `part`, equal slices of a stage taken together."""
    if len(part.nodes) == 1:
        ((pool, slice_, stage, layers),) = part.nodes
        return [Member(part.phase, slice_.gpus, pool.id, count, stage, layers)]
    counted = Counter(
        (stage, pool.id, slice_.gpus, layers) for pool, slice_, stage, layers in part.nodes
    )
    return [
        Member(part.phase, gpus, pool, count * n, stage, layers)
        for (stage, pool, gpus, layers), n in counted.items()
    ]


def slice_in(
    pools: dict[str, Pool], pool_id: str, gpus: int, combo_id: str
) -> tuple[Pool, NodeSlice]:
    pool = pools.get(pool_id)
    if pool is None:
        raise InvalidValue(f"combo {combo_id}: pool", pool_id, " or ".join(sorted(pools)))
    if gpus > pool.per_node:
        raise InvalidValue(f"combo {combo_id}: gpus", gpus, f"at most {pool.per_node}, one node")
    return pool, NodeSlice(pool.gpu, gpus)


def gpu_usd_per_h(pool: Pool) -> float:
    """Price of one GPU of `pool` for ranking: its share of the node; owned: a nominal trifle."""
    if pool.price_usd_per_h > 0.0:
        return pool.price_usd_per_h / pool.per_node
    return pool.gpu.bf16_tflops * _OWNED_USD_PER_TFLOPS_H
