"""Candidate combos of a model: which slices could serve it, alone or as prefill and decode.

Owns the enumeration and the names of combos. Knows no demand and no fleet: what is
chosen of the candidates is for the ILP, the tables and the planner.
Source: Cauchy sec. 3.3.1 (ratios 1:1 to 2:6, one direction per GPU pair, ranking by CE), with our
slices, regions and markets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.slices import SLICE_SIZES, NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd, phase_tokens_per_usd
from autoscaler.planning.instances import Instance, instance
from autoscaler.planning.ranking import Offer, best_of_groups

RATIOS = tuple((p, d) for p in (1, 2) for d in range(1, 7))
KEEP_PER_GROUP = 6
# Owned GPUs cost nothing at the margin, yet some order among them is wanted: fewer and smaller
# GPUs first. A thousandth of a USD per 100 TFLOPS and hour never outweighs a real price.
_OWNED_USD_PER_TFLOPS_H = 1e-5


def candidate_combos(
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    keep: int = KEEP_PER_GROUP,
) -> tuple[Combo, ...]:
    """Combos worth considering for `service` at `lengths`, best cost efficiency first.

    Aggregated ones on every slice that holds the weights and one request of maximal length; pairs
    of prefill and decode instances within a region. Per region and set of markets the best few by
    cost efficiency (eq. 14-15), by price of a request and by size stay. Only when nothing meets
    the SLO are best-effort combos returned (meets_slo False); empty when nothing fits in memory.
    """
    pools = usable_pools(cluster, service)
    strict = _offers(service, lengths, pools, profile, 1.0)
    found = best_of_groups(strict, keep)
    stretch = 1.5
    while not found and stretch < 1e4:
        found = best_of_groups(_offers(service, lengths, pools, profile, stretch), keep)
        stretch *= 1.5
    return found


def combo_named(
    combo_id: str, cluster: Cluster, service: Service, lengths: Lengths, profile: Profile
) -> Combo:
    """The combo called `combo_id`, evaluated at `lengths`, whether or not it is a candidate now.

    For instances that run already: their combo may have left the candidates. Where it cannot meet
    the SLO any more its best-effort rate counts (meets_slo False).
    """
    model, parts = parse_combo_id(combo_id)
    if model != service.model:
        raise InvalidValue("combo", combo_id, f"a combo of model {service.model}")
    pools = {pool.id: pool for pool in cluster.pools}
    stretch = 1.0
    while stretch < 1e4:
        members = [
            (count, _slice_in(pools, pool, gpus, combo_id), phase)
            for phase, gpus, pool, count in parts
        ]
        offers = [
            (count, pool, instance(service, slice_, phase, lengths, profile, stretch))
            for count, (pool, slice_), phase in members
        ]
        if all(offer.req_per_s > 0.0 for _, _, offer in offers):
            return _combo(service, offers, stretch)
        stretch *= 1.5
    raise InvalidValue("combo", combo_id, f"slices that hold model {service.model}")


def combo_id(model: str, members: Iterable[tuple[Phase, int, str, int]]) -> str:
    """Name of a combo of (phase, GPUs, pool id, count), e.g. "chat:p4@us/h100/owned+2d4@..."."""
    parts = [
        f"{count if count > 1 else ''}{phase.value[0]}{gpus}@{pool}"
        for phase, gpus, pool, count in members
    ]
    return f"{model}:{'+'.join(parts)}"


def parse_combo_id(name: str) -> tuple[str, tuple[tuple[Phase, int, str, int], ...]]:
    """Model and (phase, GPUs, pool id, count) of each member; InvalidValue if it is no such name.

    Models may hold colons and slashes, pool names neither colons nor plus signs.
    """
    allowed = 'a combo such as "chat:p4@us-east/h100/owned+2d4@us-east/h100/owned"'
    model, colon, body = name.rpartition(":")
    members = []
    for part in body.split("+"):
        head, at, pool = part.partition("@")
        count_text = head.rstrip("0123456789")
        gpus_text = head[len(count_text) :]
        letter = count_text[-1:]
        phase = next((p for p in Phase if p.value[0] == letter), None)
        count = count_text[:-1] or "1"
        if not at or not pool or phase is None or not count.isdigit() or not gpus_text:
            raise InvalidValue("combo", name, allowed)
        members.append((phase, int(gpus_text), pool, int(count)))
    if not colon or not model or not members:
        raise InvalidValue("combo", name, allowed)
    return model, tuple(members)


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


def gpu_usd_per_h(pool: Pool) -> float:
    """Price of one GPU of `pool` for ranking: its share of the node; owned: a nominal trifle."""
    if pool.price_usd_per_h > 0.0:
        return pool.price_usd_per_h / pool.per_node
    return pool.gpu.bf16_tflops * _OWNED_USD_PER_TFLOPS_H


def ranking_usd_per_h(combo: Combo, pools: Mapping[str, Pool]) -> float:
    """Price of `combo` with owned GPUs at their nominal trifle: never 0, so that it can divide.

    pools: by their ids.
    """
    return sum(gpus * gpu_usd_per_h(pools[pool]) for pool, gpus in combo.gpus_by_pool().items())


def _offers(
    service: Service, lengths: Lengths, pools: tuple[Pool, ...], profile: Profile, stretch: float
) -> list[Offer]:
    slices = [
        (pool, NodeSlice(pool.gpu, gpus))
        for pool in pools
        for gpus in SLICE_SIZES
        if gpus <= pool.per_node
    ]
    offers = []
    by_phase: dict[Phase, list[tuple[Pool, Instance]]] = {phase: [] for phase in Phase}
    for phase in Phase:
        if phase is not Phase.AGGREGATED and service.scale_targets:
            continue  # an external scaler keeps a count of equal replicas, not matched pairs
        for pool, slice_ in slices:
            made = instance(service, slice_, phase, lengths, profile, stretch)
            if made.req_per_s > 0.0:
                by_phase[phase].append((pool, made))
    for pool, made in by_phase[Phase.AGGREGATED]:
        offers.append(_offer(service, lengths, [(1, pool, made)], stretch))
    for prefill_pool, prefill in by_phase[Phase.PREFILL]:
        for decode_pool, decode in by_phase[Phase.DECODE]:
            if prefill_pool.region == decode_pool.region and not _mixes(prefill_pool, decode_pool):
                pair = (prefill_pool, prefill), (decode_pool, decode)
                offers.append(_best_ratio(service, lengths, pair, stretch))
    return offers


def _mixes(one: Pool, other: Pool) -> bool:
    """On-demand with spot: such a combo is lost with its spot half, so it would be paid in vain."""
    return {one.market, other.market} == {Market.ON_DEMAND, Market.SPOT}


def _best_ratio(
    service: Service,
    lengths: Lengths,
    pair: tuple[tuple[Pool, Instance], tuple[Pool, Instance]],
    stretch: float,
) -> Offer:
    """The ratio of counts with the cheapest request: the one whose throughputs match best."""
    (prefill_pool, prefill), (decode_pool, decode) = pair
    prefill_usd = prefill.slice.gpus * gpu_usd_per_h(prefill_pool)
    decode_usd = decode.slice.gpus * gpu_usd_per_h(decode_pool)
    p, d = min(
        RATIOS,
        key=lambda counts: (
            (counts[0] * prefill_usd + counts[1] * decode_usd)
            / min(counts[0] * prefill.req_per_s, counts[1] * decode.req_per_s),
            counts,
        ),
    )
    return _offer(service, lengths, [(p, prefill_pool, prefill), (d, decode_pool, decode)], stretch)


def _offer(
    service: Service, lengths: Lengths, members: list[tuple[int, Pool, Instance]], stretch: float
) -> Offer:
    combo = _combo(service, members, stretch)
    usd = [count * made.slice.gpus * gpu_usd_per_h(pool) for count, pool, made in members]
    if len(members) == 1:
        tokens_per_usd = combo_tokens_per_usd(lengths, combo.req_per_s, usd[0])
    else:
        tokens_per_usd = phase_tokens_per_usd(lengths, combo.req_per_s, usd[0], usd[1])
    return Offer(
        combo=combo,
        group=(combo.region, frozenset(pool.market for _, pool, _ in members)),
        gpu_pair=frozenset(made.slice.gpu.name for _, _, made in members),
        tokens_per_usd=tokens_per_usd,
        usd_per_req=sum(usd) / combo.req_per_s,
    )


def _combo(service: Service, members: list[tuple[int, Pool, Instance]], stretch: float) -> Combo:
    rates: dict[Phase, float] = {}
    for count, _, made in members:
        rates[made.phase] = rates.get(made.phase, 0.0) + count * made.req_per_s
    spec = [(made.phase, made.slice.gpus, pool.id, count) for count, pool, made in members]
    return Combo(
        id=combo_id(service.model, spec),
        model=service.model,
        region=members[0][1].region,
        members=tuple(
            ComboMember(made.phase, pool.id, made.slice.gpus, count, made.req_per_s)
            for count, pool, made in members
        ),
        req_per_s=min(rates.values()),
        usd_per_h=sum(
            count * made.slice.gpus * pool.price_usd_per_h / pool.per_node
            for count, pool, made in members
        ),
        ttft_ms=max(made.ttft_ms for _, _, made in members),
        tpot_ms=max(made.tpot_ms for _, _, made in members),
        start_s=max(made.start_s for _, _, made in members),
        uncertain=any(made.uncertain for _, _, made in members),
        meets_slo=stretch == 1.0,
    )


def _slice_in(
    pools: dict[str, Pool], pool_id: str, gpus: int, combo_id: str
) -> tuple[Pool, NodeSlice]:
    pool = pools.get(pool_id)
    if pool is None:
        raise InvalidValue(f"combo {combo_id}: pool", pool_id, " or ".join(sorted(pools)))
    return pool, NodeSlice(pool.gpu, gpus)
