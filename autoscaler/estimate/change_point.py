"""The current arrival rate, i.e. the mean over the longest recent time without a change of the
rate, and the rate to size for.

A mean over a fixed window lags after a step and counts idle seconds before traffic. This module
extends a span into the past as long as the added time agrees with all shorter spans, so the
estimate covers only the time since the last change. The test is a generalised likelihood ratio on
square roots, which make Poisson counts nearly normal.

The rate to size for follows the current rate more closely the longer that rate lasts. A new
instance takes a minute or two to start, and a burst of three seconds is over by then, so the burst
counts only as a mean over half a minute. A rate that has lasted ten seconds counts with its lower
bound. From ten seconds to half a minute the value rises to slightly more than the mean, because an
order that is too small leads to another order and another start. After a step, a plain mean over
half a minute would include the time before the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from autoscaler.domain.cluster import Policy
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, Count
from autoscaler.estimate.engine_rate import EngineRate
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import log_likelihood_ratio, mean_bounds
from autoscaler.estimate.windows import NoData
from autoscaler.performance.numba_decorators import compiled

Floats = npt.NDArray[np.float64]

RateSpan = tuple[int, int, int]
"""Covered seconds, arrivals in them, and the age of the span's start in seconds."""

_Z = 1.645  # standard deviations of a one-sided bound at 95%: each bound is wrong with 5%
_CHANGE_SIGMAS = 3.3  # high, because one estimate makes about 150 comparisons
_STRADDLE_SIGMAS = 1.5
"""Standard deviations by which the seconds that a span adds must differ from the shorter span, so
that the change lies within them."""

LASTS_S = 30
"""Seconds that a rate must last to count in full: a new instance cannot serve shorter bursts."""
_TOWARDS_HIGH = 0.4
"""Position of the rate to order for, from the mean (0) to its upper bound (1). A small surplus
costs less than a second order and a second start."""


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """Mean arrival rate over the last `window_s` covered seconds.

    low, high: bounds of req_per_s, each at 95%, widened by the confirmed dispersion of
    arrivals. since_ms: time of the last change, at which the window starts; None if there was no
    change, so that the window covers all telemetry.
    """

    req_per_s: float
    low: float
    high: float
    window_s: int
    since_ms: int | None


NO_RATE = RateEstimate(0.0, 0.0, math.inf, 0, None)
"""The estimate without telemetry."""


@TICK_CACHES.by_identity  # cached, because several sizing rules call the function each tick
def current_rate(demand: ModelDemand, policy: Policy) -> RateEstimate:
    """The current rate of `demand`.

    Example: 3 s after a step from 1 to 10 req/s, with 30 arrivals since, the rate is 10 req/s
    (bounds 7.2 and 13.6); a minute after the step the bounds are 9.3 and 10.7.
    """
    spans, chosen = _spans_and_change(demand, policy)
    if not spans:
        return NO_RATE
    spread = math.sqrt(dispersion(demand.blocks).confirmed)
    covered_s, arrivals, age_s = spans[-1 if chosen is None else chosen]
    since_ms = None
    if chosen is not None and demand.reported_ms is not None:
        since_ms = demand.reported_ms - age_s * 1000
    low, high = mean_bounds(arrivals, _Z * spread)
    return RateEstimate(
        arrivals / covered_s, low / covered_s, high / covered_s, covered_s, since_ms
    )


@dataclass(frozen=True, slots=True)
class SizingRate:
    """The mean rate in requests/s over the last half minute or since the last change, its upper
    bound (95%), and the rate to order for."""

    req_per_s: float
    high_req_per_s: float
    likely_req_per_s: float


def sizing_rate(demand: ModelDemand, policy: Policy) -> SizingRate:
    """The rate since the last change if it has lasted half a minute, else over the last half
    minute."""
    rate = current_rate(demand, policy)
    likely = rate.req_per_s + _TOWARDS_HIGH * (rate.high - rate.req_per_s)
    if rate.window_s >= LASTS_S:
        return SizingRate(rate.req_per_s, rate.high, likely)
    longest = max(demand.recent, default=(0, 0))
    covered_s, arrivals = next((c for c in demand.recent if c[0] >= LASTS_S), longest)
    seconds = max(covered_s, LASTS_S)
    mean = arrivals / seconds
    high = mean if covered_s < LASTS_S else mean_bounds(arrivals, _Z)[1] / seconds
    order = mean + _TOWARDS_HIGH * (high - mean)
    if rate.since_ms is not None and rate.window_s >= BLOCK_S:
        order = max(order, rate.low + (likely - rate.low) * rate.window_s / LASTS_S)
    return SizingRate(mean, high, order)


def likely_engine_req_per_s(rate: EngineRate, blocks: Blocks) -> float:
    """The rate to order for if engines count arrivals at `rate`. blocks: the last telemetry, which
    shows how bursty arrivals are."""
    z = _Z * math.sqrt(dispersion(blocks).confirmed)
    high = mean_bounds(rate.req_per_s * rate.span_s, z)[1] / rate.span_s
    return rate.req_per_s + _TOWARDS_HIGH * (high - rate.req_per_s)


def current_rate_spans(demand: ModelDemand, policy: Policy) -> list[RateSpan]:
    """Spans that end now and lie after the last decrease of the rate, shortest first."""
    spans, chosen = _spans_and_change(demand, policy)
    if not spans:
        return []
    now_s, now, _ = spans[-1 if chosen is None else chosen]
    return [span for span in spans if span[0] <= now_s or span[1] * now_s <= now * span[0]]


def increase_evidence(demand: ModelDemand, policy: Policy, span: RateSpan) -> float:
    """Log-likelihood ratio of a rate increase at the start of `span` over no change at that time.

    span: one of `current_rate_spans`. The span is compared with the time between each two earlier
    changes, and the smallest ratio counts; it is 0 if an earlier rate was as high. The ratio is
    divided by the confirmed dispersion D, because only one of D arrivals in a burst is independent
    evidence.
    """
    spread = dispersion(demand.blocks).confirmed
    covered_s, arrivals, _ = span
    rest, _ = _spans_and_change(demand, policy)
    least, at = math.inf, rest.index(span)
    while at + 1 < len(rest):
        gone_s, gone, _ = rest[at]
        rest = [(c - gone_s, n - gone, age_s) for c, n, age_s in rest[at + 1 :]]
        change = _last_change(rest, _CHANGE_SIGMAS * math.sqrt(spread))
        at = len(rest) - 1 if change is None else change
        before_s, before, _ = rest[at]
        if arrivals * before_s <= before * covered_s:
            return 0.0
        least = min(least, log_likelihood_ratio(arrivals, covered_s, before, before_s))
    return least / spread if least < math.inf else 0.0


@TICK_CACHES.by_identity
def _spans_and_change(demand: ModelDemand, policy: Policy) -> tuple[list[RateSpan], int | None]:
    """All spans of `demand`, and the index of the span that begins at the last change."""
    spans = _spans(demand, policy)
    spread = math.sqrt(dispersion(demand.blocks).confirmed)
    return spans, _last_change(spans, _CHANGE_SIGMAS * spread)


def _last_change(spans: list[RateSpan], limit: float) -> int | None:
    """Index of the span that begins at the last change of the rate; None without a change."""
    if len(spans) < 2:
        return None
    numbers = np.fromiter(chain.from_iterable(spans), np.float64, 3 * len(spans))
    at = change_index(numbers.reshape(-1, 3), limit)
    if at < 0:
        return None
    roots = [math.sqrt((arrivals + 0.375) / covered_s) for covered_s, arrivals, _ in spans]
    return _without_straddler(spans, roots, at)


@compiled
def change_index(spans: Floats, limit: float) -> int:
    """Index of the span at whose start the rate changed; -1 without a change.

    spans, (n, 3): covered seconds, arrivals, age. Compiled, because each span is compared with all
    shorter spans every tick.
    """
    for longer in range(1, len(spans)):
        covered_s, arrivals = spans[longer, 0], spans[longer, 1]
        worst, at = limit, -1
        for shorter in range(longer):
            recent_s, recent = spans[shorter, 0], spans[shorter, 1]
            older_s = covered_s - recent_s
            if older_s <= 0.0:
                continue
            root = math.sqrt((recent + 0.375) / recent_s)
            older = math.sqrt((arrivals - recent + 0.375) / older_s)
            sigmas = 2.0 * abs(root - older) / math.sqrt(1.0 / recent_s + 1.0 / older_s)
            if sigmas > worst:
                worst, at = sigmas, shorter
        if at >= 0:
            return at
    return -1


def _without_straddler(spans: list[RateSpan], roots: list[float], at: int) -> int:
    """The corrected index of the change. Span `at` adds older seconds to span `at - 1`. If the
    change lies within these seconds, the index is `at - 1`, otherwise `at`."""
    if at == 0:
        return at
    shorter_s, shorter, _ = spans[at - 1]
    added_s = spans[at][0] - shorter_s
    root = math.sqrt((spans[at][1] - shorter + 0.375) / added_s)
    sigmas = 2.0 * abs(roots[at - 1] - root) / math.sqrt(1.0 / shorter_s + 1.0 / added_s)
    return at - 1 if sigmas > _STRADDLE_SIGMAS else at


def _spans(demand: ModelDemand, policy: Policy) -> list[RateSpan]:
    """Nested spans, shortest first: recent spans, each at least a fifth longer than the previous
    span; the local window; then the local window extended by more and more of the older blocks."""
    if isinstance(demand.local, NoData):
        return []
    spans: list[RateSpan] = []
    for covered_s, arrivals in demand.recent:
        if not spans or covered_s >= spans[-1][0] * 1.2:
            spans.append((covered_s, arrivals, covered_s))
    local: Count = demand.local.covered_s, demand.local.arrivals
    local_s = policy.local_window_s
    if not spans or (local[0] > spans[-1][0] and local[1] >= spans[-1][1]):
        spans.append((*local, local_s))
    covered_s, arrivals, _ = spans[-1]
    for older_s, older, age_s in _older_spans(demand.blocks, local_s):
        if covered_s + older_s > spans[-1][0]:
            spans.append((covered_s + older_s, arrivals + older, age_s))
    return spans


@TICK_CACHES.by_identity
def _older_spans(blocks: Blocks, local_s: int) -> list[RateSpan]:
    """Cumulative (covered seconds, arrivals, age in seconds) of blocks before the local window."""
    spans = []
    left = max(0, len(blocks) - -(-local_s // BLOCK_S))
    covered_s, arrivals, age_s = 0, 0, local_s
    while left > 0:
        step = max(1, round(age_s * 0.4 / BLOCK_S))
        for block_s, block_arrivals in blocks[max(0, left - step) : left]:
            covered_s += block_s
            arrivals += block_arrivals
        left -= step
        age_s += step * BLOCK_S
        spans.append((covered_s, arrivals, age_s))
    return spans
