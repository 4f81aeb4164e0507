"""When and what to take away: lasting excess, positive evidence, bounded steps.

Owns the guards of scale-in and the choice of what goes. Knows nothing of drains and routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.demand.observed import ModelDemand
from autoscaler.demand.windows import NoData, Stats
from autoscaler.domain.cluster import Policy, Service

STALE_MS = 2_000
COVERED = 0.9
RISING = 1.25


@dataclass(frozen=True, slots=True)
class Removable:
    """A running combo that might go. req_per_s: planned (utilization applied)."""

    group: str
    req_per_s: float
    usd_per_h: float


def objection(
    demand: ModelDemand,
    service: Service,
    policy: Policy,
    route_generation: int,
    in_flight: int,
) -> str:
    """Why excess may not be believed now; empty where nothing speaks against it.

    Not knowing is no evidence: gaps, half-seen windows and zeros that no gateway confirms with the
    current routes. What was seen before such a time does not count towards lasting excess.
    in_flight: requests held by the model's instances, a second witness against a false zero.
    """
    local = demand.local
    if isinstance(local, NoData):
        return "no telemetry"
    if local.covered_s < COVERED * policy.local_window_s:
        return f"only {local.covered_s} of {policy.local_window_s} s were seen"
    if local.arrivals == 0:
        if in_flight:
            return f"no arrivals, yet {in_flight} requests in flight"
        if not any(seen.route_generation >= route_generation for seen in demand.speaking):
            return "no arrivals, and no gateway confirms its routes"
    return ""


def strain(demand: ModelDemand, service: Service) -> str:
    """Why excess that is believed may not be acted upon yet; empty where nothing does.

    Missed SLOs and rising latency forbid taking anything away while they last. They say nothing
    against the excess itself: after a surge the last misses stay in the window for its length,
    while demand may have been low all that time.
    """
    local, long = demand.local, demand.long
    if isinstance(local, NoData):
        return ""
    ended = local.completions + local.failures + local.refused
    if ended and local.attained < service.percentile * ended:
        return f"{local.attained} of {ended} requests attain the SLO"
    if isinstance(long, Stats):
        for what, now_ms, before_ms, limit_ms in (
            ("TTFT", local.ttft_p95_ms, long.ttft_p95_ms, service.slo.ttft_ms),
            ("TPOT", local.tpot_p95_ms, long.tpot_p95_ms, service.slo.tpot_ms),
        ):
            if now_ms is None or before_ms is None:
                continue
            if now_ms > RISING * before_ms and now_ms > 0.5 * limit_ms:
                return f"{what} p95 is rising: {before_ms:.0f} to {now_ms:.0f} ms"
    return ""


def is_stale(demand: ModelDemand) -> bool:
    """Whether the last second or two are missing: nothing is taken away in such a tick."""
    return isinstance(demand.local, NoData) or demand.local.age_ms >= STALE_MS


def is_excess(demand_req_per_s: float, planned_req_per_s: float, policy: Policy) -> bool:
    """Whether planned capacity exceeds demand by more than `ratio` of itself (Algorithm 1)."""
    return planned_req_per_s - demand_req_per_s > policy.ratio * planned_req_per_s


def choose(
    running: Sequence[Removable], excess_req_per_s: float, floor: int, max_disruption: float
) -> tuple[Removable, ...]:
    """The combos that come nearest to `excess_req_per_s` without going beyond it.

    At most `max_disruption` of the running capacity goes, but one combo may always; `floor`
    combos stay. Largest first, those that cost something before those that cost nothing.
    """
    total = sum(combo.req_per_s for combo in running)
    bound = min(excess_req_per_s, max_disruption * total)
    order = sorted(running, key=lambda c: (c.usd_per_h <= 0.0, -c.req_per_s, -c.usd_per_h, c.group))
    chosen: list[Removable] = []
    taken = 0.0
    for combo in order:
        if len(running) - len(chosen) <= floor:
            break
        if taken + combo.req_per_s <= bound * (1 + 1e-9):
            chosen.append(combo)
            taken += combo.req_per_s
    if not chosen and len(running) > floor:
        fitting = (c for c in order if c.req_per_s <= excess_req_per_s * (1 + 1e-9))
        single = next(fitting, None)
        if single is not None:
            chosen.append(single)
    return tuple(chosen)
