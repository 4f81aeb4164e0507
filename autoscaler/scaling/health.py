"""What went wrong by itself: broken groups, silent models; and the next step of waves.

Owns noticing. What is added in place of what broke is for `scale_out`.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.demand.windows import NoData
from autoscaler.domain.cluster import Mode, Service
from autoscaler.explain import reasons
from autoscaler.scaling.scale_in import is_stale
from autoscaler.scaling.tick import Tick
from autoscaler.transitions.groups import Life
from autoscaler.transitions.waves import WaveInputs, retire, step

_SAY_SILENCE_MS = 10_000


def notice_broken(tick: Tick) -> None:
    """Mark groups that will not come up, leave their pools alone for a while, let them go.

    A broken group no longer counts as planned capacity. It retires at once; what of it still
    serves goes on until others cover it (see `waves`).
    """
    for group in list(tick.groups.values()):
        view = tick.views[group.name]
        if view.lost and group.counts and group.model in tick.models:
            tick.update(group.model, broken_ms=tick.now_ms)
        if not view.broken or not group.counts or view.lost:
            continue
        service = tick.service(group.model)
        if service is None or service.mode is not Mode.ACT:
            continue
        wait_s = tick.mark_scarce(view.broken_pool)
        tick.groups[group.name] = retire(replace(group, failed_ms=tick.now_ms), tick.now_ms)
        tick.update(group.model, broken_ms=tick.now_ms)
        tick.say(
            group.model,
            "hold",
            f"{group.name}: {view.broken}; {view.broken_pool} left alone for "
            f"{reasons.duration(wait_s).removeprefix('~')}",
            change=((group.combo_id, -1),),
        )


def notice_silence(tick: Tick, service: Service) -> None:
    """Mark a model whose telemetry stopped; say so once it lasts, and once it is back."""
    demand, remembered = tick.demand(service.model), tick.models[service.model]
    silent = is_stale(demand)
    if isinstance(demand.local, NoData):
        last_ms = demand.local.last_ms
        age_ms = tick.now_ms - last_ms if last_ms is not None else 0
    else:
        age_ms = demand.local.age_ms
    said = remembered.said_no_data and silent
    if silent and not said and age_ms >= _SAY_SILENCE_MS:
        tick.say(
            service.model,
            "hold",
            f"no telemetry for {age_ms / 1000:.0f} s: nothing is taken away",
            demand_req_per_s=demand.req_per_s,
            capacity_req_per_s=tick.raw_req_per_s(tick.counting(service.model)),
        )
        said = True
    if silent != remembered.no_data or said != remembered.said_no_data:
        tick.update(service.model, no_data=silent, said_no_data=said)


def move_waves(tick: Tick) -> None:
    """One step of every model's waves."""
    for service in tick.cluster.services:
        groups = tick.of(service.model)
        if service.mode is not Mode.ACT or all(g.life is Life.ACTIVE for g in groups):
            continue
        demand = tick.demand(service.model)
        moved = step(
            groups,
            WaveInputs(
                now_ms=tick.now_ms,
                demand_req_per_s=demand.req_per_s / service.utilization,
                ready_req_per_s={g.name: tick.ready_req_per_s(g) for g in groups},
                views=tick.views,
                gateways=demand.speaking,
                fleet=tick.fleet,
                assignments=tick.state.assignments,
                floor=service.min_instances,
                drain_timeout_ms=int(tick.cluster.policy.drain_timeout_s * 1000),
            ),
        )
        for group in groups:
            del tick.groups[group.name]
        tick.groups.update({group.name: group for group in moved})
