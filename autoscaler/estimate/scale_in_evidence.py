"""Why telemetry does not allow a scale-in: an excess may not be believed, or not be acted upon."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import SILENT_MS, ModelDemand
from autoscaler.estimate.windows import GatewaySeen, NoData, Stats
from topics.reason_codes import ReasonCode

STALE_MS = 2_000
COVERED = 0.9
RISING = 1.25
_ENDED_S = 10


def paused(*reasons: Reason) -> Reason:
    """That nothing may be removed, because of `reasons`."""
    return Reason(ReasonCode.SCALE_IN_PAUSED, because=reasons)


def objection(
    demand: ModelDemand, policy: Policy, route_generation: int = 0, in_flight: int = 0
) -> Reason | None:
    """Why excess may not be believed now; None if nothing speaks against it.

    Not knowing is no evidence. Time with an objection does not count towards lasting excess.
    route_generation: what a gateway must confirm before its zero counts. in_flight: requests held
    by the model's instances, a second witness against a false zero.
    """
    local = demand.local
    if isinstance(local, NoData):
        return Reason(ReasonCode.NO_TELEMETRY)
    if local.covered_s < COVERED * policy.local_window_s:
        covered = local.covered_s, policy.local_window_s
        return Reason(ReasonCode.TELEMETRY_GAPS, quantities=covered)
    silent = fell_silent(demand, policy)
    if silent:
        names = tuple(seen.gateway for seen in silent)
        ages_s = tuple(seen.age_ms / 1000 for seen in silent)
        return Reason(ReasonCode.GATEWAY_SILENT, "", names, ages_s)
    lately = next((n for s, n in demand.recent if s >= _ENDED_S), local.arrivals)
    waiting = max(in_flight, demand.in_flight)
    if waiting and not (lately and local.arrivals):
        return Reason(ReasonCode.STILL_IN_FLIGHT, quantities=(waiting,))
    confirmed = any(seen.route_generation >= route_generation for seen in demand.speaking)
    if local.arrivals == 0 and not confirmed:
        return Reason(ReasonCode.ROUTES_UNCONFIRMED)
    return None


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


def strain(demand: ModelDemand, service: Service) -> Reason | None:
    """Why excess that is believed may not be acted upon yet; None if nothing speaks against it.

    Missed SLOs and rising latency forbid removals while they last. They say nothing against the
    excess itself: after a surge the last misses stay in the window for its length, while demand
    may have been low all that time.
    """
    local, long = demand.local, demand.long
    if isinstance(local, NoData):
        return None
    ended = local.completions + local.failures + local.refused
    if ended and local.attained < service.percentile * ended:
        return Reason(ReasonCode.SLO_STRAINED, quantities=(local.attained / ended, ended))
    if isinstance(long, Stats):
        for what, now_ms, before_ms, limit_ms in (
            ("TTFT", local.ttft_p95_ms, long.ttft_p95_ms, service.slo.ttft_ms),
            ("TPOT", local.tpot_p95_ms, long.tpot_p95_ms, service.slo.tpot_ms),
        ):
            if now_ms is None or before_ms is None:
                continue
            if now_ms > RISING * before_ms and now_ms > 0.5 * limit_ms:
                return Reason(ReasonCode.LATENCY_RISING, "", (what,), (before_ms, now_ms))
    return None


def is_stale(demand: ModelDemand) -> bool:
    """Whether the last seconds are missing: a tick that does not see them removes nothing."""
    return isinstance(demand.local, NoData) or demand.local.age_ms >= STALE_MS
