"""The sizing rules that raise a model's target, in one list.

A rule is a function from a model's view to a proposal. A new rule is a function here and one line
in `RAISING`, or an extension. `rate_increase` is long enough for its own file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import Blocks, since_first_arrival
from autoscaler.estimate.change_point import likely_engine_req_per_s, sizing_rate
from autoscaler.estimate.engine_rate import MOST_LOAD
from autoscaler.estimate.forecast.forecast_state import Forecast, TrendForecast
from autoscaler.estimate.overdispersion import burst_req_per_s, dispersion
from autoscaler.estimate.poisson_tests import is_significant, rate_lower_bound
from autoscaler.estimate.queue_model import detect_overload
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.rate_increase import increase_reason, least_order, rate_increase
from autoscaler.state.model_view import IDLE_RATE, ModelView, TargetProposal
from topics.checks import MOST_REQ_PER_S
from topics.extensions import Group, call, extensions
from topics.reason_codes import ReasonCode

Rule = Callable[[ModelView], TargetProposal | None]

_SURELY = 0.05
"""Probability that the rate proposed for a first instance is above the true one. A first instance
serves more than its model needs, so 5% is enough."""
_BURST_MATTERS = 1.05
"""Bursts raise the target only if they exceed the mean by this factor, because smaller differences
are within the error of the mean."""
_ROUTED_HOLDS = 0.97
"""Share of the target above which routed traffic holds it. A lower rate makes no proposal, so that
a lasting excess may lower the target."""
_FORECAST_VALID_MS = 120_000  # an older forecast is out of date


def proposals_of(view: ModelView) -> list[TargetProposal]:
    """The proposals of all rules, then those of installed packages, except impossible rates."""
    found = [proposal for rule in RAISING if (proposal := rule(view)) is not None]
    for extension in extensions(Group.SIZING_RULES):
        one = call(extension, lambda propose: propose(view), None)
        if isinstance(one, TargetProposal) and 0.0 <= one.req_per_s <= MOST_REQ_PER_S:
            found.append(one)
    return found


def declared_workload(view: ModelView) -> TargetProposal | None:
    """The declared rate of a model whose rate has not been measured yet. Otherwise a model would
    start with its minimum number of instances and be overloaded in its first minutes."""
    declared = view.service.req_per_s
    if view.state.estimate.rate_observed or declared <= 0.0:
        return None
    why = Reason(ReasonCode.DECLARED, view.service.model, quantities=(declared,))
    return TargetProposal(declared, why)


def scale_from_zero(view: ModelView) -> TargetProposal | None:
    """The first request to a model without instances starts an instance. The proposed rate is the
    one that the arrivals prove, which is low at first: two arrivals in a second do not prove
    2 req/s."""
    seen = view.demand.local
    if view.groups or view.raw_req_per_s > 0.0 or not isinstance(seen, Stats):
        return None
    arrived = seen.arrivals + seen.refused
    if not arrived:
        return None
    rate = max(IDLE_RATE, rate_lower_bound(arrived, seen.covered_s, _SURELY))
    return TargetProposal(rate, Reason(ReasonCode.WAKE, view.service.model))


def engine_counts(view: ModelView) -> TargetProposal | None:
    """While telemetry is missing, engines accept significantly more requests than planned for: the
    executors' counts stand in for the gateways' telemetry (`estimate.engine_rate`). The highest
    rate to order for of the spans that prove a rate above the plan.

    Successive tests of a long span see nearly the same requests, so the test of a longer span may
    err more often in proportion. (`rate_increase` tests shorter spans more strictly.)
    """
    if not view.demand.is_stale:
        return None
    planned, blocks, policy = view.planned_req_per_s, view.demand.blocks, view.policy
    spread = dispersion(blocks).confirmed
    proven = [
        likely_engine_req_per_s(rate, blocks)
        for rate in view.serving.engine_rates
        if rate.req_per_s * rate.span_s >= policy.min_samples
        and is_significant(
            round(rate.req_per_s * rate.span_s / spread),
            planned * rate.span_s / spread,
            min(0.5, policy.significance * rate.span_s / policy.surge_window_s),
        )
    ]
    if not proven:
        return None
    size = least_order(max(proven), planned)
    why = replace(increase_reason(view, size), because=(Reason(ReasonCode.TELEMETRY_STALE),))
    return TargetProposal(size, why)


def burst_headroom(view: ModelView) -> TargetProposal | None:
    """The rate that bursts of half a minute or longer reach above the mean of the long window: at
    most this rate when the declared percentile of requests arrives, without the variation that
    chance explains at a steady rate (`overdispersion`). Shorter bursts lower the capacity of
    instances instead (`estimate.burstiness`)."""
    mean, rate = mean_and_burst(view.demand.blocks, view.service.percentile)
    if rate <= _BURST_MATTERS * mean or rate <= view.state.target.req_per_s:
        return None
    return TargetProposal(
        rate, Reason(ReasonCode.BURST, view.service.model, quantities=(rate, mean))
    )


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def mean_and_burst(blocks: Blocks, percentile: float) -> tuple[float, float]:
    """(mean rate, rate that bursts reach at `percentile`) in `blocks`, in requests/s, beginning
    with the first block that has requests; equal without bursts.

    The blocks are those of the long window, because in a short window a burst would raise the mean
    with which it is compared.
    """
    seen = since_first_arrival(blocks)
    covered_s = sum(seconds for seconds, _ in seen)
    mean = sum(arrivals for _, arrivals in seen) / covered_s if covered_s else 0.0
    return mean, burst_req_per_s(blocks, percentile, mean)


def queue_growth(view: ModelView) -> TargetProposal | None:
    """More requests are in flight than the load explains, so capacity is insufficient, whatever
    rate was measured (`estimate.queue_model`). The rate that these requests imply, at most the
    upper bound of the measured rate.

    While an instance starts, a growing queue is expected and triggers nothing. If fewer requests
    are in flight than before, they are the remaining queue of a past shortage, which proves nothing
    about the present capacity. While telemetry is missing, the rate by engines takes its place, and
    requests that wait in gateways are unseen; then the bound is a multiple of the ready capacity.
    """
    if not view.serving.nothing_starting or not view.serving.ready:
        return None
    moments, is_stale = view.state.estimate.moments, view.demand.is_stale
    in_flight = view.serving.requests_in_engines if is_stale else view.demand.in_flight
    if len(moments) > 1 and in_flight < moments[-2].in_flight:
        return None
    if is_stale:
        rates = view.serving.engine_rates
        recent = rates[-1].req_per_s if rates else view.planned_req_per_s
        highest = MOST_LOAD * sum(combo.req_per_s for combo in view.serving.ready)
    else:
        rate = sizing_rate(view.demand, view.policy)
        recent = max(rate.req_per_s, view.demand.req_per_s)
        highest = max(rate.high_req_per_s, recent)
    lengths = view.state.estimate.lengths
    found = detect_overload(in_flight, recent, highest, view.serving.ready, lengths)
    if found is None or found.req_per_s <= view.planned_req_per_s:
        return None
    seen = found.in_flight, recent, found.expected, view.raw_req_per_s
    why = Reason(ReasonCode.BACKLOG, view.service.model, quantities=seen)
    return TargetProposal(found.req_per_s, why)


def routed_traffic(view: ModelView) -> TargetProposal | None:
    """A model needs capacity for the requests that a service with several models routes to it, now
    or soon: the higher of two rates, the lower bound of the present routed rate, and the planned
    rate if the thresholds are about to change.

    Before thresholds change, the model that will get more requests needs its capacity. While a
    model lacks capacity, other models answer its requests; it still needs capacity for them.
    """
    routed = view.routed
    if routed is None:
        return None
    rate = max(routed.least_req_per_s, routed.planned_req_per_s)
    if rate <= 0.0 or rate < _ROUTED_HOLDS * view.state.target.req_per_s:
        return None
    return TargetProposal(
        rate, Reason(ReasonCode.ROUTED, view.service.model, (routed.by,), (rate,))
    )


def forecast_increase(view: ModelView) -> TargetProposal | None:
    """The expected rate, if it exceeds both the target and the planned capacity at the time when an
    instance that starts now would be ready.

    `estimate.forecast` makes the forecast. The rule uses the lower bound of the forecast (in 19 of
    20 held-back minutes, the true rate was above such a bound), because a noisy forecast would
    start instances that are soon stopped again.
    """
    found = _expected(view)
    if found is None:
        return None
    rate = found.lower_bound_req_per_s
    if rate <= max(view.state.target.req_per_s, view.planned_req_per_s):
        return None
    in_s = max(0, found.at_ms - view.now_ms) / 1000.0
    return TargetProposal(rate, _forecast_reason(view.service.model, found, rate, in_s))


def expected_req_per_s(view: ModelView) -> float:
    """Lower bound of the expected rate in requests/s; 0 without a forecast."""
    found = _expected(view)
    return 0.0 if found is None else found.lower_bound_req_per_s


def _expected(view: ModelView) -> Forecast | TrendForecast | None:
    """The forecast with the highest lower bound; None if all lower bounds are almost 0."""
    outlook = view.state.estimate.forecast
    found = [
        one
        for one in (outlook.forecast, outlook.trend)
        if one is not None
        and view.now_ms <= one.at_ms + _FORECAST_VALID_MS
        and one.lower_bound_req_per_s > IDLE_RATE
    ]
    return max(found, key=lambda one: one.lower_bound_req_per_s, default=None)


def _forecast_reason(
    model: str, found: Forecast | TrendForecast, rate: float, in_s: float
) -> Reason:
    if isinstance(found, TrendForecast):
        climb = rate, in_s, found.lasted_s, found.req_per_s, found.growth_per_min
        return Reason(ReasonCode.RISING, model, quantities=climb)
    errors = found.error_req_per_s, found.last_error_req_per_s
    return Reason(ReasonCode.FORECAST, model, (found.forecaster,), (rate, in_s, *errors))


RAISING: tuple[Rule, ...] = (
    declared_workload,
    scale_from_zero,
    rate_increase,
    engine_counts,
    burst_headroom,
    queue_growth,
    routed_traffic,
    forecast_increase,
)
