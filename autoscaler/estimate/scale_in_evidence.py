"""What is not known of demand, said as reasons: why excess may not be believed or acted upon.

Owns the guards that telemetry puts on scale-in. Knows nothing of what would be removed. Reasons
are given without "scale-in paused: ", which `paused` puts before them.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Policy, Service
from autoscaler.estimate.model_demand import SILENT_MS, ModelDemand
from autoscaler.estimate.windows import GatewaySeen, NoData, Stats

STALE_MS = 2_000
COVERED = 0.9
RISING = 1.25
_ENDED_S = 10


def paused(reason: str) -> str:
    """The reason as a sentence for people; empty for none."""
    return f"scale-in paused: {reason}" if reason else ""


def objection(
    demand: ModelDemand, policy: Policy, route_generation: int = 0, in_flight: int = 0
) -> str:
    """Why excess may not be believed now; empty if nothing speaks against it.

    Not knowing is no evidence. Time with an objection does not count towards lasting excess.
    route_generation: what a gateway must confirm before its zero counts. in_flight: requests held
    by the model's instances, a second witness against a false zero.
    """
    local = demand.local
    if isinstance(local, NoData):
        return "no telemetry"
    if local.covered_s < COVERED * policy.local_window_s:
        return f"telemetry covers only {local.covered_s} of the last {policy.local_window_s} s"
    silent = fell_silent(demand, policy)
    if silent:
        names = ", ".join(f"{seen.gateway} for {seen.age_ms / 1000:.0f} s" for seen in silent)
        return f"no word from a gateway that was serving ({names})"
    lately = next((n for s, n in demand.recent if s >= _ENDED_S), local.arrivals)
    waiting = max(in_flight, demand.in_flight)
    if waiting and not (lately and local.arrivals):
        requests = "request" if waiting == 1 else "requests"
        return f"no arrivals, but {waiting} {requests} in flight"
    confirmed = any(seen.route_generation >= route_generation for seen in demand.speaking)
    if local.arrivals == 0 and not confirmed:
        return "no arrivals, and no gateway has confirmed the current routes"
    return ""


def fell_silent(demand: ModelDemand, policy: Policy) -> tuple[GatewaySeen, ...]:
    """Gateways that stopped reporting while they served, without signing off.

    What they carried is missing from the rate, so demand looks lower than it is. They count until
    they come back, sign off, or leave the long window.
    """
    return tuple(
        seen
        for seen in demand.gateways
        if seen.age_ms > SILENT_MS
        and seen.served_ms
        and seen.seen_ms - seen.served_ms <= policy.local_window_s * 1000
    )


def strain(demand: ModelDemand, service: Service) -> str:
    """Why excess that is believed may not be acted upon yet; empty if nothing speaks against it.

    Missed SLOs and rising latency forbid removals while they last. They say nothing against the
    excess itself: after a surge the last misses stay in the window for its length, while demand
    may have been low all that time.
    """
    local, long = demand.local, demand.long
    if isinstance(local, NoData):
        return ""
    ended = local.completions + local.failures + local.refused
    if ended and local.attained < service.percentile * ended:
        return f"only {local.attained / ended:.0%} of {ended} requests met the SLO"
    if isinstance(long, Stats):
        for what, now_ms, before_ms, limit_ms in (
            ("TTFT", local.ttft_p95_ms, long.ttft_p95_ms, service.slo.ttft_ms),
            ("TPOT", local.tpot_p95_ms, long.tpot_p95_ms, service.slo.tpot_ms),
        ):
            if now_ms is None or before_ms is None:
                continue
            if now_ms > RISING * before_ms and now_ms > 0.5 * limit_ms:
                return f"{what} p95 is rising from {before_ms:.0f} to {now_ms:.0f} ms"
    return ""


def is_stale(demand: ModelDemand) -> bool:
    """Whether the last seconds are missing: a tick that does not see them removes nothing."""
    return isinstance(demand.local, NoData) or demand.local.age_ms >= STALE_MS
