"""The conditions of scale-in, in the order in which they are checked (docs/explanation/sizing.md,
section 5). A condition that fails yields its reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoscaler.domain.cluster import Mode, Policy, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.estimate.engine_rate import counted_within
from autoscaler.estimate.model_demand import SILENT_MS, ModelDemand
from autoscaler.estimate.windows import GatewayReport, NoData, Stats
from autoscaler.sizing.prediction_drift import drift_veto
from autoscaler.sizing.scale_in.reversals import scale_in_within_limit
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

Condition = Callable[[ModelView], Iterator[Reason]]

MIN_COVERAGE = 0.9
"""Share of the local window that must have been reported."""
RISING_RATIO = 1.25
"""Factor by which a latency must exceed that of the long window to count as rising."""


def _frozen(view: ModelView) -> Iterator[Reason]:
    if view.frozen is not None:
        yield view.frozen


def _canary_compared(view: ModelView) -> Iterator[Reason]:
    policy, known = view.service.rollout.canary, view.state.rollout.comparison
    if policy is None or known is None or not known.serves_ms:
        return
    if view.now_ms - known.serves_ms < 1000 * policy.within_s:
        yield Reason(ReasonCode.CANARY_COMPARED)


def _too_many_reversals(view: ModelView) -> Iterator[Reason]:
    turns, most_per_h = view.state.hysteresis.reversals, view.policy.reversals_per_h
    if not scale_in_within_limit(turns, view.now_ms, most_per_h):
        yield Reason(ReasonCode.TOO_MANY_REVERSALS)


def _no_full_window(view: ModelView) -> Iterator[Reason]:
    observed_ms = view.now_ms - view.started_ms
    if observed_ms < view.policy.local_window_s * 1000 or _keeps_all(view):
        yield Reason(ReasonCode.NO_FULL_WINDOW)


def _stale_telemetry(view: ModelView) -> Iterator[Reason]:
    if view.demand.is_stale:
        yield Reason(ReasonCode.TELEMETRY_STALE)


def _incomplete_telemetry(view: ModelView) -> Iterator[Reason]:
    seen = view.serving
    why = missing_evidence(
        view.demand, view.policy, seen.route_generation, seen.requests_in_engines
    )
    if why is not None:
        yield why


def _engines_disagree(view: ModelView) -> Iterator[Reason]:
    seen = view.demand.local
    if not isinstance(seen, Stats) or seen.arrivals:
        return  # engines may count the same requests that gateways reported
    counted = counted_within(view.serving.engine_rates, view.policy.local_window_s)
    if counted is not None and counted.arrived:
        figures = counted.arrived, counted.span_s
        yield Reason(ReasonCode.ENGINES_DISAGREE, quantities=figures)


def _slo_pressure(view: ModelView) -> Iterator[Reason]:
    why = slo_pressure(view.demand, view.service)
    if why is not None:
        yield why


def _drifting_predictions(view: ModelView) -> Iterator[Reason]:
    if view.service.mode is Mode.ACT:
        seen = view.demand.local
        load = seen.req_per_s if isinstance(seen, Stats) else 0.0
        yield from drift_veto(view.state, view.now_ms, load, view.planned_req_per_s)


def _keeps_all(view: ModelView) -> bool:
    """Whether no instance of a held model may be removed, because no excess could be proven yet."""
    return _is_held(view, excess_duration_s(view.service, view.policy))


def _is_held(view: ModelView, for_s: int) -> bool:
    """Whether the model is held, `for_s` seconds after the start. Instances that a new controller
    takes over without memory, e.g. after its topics were lost, are held: its predecessor kept them
    for a reason, and the declared lengths of requests say little about their capacity."""
    return view.state.target.restart_hold and view.now_ms - view.started_ms < 1000 * for_s


LOWER_TARGET = (_no_full_window, _stale_telemetry, _incomplete_telemetry, _engines_disagree)
"""Conditions of a lower target."""
_LESS_CAPACITY = (*LOWER_TARGET, _slo_pressure, _drifting_predictions)
REMOVAL = (_frozen, _canary_compared, _too_many_reversals, *_LESS_CAPACITY)
"""Conditions of a removal: all of them."""
EXCHANGE = (_frozen, _canary_compared, *_LESS_CAPACITY)
"""Conditions of an exchange that loses a little capacity, which is no reversal."""
REALLOCATION = (_frozen, _stale_telemetry)
"""Conditions of moving capacity to another model within a budget; no excess must be proven."""
NO_LOSS = (_frozen, _canary_compared)
"""Conditions of a removal that additions outweigh."""


def failed_condition(view: ModelView, conditions: tuple[Condition, ...]) -> Reason | None:
    """The reason why scale-in is paused: the first of `conditions` that fails. None if all hold."""
    for condition in conditions:
        if causes := tuple(condition(view)):
            return Reason(ReasonCode.SCALE_IN_PAUSED, because=causes)
    return None


def is_unmeasured(view: ModelView) -> bool:
    """Whether a held model has not been observed for a local window yet. Until then no capacity is
    added or exchanged."""
    return _is_held(view, view.policy.local_window_s)


def excess_duration_s(service: Service, policy: Policy) -> int:
    """Seconds for which an excess must last, in blocks of 10 s: `scale_in_after`, at least the
    local window, and at most the long window without its first, partly covered block."""
    most = max(1, policy.global_window_s // BLOCK_S - 1)
    least_s = max(service.scale_in_after_s, policy.local_window_s)
    return BLOCK_S * min(round(least_s / BLOCK_S), most)


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
