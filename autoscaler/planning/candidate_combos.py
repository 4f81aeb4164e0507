"""Candidate combos of a model: aggregated instances, and matched prefill and decode instances.

Candidates do not depend on the running fleet; the planner chooses among them. Source: Cauchy sec.
3.3.1 (ratios 1:1 to 2:6, one direction per GPU pair, ranking by CE), extended by slices, regions
and markets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.mode_hook import ModeHook
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.domain.token_times import TokenTimes, pooled
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import POISSON_ARRIVALS, Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.planning.combo_names import format_combo_id, parse_instances
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd, phase_tokens_per_usd
from autoscaler.planning.instance_options import (
    InstanceOption,
    gpu_usd_per_h,
    instance_options,
    members_of,
    mixes_spot,
    option_of_members,
    resolve_slice,
    with_kv_link,
)
from autoscaler.planning.network import kv_transfer_keeps_up, link_gb_s, most_prompts_per_s
from autoscaler.planning.ranking import CandidateCombo, best_per_group

RATIOS = tuple((p, d) for p in (1, 2) for d in range(1, 7))
KEEP_PER_GROUP = 6

CANDIDATE_CELLS: ModeHook[[ComponentGraph, Sequence[Pool]], tuple[Combo, ...]] = ModeHook(
    "components"
)
"""Candidate cells of a model of components, most requests per USD first."""
EVALUATE_CELL: ModeHook[[str, ComponentGraph, Iterable[Pool]], Combo] = ModeHook("components")
"""The cell with a given id. Raises InvalidValue if no such cell is possible."""


def candidate_combos(
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    keep: int = KEEP_PER_GROUP,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Combo, ...]:
    """Candidate combos of `service` at `lengths`, best cost efficiency first.

    arrivals: arrival process of the whole model, which the chosen combos share. keep: number of
    combos that each ranking keeps per region and set of markets.

    Aggregated combos use every slice that holds the weights and one request of maximal length. A
    pair of prefill and decode instances lies within one region. Each instance uses a slice or, if
    the engine declares pipelines, a combination of nodes from the template library. Per region and
    set of markets, the best few combos by cost efficiency (eq. 14-15), by price of a request and by
    size remain. The result is empty if no slice has enough memory, or if no slice meets the SLO.
    For a model of components the candidates are its cells.
    """
    pools = usable_pools(cluster, service)
    if service.graph is not None:
        return CANDIDATE_CELLS(service.graph, pools)
    return _ranked_candidates(service, lengths, pools, profile, keep, arrivals)


@PLAN_CACHES.by_value(
    1024
)  # the arguments stay equal from plan to plan until a measurement changes
def _ranked_candidates(
    service: Service,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    keep: int,
    arrivals: Arrivals,
) -> tuple[Combo, ...]:
    options = _candidate_instances(service, lengths, pools, profile, 1.0, arrivals)
    return _ranked_combos(service.model, lengths, options, 1.0, keep)


def nearest_combos(
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    keep: int = KEEP_PER_GROUP,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> tuple[Combo, ...]:
    """The combos whose latencies come nearest to the SLO (meets_slo False), for a model whose SLO
    no combo meets."""
    if service.graph is not None:
        return ()
    pools = usable_pools(cluster, service)
    found: tuple[Combo, ...] = ()
    stretch = 1.5
    while not found and stretch < 1e4:
        options = _candidate_instances(service, lengths, pools, profile, stretch, arrivals)
        found = _ranked_combos(service.model, lengths, options, stretch, keep)
        stretch *= 1.5
    return found


def evaluate_combo(
    combo_id: str,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals = POISSON_ARRIVALS,
) -> Combo:
    """The combo with id `combo_id`, evaluated at `lengths`, whether or not it is a candidate now.

    Running instances may no longer be candidates. If the combo no longer meets the SLO, its rate is
    the best-effort rate and meets_slo is False. Raises InvalidValue if no declared hardware matches
    the id.
    """
    if service.graph is not None:
        found = EVALUATE_CELL(combo_id, service.graph, cluster.pools)
    else:
        found = _evaluated(combo_id, cluster, service, lengths, profile, arrivals)
    if found.id != combo_id:
        raise InvalidValue("combo", combo_id, f"what it is called now: {found.id}")
    return found


def _evaluated(
    combo_id: str,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals,
) -> Combo:
    model, instances = parse_instances(combo_id)
    if model != service.model:
        raise InvalidValue("combo", combo_id, f"a combo of model {service.model}")
    pools = {pool.id: pool for pool in cluster.pools}
    named = [
        [(member, resolve_slice(pools, member.pool, member.gpus, combo_id)) for member in members]
        for members in instances
    ]
    between = [pool for members in named for _, (pool, _) in members]
    over_gb_s = min(link_gb_s(one, other) for one in between for other in between)
    stretch = 1.0
    while stretch < 1e4:
        parts = [
            option_of_members(service, members, lengths, profile, stretch, arrivals, over_gb_s)
            for members in named
        ]
        if all(part.req_per_s > 0.0 for _, part in parts):
            return _combo(service.model, parts, stretch)
        stretch *= 1.5
    raise InvalidValue("combo", combo_id, f"slices that hold model {service.model}")


def usable_pools(cluster: Cluster, service: Service) -> tuple[Pool, ...]:
    """Pools that `service` may use: pools in its regions and markets and, if it has scale targets,
    only pools with a target.

    A service with scale targets gets only replica counts, because an external scaler starts its
    instances.
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
    """Price of `combo` for ranking. Owned GPUs have a small nominal price, so the result is never
    0.

    pools: by pool id.
    """
    return sum(gpus * gpu_usd_per_h(pools[pool]) for pool, gpus in combo.gpus_by_pool().items())


@dataclass(frozen=True, slots=True)
class _CandidateInstances:
    """The instances of which combos are built.

    aggregated: serve both phases. disaggregated: serve one phase. pairs: indices in `disaggregated`
    of a prefill instance and a decode instance whose network is fast enough for the pair.
    """

    aggregated: tuple[InstanceOption, ...]
    disaggregated: tuple[InstanceOption, ...]
    pairs: tuple[tuple[int, int], ...]


def _candidate_instances(
    service: Service,
    lengths: Lengths,
    pools: tuple[Pool, ...],
    profile: Profile,
    stretch: float,
    arrivals: Arrivals,
) -> _CandidateInstances:
    def instances(phase: Phase) -> tuple[InstanceOption, ...]:
        return tuple(instance_options(service, phase, lengths, pools, profile, stretch, arrivals))

    alone = instances(Phase.AGGREGATED)
    # An external scaler keeps a count of equal replicas; it cannot keep matched pairs.
    if not service.disaggregate or service.scale_targets:
        return _CandidateInstances(alone, (), ())
    sides = instances(Phase.PREFILL), instances(Phase.DECODE)
    apart: dict[tuple[Phase, int, float], int] = {}
    parts: list[InstanceOption] = []

    def place(side: tuple[InstanceOption, ...], index: int, over_gb_s: float) -> int:
        key = side[index].phase, index, over_gb_s
        if key not in apart:
            apart[key] = len(parts)
            made = with_kv_link(
                service, side[index], over_gb_s, lengths, profile, stretch, arrivals
            )
            parts.append(made)
        return apart[key]

    together = _feasible_pairs(service.architecture, lengths, profile, *sides)
    placed = [
        (place(sides[0], p, over_gb_s), place(sides[1], d, over_gb_s))
        for p, d, over_gb_s in together
    ]
    pairs = tuple(pair for pair in placed if all(parts[i].req_per_s > 0.0 for i in pair))
    return _CandidateInstances(alone, tuple(parts), pairs)


@PLAN_CACHES.by_value(256)
def _feasible_pairs(
    spec: ModelSpec,
    lengths: Lengths,
    profile: Profile,
    prefills: tuple[InstanceOption, ...],
    decodes: tuple[InstanceOption, ...],
) -> tuple[tuple[int, int, float], ...]:
    """Pairs of a prefill and a decode instance with a fast enough network: both indices, and the
    bandwidth between the two in 1e9 bytes/s."""
    by_region: dict[str, list[tuple[int, InstanceOption]]] = {}
    for d, decode in enumerate(decodes):
        by_region.setdefault(decode.region, []).append((d, decode))
    found = []
    gb_per_prompt = lengths.input_tokens * spec.kv_bytes_per_token / 1e9
    for p, prefill in enumerate(prefills):
        source, node, _, _ = prefill.nodes[0]
        prompts_per_s = prefill.req_per_s
        if len(prefill.nodes) == 1:
            prompts_per_s = most_prompts_per_s(spec, node, lengths, profile)
        for d, decode in by_region.get(prefill.region, ()):
            sink, sink_node, _, _ = decode.nodes[0]
            if mixes_spot(prefill.markets | decode.markets) or not kv_transfer_keeps_up(
                gb_per_prompt, (source, node, prompts_per_s), (sink, sink_node, decode.req_per_s)
            ):
                continue
            found.append((p, d, link_gb_s(source, sink)))
    return tuple(found)


@PLAN_CACHES.by_value(256)  # a change in demand usually leaves the instances unchanged
def _ranked_combos(
    model: str, lengths: Lengths, options: _CandidateInstances, stretch: float, keep: int
) -> tuple[Combo, ...]:
    """The best combos of the instances in `options`, best cost efficiency first."""
    offers = [_offer(model, lengths, ((1, part),)) for part in options.aggregated]
    for p, d in options.pairs:
        prefill, decode = options.disaggregated[p], options.disaggregated[d]
        counts = _best_ratio(prefill, decode)
        offers.append(_offer(model, lengths, ((counts[0], prefill), (counts[1], decode))))
    return tuple(_combo(model, offer.options, stretch) for offer in best_per_group(offers, keep))


def _best_ratio(prefill: InstanceOption, decode: InstanceOption) -> tuple[int, int]:
    """The (prefill, decode) counts with the lowest cost per request, i.e. whose throughputs match
    best."""
    prefill_usd, decode_usd = prefill.usd_per_h, decode.usd_per_h
    prefill_rate, decode_rate = prefill.req_per_s, decode.req_per_s
    _, best = min(
        ((p * prefill_usd + d * decode_usd) / min(p * prefill_rate, d * decode_rate), (p, d))
        for p, d in RATIOS
    )
    return best


def _offer(
    model: str, lengths: Lengths, parts: tuple[tuple[int, InstanceOption], ...]
) -> CandidateCombo:
    members = [members_of(count, part) for count, part in parts]
    usd = [count * part.usd_per_h for count, part in parts]
    req_per_s = _joint_req_per_s(parts)
    if len(parts) == 1:
        tokens_per_usd = combo_tokens_per_usd(lengths, req_per_s, usd[0])
    else:
        tokens_per_usd = phase_tokens_per_usd(lengths, req_per_s, usd[0], usd[1])
    gpus: dict[str, int] = {}
    for member in (one for instances in members for one in instances):
        gpus[member.pool] = gpus.get(member.pool, 0) + member.gpus * member.count
    nodes = [node for _, part in parts for node in part.nodes]
    return CandidateCombo(
        id=format_combo_id(model, members),
        options=parts,
        group=(parts[0][1].region, frozenset(pool.market for pool, _, _, _ in nodes)),
        gpu_pair=frozenset(slice_.gpu.name for _, slice_, _, _ in nodes),
        gpus=gpus,
        req_per_s=req_per_s,
        usd_per_h=_billed_usd_per_h(parts),
        tokens_per_usd=tokens_per_usd,
        usd_per_req=sum(usd) / req_per_s,
    )


def _joint_req_per_s(parts: Iterable[tuple[int, InstanceOption]]) -> float:
    """Requests/s of a combo of these (count, instance) parts: the rate of the slower phase."""
    rates: dict[Phase, float] = {}
    for count, part in parts:
        rates[part.phase] = rates.get(part.phase, 0.0) + count * part.req_per_s
    return min(rates.values())


def _billed_usd_per_h(parts: Iterable[tuple[int, InstanceOption]]) -> float:
    """USD/h for the GPUs of these (count, instance) parts; owned GPUs are free."""
    usd_per_h = 0.0
    for count, part in parts:
        usd_per_h += count * sum(
            slice_.gpus * pool.price_usd_per_h / pool.per_node for pool, slice_, _, _ in part.nodes
        )
    return usd_per_h


def _combo(model: str, parts: Sequence[tuple[int, InstanceOption]], stretch: float) -> Combo:
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
        id=format_combo_id(model, names),
        model=model,
        region=parts[0][1].region,
        members=tuple(members),
        req_per_s=_joint_req_per_s(parts),
        usd_per_h=_billed_usd_per_h(parts),
        ttft_ms=max(part.ttft_ms for _, part in parts),
        tpot_ms=max(part.tpot_ms for _, part in parts),
        start_s=max(part.start_s for _, part in parts),
        uncertain=any(part.uncertain for _, part in parts),
        meets_slo=stretch == 1.0,
        token_times=_token_times(parts),
    )


def _token_times(parts: Sequence[tuple[int, InstanceOption]]) -> TokenTimes | None:
    """The token times of all decoding instances together; None if one of them has none. If the
    combo prefills fewer requests than they could decode, its load is theirs."""
    decoding = [(count, part) for count, part in parts if part.phase is not Phase.PREFILL]
    decoded_per_s = sum(count * part.req_per_s for count, part in decoding)
    share = min(1.0, _joint_req_per_s(parts) / decoded_per_s) if decoded_per_s > 0.0 else 1.0
    single = [
        (share * part.req_per_s, part.token_times.at_load(share))
        for count, part in decoding
        for _ in range(count)
        if part.token_times is not None
    ]
    return pooled(single) if len(single) == sum(count for count, _ in decoding) else None
