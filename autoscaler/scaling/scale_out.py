"""Adding capacity: floors, what replaces broken groups, and the reactive rule.

Owns the order of these three and their sizes. Knows nothing of how GPUs are packed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoscaler.demand.backlog import raw_needed_req_per_s, waiting
from autoscaler.demand.observed import ModelDemand
from autoscaler.demand.significance import lower_rate
from autoscaler.demand.windows import Stats
from autoscaler.domain.cluster import Market, Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.explain import reasons
from autoscaler.scaling.reactive import ESTIMATE, Need, is_over, missed, must_wait, need
from autoscaler.scaling.scale_in import is_stale
from autoscaler.scaling.tick import Tick
from autoscaler.scaling.turns import moved
from autoscaler.transitions.groups import Group, Life
from autoscaler.transitions.waves import keep

_LEAST = 1e-6
_RETRY_MS = 60_000
_SAY_AGAIN_MS = 600_000


def scale_out(tick: Tick, service: Service) -> bool:
    """Add to `service` what a floor, a loss or a surge asks for; whether anything was asked."""
    model = service.model
    remembered = tick.models[model]
    groups = tick.counting(model)
    raw = tick.raw_req_per_s(groups)
    planned = raw * service.utilization
    demand = tick.demand(model)
    blocked = tick.now_ms < remembered.blocked_until_ms
    policy = tick.cluster.policy
    wanted = None
    if not blocked:
        wanted = _with_backlog(tick, service, need(demand, planned, policy, tick.now_ms), raw)

    since = remembered.over_since_ms
    if wanted is not None:
        since = min(since, wanted.since_ms) if since else wanted.since_ms
    elif is_over(demand, planned, policy):
        since = since or tick.now_ms
    else:
        since = 0
    tick.update(model, over_since_ms=since)

    if blocked:
        return since > 0
    floor = service.min_instances
    traffic = isinstance(demand.local, Stats) and demand.local.arrivals + demand.local.refused > 0
    short = max(0, max(floor, int(traffic)) - len(groups))
    if short > 0 or remembered.broken_ms:
        target = max(wanted.req_per_s if wanted else 0.0, _surely(demand))
    if remembered.broken_ms and (short > 0 or demand.req_per_s > planned):
        why = f"capacity was lost: {reasons.over(demand.req_per_s, service.utilization, raw)}"
        return _add(tick, service, "replace", max(target, demand.req_per_s), raw, why, short)
    if short > 0:
        why = "its first requests arrived" if not groups and traffic else f"floor of {floor}"
        return _add(tick, service, "scale_out", target, raw, why, short)
    if remembered.broken_ms:
        tick.update(model, broken_ms=0)
    if wanted is None:
        return _for_the_slo(tick, service, raw)
    if not must_wait(
        wanted,
        planned,
        remembered.last_action_ms,
        remembered.last_added_req_per_s,
        policy,
        tick.now_ms,
    ):
        why = reasons.over(wanted.req_per_s, service.utilization, raw)
        _add(tick, service, "scale_out", wanted.req_per_s, raw, why, 0)
    return True


def _with_backlog(tick: Tick, service: Service, wanted: Need | None, raw: float) -> Need | None:
    """`wanted`, or a need of its own, so that what waits now is served within a local window.

    E.g. 2.1 req/s on 1.9 with 60 waiting needs 2.1 + 60 / 120 = 2.6 raw: no test of the rate
    would call 2.1 on 1.9 more than chance, while every request waits half a minute.
    """
    model, drain_s = service.model, tick.cluster.policy.local_window_s
    demand = tick.demand(model)
    if not isinstance(demand.local, Stats) or is_stale(demand):
        return wanted
    ready = [g for g in tick.counting(model) if tick.views[g.name].all_ready]
    combos = [combo for combo in map(tick.combo, ready) if combo is not None]
    in_flight = sum(gateway.in_flight for gateway in demand.speaking)
    waits = waiting(in_flight, combos, tick.lengths(model))
    if not combos or waits <= 0.0:
        return wanted
    rate = max(demand.local.req_per_s, wanted.req_per_s if wanted else 0.0)
    needed = raw_needed_req_per_s(rate, waits, drain_s)
    if needed <= raw:
        return wanted
    target = max(rate, needed * service.utilization)
    if wanted is not None:
        return replace(wanted, req_per_s=target)
    return Need(target, demand.local.covered_s, True, tick.now_ms)


def _for_the_slo(tick: Tick, service: Service, raw: float) -> bool:
    """Add a step where requests miss their SLO although everything has served for a window."""
    model, policy = service.model, tick.cluster.policy
    demand, groups = tick.demand(model), tick.counting(model)
    planned = raw * service.utilization
    if not missed(demand, service.percentile, planned, policy):
        return False
    settled_s = tick.start_s(model) + policy.local_window_s + policy.cooldown_s
    since_ms = max(tick.models[model].last_action_ms, tick.state.started_ms)
    combos = [combo for combo in map(tick.combo, groups) if combo is not None]
    late = tick.now_ms - since_ms < settled_s * 1000
    if late or not all(tick.views[g.name].all_ready for g in groups):
        return True
    if not any(combo.meets_slo for combo in combos):
        return True  # best effort: more of the same would miss as well
    local = demand.local
    assert isinstance(local, Stats)  # noqa: S101 - `missed` says so
    ended = local.completions + local.failures + local.refused
    why = (
        f"{local.attained / ended:.0%} of {ended} requests attain the SLO "
        f"at {reasons.rate(local.req_per_s)} of {reasons.rate(raw)} req/s"
    )
    target = max(local.req_per_s, planned * (1.0 + policy.ratio))
    return _add(tick, service, "scale_out", target, raw, why, 1)


def _surely(demand: ModelDemand) -> float:
    """Requests/s that the local window proves: its first two arrivals are no rate of 2 per s."""
    if not isinstance(demand.local, Stats):
        return 0.0
    return lower_rate(demand.local.arrivals, demand.local.covered_s, ESTIMATE)


def _add(
    tick: Tick, service: Service, kind: str, demand: float, raw: float, why: str, least: int
) -> bool:
    """Add combos for `demand` requests/s beyond `raw` capacity, at least `least` of them."""
    model = service.model
    table = tick.tables.get(model)
    if table is None:
        return True  # asked for already; the next tick tries again
    before_usd = tick.billed_usd_per_h()
    deficit = max(0.0, demand / service.utilization - raw)
    started: list[Group] = []
    revived = _revive(tick, service, deficit, least)
    ceiling = service.max_instances - len(tick.counting(model)) if service.max_instances else 10**6
    while len(started) < ceiling:
        missing = deficit - tick.raw_req_per_s([*revived, *started])
        if missing <= _LEAST and len(started) + len(revived) >= least:
            break
        choice = table.choose(
            max(missing, _LEAST),
            tick.room(),
            _spot_left(tick, service, demand / service.utilization),
        )
        room_left = ceiling - len(started)
        chosen = [c for c, n in choice.counts for _ in range(n)][:room_left]
        new = [tick.start(table.combo(combo_id), service) for combo_id in chosen]
        fresh = [group for group in new if group is not None]
        started += fresh
        if not fresh:
            break
    over_since = tick.models[model].over_since_ms if kind == "scale_out" else 0
    if not started and not revived:
        _cannot(tick, service, why, demand, raw, over_since, ceiling <= 0)
        return True
    change = tuple(sorted(Counter(group.combo_id for group in [*revived, *started]).items()))
    delta_usd = tick.billed_usd_per_h() - before_usd
    added = tick.raw_req_per_s([*revived, *started])
    combos = [combo for combo in map(tick.combo, started) if combo is not None]
    parts = [why, reasons.money(delta_usd)]
    if revived:
        parts.append(f"{len(revived)} on the way out stay")
    if combos:
        parts.append(f"serving in {reasons.duration(max(combo.start_s for combo in combos))}")
    if added < deficit * (1 - 1e-6):
        parts.append(f"still {reasons.rate((deficit - added) * service.utilization)} req/s short")
    if service.mode is not Mode.ACT:
        tick.undo(started)
        _recommend(
            tick, service, kind, "; ".join(parts), demand, raw, delta_usd, over_since, change
        )
        return True
    tick.say(
        model,
        kind,
        "; ".join(parts),
        demand_req_per_s=demand,
        capacity_req_per_s=raw,
        cost_delta_usd_per_h=delta_usd,
        over_since_ms=over_since,
        change=change,
    )
    tick.update(
        model,
        last_action_ms=tick.now_ms,
        last_added_req_per_s=added * service.utilization,
        stable_since_ms=tick.now_ms,
        excess_since_ms=0,
        over_since_ms=0,
        broken_ms=0,
        turns=moved(tick.models[model].turns, "out", tick.now_ms),
    )
    return True


def _revive(tick: Tick, service: Service, deficit: float, least: int) -> list[Group]:
    """Keep groups that were on their way out, as far as they are needed: they serve already."""
    kept: list[Group] = []
    for group in tick.of(service.model):
        if service.mode is not Mode.ACT or group.failed_ms or tick.views[group.name].lost:
            continue
        if tick.raw_req_per_s(kept) >= deficit - _LEAST and len(kept) >= least:
            break
        if group.life in (Life.RETIRING, Life.UNROUTED):
            kept.append(keep(group, tick.now_ms))
            tick.groups[group.name] = kept[-1]
    return kept


def _recommend(
    tick: Tick,
    service: Service,
    kind: str,
    reason: str,
    demand: float,
    raw: float,
    delta_usd: float,
    over_since: int,
    change: tuple[tuple[str, int], ...],
) -> None:
    """Say what would be done; the same thing again only after a while."""
    remembered = tick.models[service.model]
    told_ms = tick.now_ms - remembered.recommended_ms
    tick.update(service.model, blocked_until_ms=tick.now_ms + _RETRY_MS)
    if change == remembered.recommended and told_ms < _SAY_AGAIN_MS:
        return
    tick.say(
        service.model,
        kind,
        reason,
        applied=False,
        demand_req_per_s=demand,
        capacity_req_per_s=raw,
        cost_delta_usd_per_h=delta_usd,
        over_since_ms=over_since,
        change=change,
    )
    tick.update(service.model, recommended=change, recommended_ms=tick.now_ms)


def _cannot(
    tick: Tick, service: Service, why: str, demand: float, raw: float, since: int, full: bool
) -> None:
    """Nothing can be had: say so, and do not try again in every tick."""
    scarce = sorted(tick.scarce_pools())
    what = f"its ceiling of {service.max_instances} is reached" if full else "nothing is free"
    table = tick.tables.get(service.model)
    if table is not None and not table.combos:
        what = "no slice of its pools holds a request of its maximal length"
    elif scarce and not full:
        what += f", {', '.join(scarce)} left alone after failed starts"
    remembered = tick.models[service.model]
    tick.update(service.model, blocked_until_ms=tick.now_ms + _RETRY_MS)
    if remembered.told_ms and tick.now_ms - remembered.told_ms < _SAY_AGAIN_MS:
        return
    tick.update(service.model, told_ms=tick.now_ms)
    tick.say(
        service.model,
        "infeasible",
        f"{why}; {what}",
        applied=False,
        demand_req_per_s=demand,
        capacity_req_per_s=raw,
        over_since_ms=since,
    )


def _spot_left(tick: Tick, service: Service, wanted_raw_req_per_s: float) -> float:
    """Raw capacity that may still go on spot: the service's share of what is wanted, less what is
    there. A floor without traffic may not be on spot only."""
    markets = {pool.id: pool.market for pool in tick.cluster.pools}

    def on_spot(combo: Combo) -> bool:
        return any(markets.get(member.pool) is Market.SPOT for member in combo.members)

    combos = [tick.combo(group) for group in tick.counting(service.model)]
    have = sum(c.req_per_s for c in combos if c is not None and on_spot(c))
    return max(0.0, service.spot_share * wanted_raw_req_per_s - have)
