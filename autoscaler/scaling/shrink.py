"""Taking capacity away when excess lasts: the timer around `scale_in`.

Owns how long excess has lasted and when it counts. Knows nothing of drains.
"""

from __future__ import annotations

from collections import Counter

from autoscaler.demand.peaks import highest, with_rate
from autoscaler.demand.windows import Stats
from autoscaler.domain.cluster import Mode, Service
from autoscaler.explain import reasons
from autoscaler.scaling.scale_in import Removable, choose, is_excess, is_stale, objection, strain
from autoscaler.scaling.tick import Tick
from autoscaler.scaling.turns import may_go_in, moved
from autoscaler.transitions.groups import Life
from autoscaler.transitions.waves import retire

_SAY_AGAIN_MS = 600_000


def doubt(tick: Tick, service: Service) -> str:
    """Why nothing of `service` may be taken away now; empty if it may."""
    return unseen(tick, service) or strain(tick.demand(service.model), service)


def unseen(tick: Tick, service: Service) -> str:
    """Why it is not known whether there is excess; empty if it is."""
    policy = tick.cluster.policy
    if tick.now_ms - tick.state.started_ms < policy.local_window_s * 1000:
        return "no full window was seen since the start"
    routes = tick.state.routes.get(service.model)
    placed = [p.instance for group in tick.of(service.model) for p in group.placed]
    in_flight = sum(
        tick.fleet.instances[name].in_flight for name in placed if name in tick.fleet.instances
    )
    return objection(
        tick.demand(service.model), service, policy, routes.generation if routes else 0, in_flight
    )


def shrink(tick: Tick, service: Service) -> None:
    """Retire what is in excess of `service`, if it has been for long enough."""
    model = service.model
    demand = tick.demand(model)
    if is_stale(demand):
        return  # hold: neither evidence for nor against
    groups = tick.counting(model)
    moving = any(g.life is Life.RETIRING for g in tick.of(model))
    raw = tick.raw_req_per_s(groups)
    planned = raw * service.utilization
    starting = not all(tick.views[g.name].all_ready for g in groups)
    assert isinstance(demand.local, Stats)  # noqa: S101 - is_stale says so
    rate = demand.local.req_per_s
    excess = is_excess(rate, planned, tick.cluster.policy)
    if not groups or moving or starting or not excess or unseen(tick, service):
        tick.update(model, excess_since_ms=0)
        return
    remembered = tick.models[model]
    since = remembered.excess_since_ms or tick.now_ms
    lasting_s = max(service.scale_in_after_s, 2.0 * tick.start_s(model))
    peaks = with_rate(remembered.peaks, tick.now_ms, rate, lasting_s)
    tick.update(model, excess_since_ms=since, peaks=peaks)
    if tick.now_ms - since < lasting_s * 1000 or not may_go_in(remembered.turns, tick.now_ms):
        return
    if strain(demand, service):
        return
    peak = highest(peaks)
    running = []
    for group in groups:
        combo = tick.combo(group)
        if combo is not None:
            running.append(
                Removable(group.name, combo.req_per_s * service.utilization, combo.usd_per_h)
            )
    floor = max(service.min_instances, int(peak > 0.0))
    chosen = choose(running, planned - peak, floor, service.max_disruption)
    if not chosen:
        return  # too much for what is in excess: the peak may yet slide out of the period
    tick.update(model, excess_since_ms=tick.now_ms)
    names = [combo.group for combo in chosen]
    change = tuple(sorted(Counter(tick.groups[n].combo_id for n in names).items()))
    change = tuple((combo_id, -count) for combo_id, count in change)
    delta_usd = tick.billed_usd_per_h(without=names) - tick.billed_usd_per_h()
    why = reasons.under(peak, service.utilization, raw, (tick.now_ms - since) / 1000)
    acts = service.mode is Mode.ACT
    lately = tick.now_ms - remembered.recommended_ms < _SAY_AGAIN_MS
    if not acts and lately and change == remembered.recommended:
        return
    tick.say(
        model,
        "scale_in",
        f"{why}; {reasons.money(delta_usd)}",
        applied=acts,
        demand_req_per_s=peak,
        capacity_req_per_s=raw,
        cost_delta_usd_per_h=delta_usd,
        change=change,
    )
    if not acts:
        tick.update(model, recommended=change, recommended_ms=tick.now_ms)
        return
    for name in names:
        tick.groups[name] = retire(tick.groups[name], tick.now_ms)
    tick.update(
        model,
        last_action_ms=tick.now_ms,
        last_added_req_per_s=0.0,
        stable_since_ms=tick.now_ms,
        turns=moved(remembered.turns, "in", tick.now_ms),
    )
