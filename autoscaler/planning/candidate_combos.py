"""Candidate combos of a model: which slices could serve it, alone or as prefill and decode.

Owns matching prefill and decode. Knows no demand and no fleet: what is chosen of the candidates
is for the planner.
Source: Cauchy sec. 3.3.1 (ratios 1:1 to 2:6, one direction per GPU pair, ranking by CE), with our
slices, regions and markets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import POISSON_ARRIVALS, Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.planning.combo_names import name_of, parsed
from autoscaler.planning.component_cells import cell_named, cells
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd, phase_tokens_per_usd
from autoscaler.planning.instance_options import (
    Part,
    gpu_usd_per_h,
    members_of,
    mixes,
    over,
    part_named,
    parts_of,
    slice_in,
)
from autoscaler.planning.links import link_gb_s
from autoscaler.planning.network import may_stand_apart, most_prompts_per_s
from autoscaler.planning.ranking import Offer, best_of_groups

RATIOS = tuple((p, d) for p in (1, 2) for d in range(1, 7))
KEEP_PER_GROUP = 6


def candidate_combos(
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    keep: int = KEEP_PER_GROUP,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Combo, ...]:
    """Combos worth considering for `service` at `lengths`, best cost efficiency first.

    arrivals: of the model as a whole, which the chosen combos are to share.

    Aggregated ones on every slice that holds the weights and one request of maximal length; pairs
    of prefill and decode instances within a region, each on a slice or, where the engine declares
    pipelines, on the template library's combinations of nodes. Per region and set of markets the
    best few by cost efficiency (eq. 14-15), by price of a request and by size stay. Empty when
    nothing fits in memory, and when nothing meets the SLO. Of a model of components, its cells.
    """
    pools = usable_pools(cluster, service)
    if service.graph is not None:
        return cells(service.graph, pools)
    return _best(service, lengths, pools, profile, keep, arrivals)


@lru_cache(maxsize=1024)  # plan after plan the same, until demand, lengths or prices move
def _best(
    service: Service,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    keep: int,
    arrivals: Arrivals,
) -> tuple[Combo, ...]:
    built_of = _building(service, lengths, pools, profile, 1.0, arrivals)
    return _combined(service.model, lengths, built_of, 1.0, keep)


def late_combos(
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    keep: int = KEEP_PER_GROUP,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Combo, ...]:
    """The combos that come nearest to an SLO that none meets (meets_slo False)."""
    if service.graph is not None:
        return ()
    pools = usable_pools(cluster, service)
    found: tuple[Combo, ...] = ()
    stretch = 1.5
    while not found and stretch < 1e4:
        built_of = _building(service, lengths, pools, profile, stretch, arrivals)
        found = _combined(service.model, lengths, built_of, stretch, keep)
        stretch *= 1.5
    return found


def combo_named(
    combo_id: str,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> Combo:
    """The combo called `combo_id`, evaluated at `lengths`, whether or not it is a candidate now.

    For instances that run already: their combo may have left the candidates. Where it cannot meet
    the SLO any more its best-effort rate counts (meets_slo False). InvalidValue where nothing that
    is declared now is called so.
    """
    if service.graph is not None:
        found = cell_named(combo_id, service.graph, cluster.pools)
    else:
        found = _named(combo_id, cluster, service, lengths, profile, arrivals)
    if found.id != combo_id:
        raise InvalidValue("combo", combo_id, f"what it is called now: {found.id}")
    return found


def _named(
    combo_id: str,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals,
) -> Combo:
    model, instances = parsed(combo_id)
    if model != service.model:
        raise InvalidValue("combo", combo_id, f"a combo of model {service.model}")
    pools = {pool.id: pool for pool in cluster.pools}
    named = [
        [(member, slice_in(pools, member.pool, member.gpus, combo_id)) for member in members]
        for members in instances
    ]
    between = [pool for members in named for _, (pool, _) in members]
    over_gb_s = min(link_gb_s(one, other) for one in between for other in between)
    stretch = 1.0
    while stretch < 1e4:
        parts = [
            part_named(service, members, lengths, profile, stretch, arrivals, over_gb_s)
            for members in named
        ]
        if all(part.req_per_s > 0.0 for _, part in parts):
            return _combo(service.model, parts, stretch)
        stretch *= 1.5
    raise InvalidValue("combo", combo_id, f"slices that hold model {service.model}")


def usable_pools(cluster: Cluster, service: Service) -> tuple[Pool, ...]:
    """Pools that `service` may use: its regions, its markets, its scale targets where it has any.

    A service on scale targets gets counts only, of the pools that have a target.
    """
    targets = {name for name, _ in service.scale_targets}
    return tuple(
        pool
        for pool in cluster.pools
        if (not service.regions or pool.region in service.regions)
        and (pool.market is not Market.SPOT or service.spot_share > 0.0)
        and (not targets or pool.name in targets)
        and pool.max_nodes > 0
    )


def ranking_usd_per_h(combo: Combo, pools: Mapping[str, Pool]) -> float:
    """Price of `combo` with owned GPUs at their nominal trifle: never 0, so that it can divide.

    pools: by their ids.
    """
    return sum(gpus * gpu_usd_per_h(pools[pool]) for pool, gpus in combo.gpus_by_pool().items())


@dataclass(frozen=True, slots=True)
class _Building:
    """What combos are built of: `alone` serve by themselves; `apart` are instances of one phase,
    of which `pairs` names the prefill and the decode ones that may stand together."""

    alone: tuple[Part, ...]
    apart: tuple[Part, ...]
    pairs: tuple[tuple[int, int], ...]


def _building(
    service: Service,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> _Building:
    def instances(phase: Phase) -> tuple[Part, ...]:
        return tuple(parts_of(service, phase, lengths, pools, profile, stretch, arrivals))

    alone = instances(Phase.AGGREGATED)
    # An external scaler keeps a count of equal replicas, not matched pairs.
    if not service.disaggregate or service.scale_targets:
        return _Building(alone, (), ())
    sides = instances(Phase.PREFILL), instances(Phase.DECODE)
    apart: dict[tuple[Phase, int, float], int] = {}
    parts: list[Part] = []

    def place(side: tuple[Part, ...], index: int, over_gb_s: float) -> int:
        key = side[index].phase, index, over_gb_s
        if key not in apart:
            apart[key] = len(parts)
            made = over(service, side[index], over_gb_s, lengths, profile, stretch, arrivals)
            parts.append(made)
        return apart[key]

    together = _that_may_stand_apart(service.architecture, lengths, profile, *sides)
    placed = [
        (place(sides[0], p, over_gb_s), place(sides[1], d, over_gb_s))
        for p, d, over_gb_s in together
    ]
    pairs = tuple(pair for pair in placed if all(parts[i].req_per_s > 0.0 for i in pair))
    return _Building(alone, tuple(parts), pairs)


@lru_cache(maxsize=256)
def _that_may_stand_apart(
    spec: ModelSpec,
    lengths: Lengths,
    profile: Profile,
    prefills: tuple[Part, ...],
    decodes: tuple[Part, ...],
) -> tuple[tuple[int, int, float], ...]:
    """Indices of a prefill and a decode instance, and the network between them in 1e9 bytes/s."""
    by_region: dict[str, list[tuple[int, Part]]] = {}
    for d, decode in enumerate(decodes):
        by_region.setdefault(decode.region, []).append((d, decode))
    found = []
    for p, prefill in enumerate(prefills):
        prompts_per_s = most_prompts_per_s(spec, prefill, lengths, profile)
        for d, decode in by_region.get(prefill.region, ()):
            if mixes(prefill.markets | decode.markets) or not may_stand_apart(
                spec, prefill, prompts_per_s, decode, lengths
            ):
                continue
            found.append((p, d, link_gb_s(prefill.nodes[0][0], decode.nodes[0][0])))
    return tuple(found)


@lru_cache(maxsize=256)  # a demand that moves mostly leaves the instances as they are
def _combined(
    model: str, lengths: Lengths, built_of: _Building, stretch: float, keep: int
) -> tuple[Combo, ...]:
    """The best combos of these instances, best cost efficiency first."""
    offers = [_offer(model, lengths, ((1, part),)) for part in built_of.alone]
    for p, d in built_of.pairs:
        prefill, decode = built_of.apart[p], built_of.apart[d]
        counts = _best_ratio(prefill, decode)
        offers.append(_offer(model, lengths, ((counts[0], prefill), (counts[1], decode))))
    return tuple(_combo(model, offer.parts, stretch) for offer in best_of_groups(offers, keep))


def _best_ratio(prefill: Part, decode: Part) -> tuple[int, int]:
    """The ratio of counts with the cheapest request: the one whose throughputs match best."""
    prefill_usd, decode_usd = prefill.usd_per_h, decode.usd_per_h
    prefill_rate, decode_rate = prefill.req_per_s, decode.req_per_s
    _, best = min(
        ((p * prefill_usd + d * decode_usd) / min(p * prefill_rate, d * decode_rate), (p, d))
        for p, d in RATIOS
    )
    return best


def _offer(model: str, lengths: Lengths, parts: tuple[tuple[int, Part], ...]) -> Offer:
    members = [members_of(count, part) for count, part in parts]
    usd = [count * part.usd_per_h for count, part in parts]
    req_per_s = _slowest(parts)
    if len(parts) == 1:
        tokens_per_usd = combo_tokens_per_usd(lengths, req_per_s, usd[0])
    else:
        tokens_per_usd = phase_tokens_per_usd(lengths, req_per_s, usd[0], usd[1])
    gpus: dict[str, int] = {}
    for member in (one for instances in members for one in instances):
        gpus[member.pool] = gpus.get(member.pool, 0) + member.gpus * member.count
    nodes = [node for _, part in parts for node in part.nodes]
    return Offer(
        id=name_of(model, members),
        parts=parts,
        group=(parts[0][1].region, frozenset(pool.market for pool, _, _, _ in nodes)),
        gpu_pair=frozenset(slice_.gpu.name for _, slice_, _, _ in nodes),
        gpus=gpus,
        req_per_s=req_per_s,
        usd_per_h=_billed(parts),
        tokens_per_usd=tokens_per_usd,
        usd_per_req=sum(usd) / req_per_s,
    )


def _slowest(parts: Iterable[tuple[int, Part]]) -> float:
    """Requests/s of so many of each part together: those of the slower phase."""
    rates: dict[Phase, float] = {}
    for count, part in parts:
        rates[part.phase] = rates.get(part.phase, 0.0) + count * part.req_per_s
    return min(rates.values())


def _billed(parts: Iterable[tuple[int, Part]]) -> float:
    """USD/h for the GPUs of so many of each part; owned ones cost nothing."""
    usd_per_h = 0.0
    for count, part in parts:
        usd_per_h += count * sum(
            slice_.gpus * pool.price_usd_per_h / pool.per_node for pool, slice_, _, _ in part.nodes
        )
    return usd_per_h


def _combo(model: str, parts: Sequence[tuple[int, Part]], stretch: float) -> Combo:
    names, members = [], []
    for count, part in parts:
        names.append(members_of(count, part))
        in_stage = Counter(stage for _, _, stage, _ in part.nodes)
        members += [
            ComboMember(
                m.phase,
                m.pool,
                m.gpus,
                m.count,
                part.req_per_s / in_stage[m.stage],
                m.stage,
                m.layers,
            )
            for m in names[-1]
        ]
    return Combo(
        id=name_of(model, names),
        model=model,
        region=parts[0][1].region,
        members=tuple(members),
        req_per_s=_slowest(parts),
        usd_per_h=_billed(parts),
        ttft_ms=max(part.ttft_ms for _, part in parts),
        tpot_ms=max(part.tpot_ms for _, part in parts),
        start_s=max(part.start_s for _, part in parts),
        uncertain=any(part.uncertain for _, part in parts),
        meets_slo=stretch == 1.0,
    )
