"""Instance options: the instances of which combos are built, on one slice or as a pipeline.

The options are every slice of a service's pools, and the template library's pipelines over several
nodes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.token_times import TokenTimes
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.performance.startup import startup_s
from autoscaler.planning.combo_names import Member
from autoscaler.planning.instances import Instance, evaluate_instance
from autoscaler.planning.network import link_gb_s
from autoscaler.planning.pipelines import (
    Pipeline,
    aggregated_pipelines,
    evaluate_pipeline,
    irreducible_pipelines,
)

# Owned GPUs cost nothing, but ranking must prefer fewer and smaller ones. A thousandth of a USD per
# 100 TFLOPS and hour never outweighs a real price.
_OWNED_USD_PER_TFLOPS_H = 1e-5
_MAX_PAIRED = 12
"""Instances of one phase per region and set of markets that are paired with others."""


@dataclass(frozen=True, slots=True)
class InstanceOption:
    """One possible instance: (pool, slice, stage, layers) of each of its nodes; stage is 0 on a
    single node. link_gb_s: the bandwidth between prefill and decode, in 1e9 bytes/s, that its rate
    assumes. token_times: None for pipelines and prefill.
    """

    phase: Phase
    nodes: tuple[tuple[Pool, NodeSlice, int, int], ...]
    req_per_s: float
    ttft_ms: float
    tpot_ms: float
    start_s: float
    uncertain: bool
    link_gb_s: float
    token_times: TokenTimes | None = None

    @property
    def region(self) -> str:
        return self.nodes[0][0].region

    @property
    def markets(self) -> frozenset[Market]:
        return frozenset(pool.market for pool, _, _, _ in self.nodes)

    @property
    def usd_per_h(self) -> float:
        """Price for ranking, see `gpu_usd_per_h`."""
        return sum(slice_.gpus * gpu_usd_per_h(pool) for pool, slice_, _, _ in self.nodes)


def _single_node_option(pool: Pool, made: Instance, link_gb_s: float) -> InstanceOption:
    return InstanceOption(
        made.phase,
        ((pool, made.slice, 0, 0),),
        made.req_per_s,
        made.ttft_ms,
        made.tpot_ms,
        made.start_s + pool.provision_s,
        made.uncertain,
        link_gb_s,
        made.token_times,
    )


def _pipeline_option(
    service: Service, pipeline: Pipeline, pools: Mapping[str, Pool]
) -> InstanceOption:
    """`pipeline` as an option. pools: by the name of a slice type, the pool that provides it."""
    nodes = tuple(
        (pools[node.name], node, stage, layers)
        for stage, (slices, layers) in enumerate(pipeline.stages, start=1)
        for node in slices
    )
    return InstanceOption(
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


def option_of_members(
    service: Service,
    members: list[tuple[Member, tuple[Pool, NodeSlice]]],
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
    over_gb_s: float,
) -> tuple[int, InstanceOption]:
    """(number of instances that `members` form, one of these equal instances). over_gb_s: bandwidth
    for KV between the combo's instances, in 1e9 bytes/s.
    """
    first, (pool, slice_) = members[0]
    if not first.stage:
        made = evaluate_instance(
            service, slice_, first.phase, lengths, profile, stretch, arrivals, over_gb_s
        )
        return first.count, _single_node_option(pool, made, over_gb_s)
    count = math.gcd(*(member.count for member, _ in members))
    stages: dict[int, tuple[tuple[NodeSlice, ...], int]] = {}
    for member, (_, node) in members:
        held, _ = stages.get(member.stage, ((), 0))
        stages[member.stage] = ((*held, *(node,) * (member.count // count)), member.layers)
    made_of = tuple(stages[stage] for stage in sorted(stages))
    pipeline = evaluate_pipeline(service, first.phase, made_of, lengths, profile, stretch, arrivals)
    by_name = {node.name: pool for _, (pool, node) in members}
    return count, _pipeline_option(service, pipeline, by_name)


def instance_options(
    service: Service,
    phase: Phase,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> list[InstanceOption]:
    """The instances for one phase: on every slice of a node, and the best pipelines over several
    nodes."""
    parts = []
    for pool in pools:
        for gpus in SLICE_SIZES:
            if gpus <= pool.largest_slice:
                node = NodeSlice(pool.gpu, gpus)
                own = link_gb_s(pool, pool)
                made = evaluate_instance(
                    service, node, phase, lengths, profile, stretch, arrivals, own
                )
                if made.req_per_s > 0.0:
                    parts.append(_single_node_option(pool, made, own))
    # An external scaler keeps a count of equal replicas, each on its own node.
    if service.pipelines != "none" and not service.scale_targets:
        parts += _pipelines(service, phase, lengths, pools, profile, stretch, arrivals)
    return parts if phase is Phase.AGGREGATED else _options_to_pair(parts)


def with_kv_link(
    service: Service,
    part: InstanceOption,
    over_gb_s: float,
    lengths: Lengths,
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> InstanceOption:
    """`part` with the rate at a KV bandwidth of `over_gb_s`. The rate of a pipeline does not depend
    on the bandwidth."""
    pool, node, stage, _ = part.nodes[0]
    if stage or part.link_gb_s == over_gb_s:
        return part
    made = evaluate_instance(
        service, node, part.phase, lengths, profile, stretch, arrivals, over_gb_s
    )
    return _single_node_option(pool, made, over_gb_s)


def _options_to_pair(parts: list[InstanceOption]) -> list[InstanceOption]:
    """The few options with the cheapest request and the two smallest options, per region and set of
    markets.

    Pairing all options instead would give ten thousand pairs in a region with a hundred instances
    per phase.
    """
    groups: dict[tuple[str, frozenset[Market]], list[InstanceOption]] = {}
    for part in parts:
        groups.setdefault((part.region, part.markets), []).append(part)
    kept = []
    for group in groups.values():
        by_request = sorted(group, key=lambda p: p.usd_per_h / p.req_per_s)
        small = sorted(by_request[_MAX_PAIRED:], key=lambda p: p.usd_per_h)[:2]
        kept += by_request[:_MAX_PAIRED] + small
    return kept


def _pipelines(
    service: Service,
    phase: Phase,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> list[InstanceOption]:
    """The few pipelines with the cheapest request in every region, each on pools of one market."""
    where: dict[str, dict[str, list[Pool]]] = {}
    slices: dict[str, NodeSlice] = {}
    for pool in pools:
        for gpus in SLICE_SIZES:
            if gpus <= pool.largest_slice:
                node = NodeSlice(pool.gpu, gpus)
                slices.setdefault(node.name, node)
                where.setdefault(pool.region, {}).setdefault(node.name, []).append(pool)
    every = tuple(slices.values())
    if phase is Phase.AGGREGATED:
        found = aggregated_pipelines(service, every, lengths, profile, stretch, arrivals)
    else:
        found = irreducible_pipelines(service, phase, every, lengths, profile, stretch)
    cheapest = _Cheapest(service)
    for pipeline in found:
        for region, there in where.items():
            cheapest.offer(pipeline, region, there)
    return cheapest.parts()


class _Cheapest:
    """Keeps the few pipelines with the cheapest request, by region and set of markets.

    There may be tens of thousands of pipelines, because each slice may use several pools. Only the
    cheapest few become options.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._best: dict[
            tuple[str, frozenset[Market]], list[tuple[float, int, InstanceOption]]
        ] = {}
        self._offered = 0

    def offer(self, pipeline: Pipeline, region: str, there: Mapping[str, list[Pool]]) -> None:
        """Add the options of `pipeline` on the pools of `region` that have its slices, if they are
        cheap enough."""
        gpus = Counter[str]()
        for nodes, _ in pipeline.stages:
            for node in nodes:
                gpus[node.name] += node.gpus
        names = list(gpus)
        pools = [there.get(name, []) for name in names]
        if not all(pools) or self._all_cheaper(pipeline, region, gpus, pools):
            return
        for chosen in product(*pools):
            self._offered += 1
            markets = frozenset(pool.market for pool in chosen)
            if mixes_spot(markets):
                continue
            price = sum(gpus[n] * gpu_usd_per_h(p) for n, p in zip(names, chosen, strict=True))
            ratio = price / pipeline.req_per_s
            best = self._best.setdefault((region, markets), [])
            if len(best) < _MAX_PAIRED or ratio < best[-1][0]:
                by_name = dict(zip(names, chosen, strict=True))
                part = _pipeline_option(self._service, pipeline, by_name)
                insort(best, (ratio, self._offered, part), key=lambda one: one[:2])
                del best[_MAX_PAIRED:]

    def _all_cheaper(
        self, pipeline: Pipeline, region: str, gpus: Counter[str], pools: list[list[Pool]]
    ) -> bool:
        """Whether enough cheaper pipelines are known in the region; False if the region has several
        markets."""
        markets = frozenset(pool.market for each in pools for pool in each)
        best = self._best.get((region, markets), [])
        if len(markets) > 1 or len(best) < _MAX_PAIRED:
            return False
        least = sum(
            many * min(map(gpu_usd_per_h, each))
            for many, each in zip(gpus.values(), pools, strict=True)
        )
        return least / pipeline.req_per_s >= best[-1][0]

    def parts(self) -> list[InstanceOption]:
        """The kept options, for each region and set of markets the cheapest first."""
        return [part for best in self._best.values() for _, _, part in best]


def mixes_spot(markets: frozenset[Market]) -> bool:
    """Whether `markets` combines on-demand and spot. In such a combo, the loss of the spot nodes
    would waste the on-demand nodes."""
    return markets >= {Market.ON_DEMAND, Market.SPOT}


def members_of(count: int, part: InstanceOption) -> list[Member]:
    """The combo members for `count` instances of `part`; equal slices of a stage form one
    member."""
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


def resolve_slice(
    pools: dict[str, Pool], pool_id: str, gpus: int, combo_id: str
) -> tuple[Pool, NodeSlice]:
    pool = pools.get(pool_id)
    if pool is None:
        raise InvalidValue(f"combo {combo_id}: pool", pool_id, " or ".join(sorted(pools)))
    if gpus > pool.largest_slice:
        allowed = f"at most {pool.largest_slice}, the largest slice of a node"
        raise InvalidValue(f"combo {combo_id}: gpus", gpus, allowed)
    return pool, NodeSlice(pool.gpu, gpus)


def gpu_usd_per_h(pool: Pool) -> float:
    """Price of one GPU of `pool` for ranking: its share of the node's price, or a nominal price if
    the pool is owned."""
    if pool.price_usd_per_h > 0.0:
        return pool.price_usd_per_h / pool.per_node
    return pool.gpu.bf16_tflops * _OWNED_USD_PER_TFLOPS_H
