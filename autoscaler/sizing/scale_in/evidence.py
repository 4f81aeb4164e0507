"""Finds reasons in the telemetry against a scale-in: excess capacity is not proven, or latency
forbids removals."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import SILENT_MS, ModelDemand
from autoscaler.estimate.windows import GatewayReport, NoData, Stats
from topics.reason_codes import ReasonCode

MIN_COVERAGE = 0.9
"""Share of the local window that must have been reported."""
RISING_RATIO = 1.25
"""Factor by which a latency must exceed that of the long window to count as rising."""


def missing_evidence(
    demand: ModelDemand, policy: Policy, route_generation: int = 0, in_flight: int = 0
) -> Reason | None:
    """The reason why telemetry does not prove excess capacity now; None if it does. Unknown demand
    does not count as low demand. Time with missing evidence does not count towards the duration of
    an excess. route_generation: a gateway must confirm this generation before zero arrivals count.
    in_flight: requests in the model's instances, which contradict zero arrivals.
    """
    local = demand.local
    if isinstance(local, NoData):
        return Reason(ReasonCode.NO_TELEMETRY)
    if local.covered_s < MIN_COVERAGE * policy.local_window_s:
        covered = local.covered_s, policy.local_window_s
        return Reason(ReasonCode.TELEMETRY_GAPS, quantities=covered)
    silent = silent_gateways(demand, policy)
    if silent:
        names = tuple(seen.gateway for seen in silent)
        ages_s = tuple(seen.age_ms / 1000 for seen in silent)
        return Reason(ReasonCode.GATEWAY_SILENT, "", names, ages_s)
    waiting = max(in_flight, demand.in_flight)
    if waiting and not demand.shows_arrivals:
        return Reason(ReasonCode.STILL_IN_FLIGHT, quantities=(waiting,))
    confirmed = any(seen.route_generation >= route_generation for seen in demand.reporting_gateways)
    if local.arrivals == 0 and not confirmed:
        return Reason(ReasonCode.ROUTES_UNCONFIRMED)
    return None


def silent_gateways(demand: ModelDemand, policy: Policy) -> tuple[GatewayReport, ...]:
    """Gateways that stopped reporting while they had traffic and did not sign off.

    Their traffic is missing from the rate, so demand looks too low. A gateway counts as silent
    until it reports again, signs off, or leaves the long window.
    """
    return tuple(
        seen
        for seen in demand.gateways
        if seen.age_ms > SILENT_MS
        and seen.last_traffic_ms
        and seen.reported_ms - seen.last_traffic_ms <= policy.local_window_s * 1000
    )


def slo_pressure(demand: ModelDemand, service: Service) -> Reason | None:
    """The reason why proven excess capacity may not be removed yet; None if nothing forbids the
    removal. Missed SLOs and rising latency forbid removals while they last. They do not disprove
    the excess: misses of a past surge remain in the window although demand is low again.
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
            if now_ms > RISING_RATIO * before_ms and now_ms > 0.5 * limit_ms:
                return Reason(ReasonCode.LATENCY_RISING, "", (what,), (before_ms, now_ms))
    return None
