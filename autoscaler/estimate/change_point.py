"""The present arrival rate: the mean of the longest recent time in which it did not change.

Owns the search for the last change of the rate, and how evident a rise is. Knows nothing of
capacity.

A mean over a fixed window is late after a step and counts idle seconds before traffic. Here spans
are lengthened into the past for as long as what each adds agrees with every shorter one, so the
estimate begins where the present rate begins (a change point by generalised likelihood ratio,
with the square root that makes Poisson counts normal in place of logarithms).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, Count
from autoscaler.estimate.memoize import remembered
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import apart, bounds
from autoscaler.estimate.windows import NoData
from autoscaler.performance.numba_decorators import compiled

Floats = npt.NDArray[np.float64]

Span = tuple[int, int, int]
"""Covered seconds, arrivals in them, and how many seconds ago they began."""

CONFIDENCE = 0.95
_Z = 1.645  # each bound is wrong with probability 1 - CONFIDENCE
_CHANGED = 3.3  # sigmas: some 150 comparisons share one false change in about fifteen estimates
_STRADDLES = 1.5


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """req_per_s: arrivals per covered second over the last window_s covered seconds.

    low, high: bounds, each with CONFIDENCE, widened by the claimed dispersion of arrivals.
    since_ms: when that window began, if the rate was another before it; None if no change was
    found, and all that is known went into the estimate.
    """

    req_per_s: float
    low: float
    high: float
    window_s: int
    since_ms: int | None


NO_RATE = RateEstimate(0.0, 0.0, math.inf, 0, None)
"""Nothing is known: no telemetry."""


@remembered(32)  # several rules ask for it in turn
def present_rate(demand: ModelDemand, policy: Policy) -> RateEstimate:
    """The present rate of `demand`. E.g. three seconds after a step from 1 to 10 req/s, with 30
    arrivals: 10 (7.2 to 13.6), since 3 s; after a minute 10 (9.3 to 10.7)."""
    spans, chosen = _changed(demand, policy)
    if not spans:
        return NO_RATE
    spread = math.sqrt(dispersion(demand.blocks).claimed)
    covered_s, arrivals, age_s = spans[-1 if chosen is None else chosen]
    since_ms = None
    if chosen is not None and demand.seen_ms is not None:
        since_ms = demand.seen_ms - age_s * 1000
    low, high = bounds(arrivals, _Z * spread)
    return RateEstimate(
        arrivals / covered_s, low / covered_s, high / covered_s, covered_s, since_ms
    )


def present_spans(demand: ModelDemand, policy: Policy) -> list[Span]:
    """The spans back from now that speak of the present, shortest first: none reaches back to
    before a fall of the rate."""
    spans, chosen = _changed(demand, policy)
    if not spans:
        return []
    now_s, now, _ = spans[-1 if chosen is None else chosen]
    return [span for span in spans if span[0] <= now_s or span[1] * now_s <= now * span[0]]


def evidence_of_rise(demand: ModelDemand, policy: Policy, span: Span) -> float:
    """How much likelier what arrived is with a change of the rate where `span`, one of
    `present_spans`, began than without it, as a natural logarithm; 0 where the rate had been as
    high before. The least of all times between earlier changes counts. Of arrivals that come in
    clumps of D, only one in D counts."""
    spread = dispersion(demand.blocks).claimed
    covered_s, arrivals, _ = span
    rest, _ = _changed(demand, policy)
    least, at = math.inf, rest.index(span)
    while at + 1 < len(rest):
        gone_s, gone, _ = rest[at]
        rest = [(c - gone_s, n - gone, age_s) for c, n, age_s in rest[at + 1 :]]
        change = _last_change(rest, _CHANGED * math.sqrt(spread))
        at = len(rest) - 1 if change is None else change
        before_s, before, _ = rest[at]
        if arrivals * before_s <= before * covered_s:
            return 0.0
        least = min(least, apart(arrivals, covered_s, before, before_s))
    return least / spread if least < math.inf else 0.0


@remembered(32)
def _changed(demand: ModelDemand, policy: Policy) -> tuple[list[Span], int | None]:
    """The spans of `demand`, and the index of the one that began with the last change."""
    spans = _spans(demand, policy)
    spread = math.sqrt(dispersion(demand.blocks).claimed)
    return spans, _last_change(spans, _CHANGED * spread)


def _last_change(spans: list[Span], limit: float) -> int | None:
    """The index of the span that began with the last change; None where there was none."""
    if len(spans) < 2:
        return None
    numbers = np.fromiter(chain.from_iterable(spans), np.float64, 3 * len(spans))
    at = changed_at(numbers.reshape(-1, 3), limit)
    if at < 0:
        return None
    roots = [math.sqrt((arrivals + 0.375) / covered_s) for covered_s, arrivals, _ in spans]
    return _without_straddler(spans, roots, at)


@compiled
def changed_at(spans: Floats, limit: float) -> int:
    """The span after which the rate was another, -1 where none was. spans (n, 3): covered seconds,
    arrivals, age. Every span is held against all shorter ones, each tick, so it is compiled."""
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


def _without_straddler(spans: list[Span], roots: list[float], at: int) -> int:
    """`at`, or the span before it where what `at` added looks like both sides of the change."""
    if at == 0:
        return at
    shorter_s, shorter, _ = spans[at - 1]
    added_s = spans[at][0] - shorter_s
    root = math.sqrt((spans[at][1] - shorter + 0.375) / added_s)
    sigmas = 2.0 * abs(roots[at - 1] - root) / math.sqrt(1.0 / shorter_s + 1.0 / added_s)
    return at - 1 if sigmas > _STRADDLES else at


def _spans(demand: ModelDemand, policy: Policy) -> list[Span]:
    """Each within the next: the recent ones, thinned to about a third longer each time, then the
    local window, then that with more and more of the older blocks."""
    if isinstance(demand.local, NoData):
        return []
    found: list[Span] = []
    for covered_s, arrivals in demand.recent:
        if not found or covered_s >= found[-1][0] * 1.2:
            found.append((covered_s, arrivals, covered_s))
    local: Count = demand.local.covered_s, demand.local.arrivals
    local_s = policy.local_window_s
    if not found or (local[0] > found[-1][0] and local[1] >= found[-1][1]):
        found.append((*local, local_s))
    covered_s, arrivals, _ = found[-1]
    for older_s, older, age_s in _older(demand.blocks, local_s):
        if covered_s + older_s > found[-1][0]:
            found.append((covered_s + older_s, arrivals + older, age_s))
    return found


@remembered(4096)  # as long as `dispersion` is
def _older(blocks: Blocks, local_s: int) -> list[Span]:
    """What more and more of the blocks before the local window add to it: (covered seconds,
    arrivals, seconds ago that it began)."""
    found = []
    left = max(0, len(blocks) - -(-local_s // BLOCK_S))
    covered_s, arrivals, age_s = 0, 0, local_s
    while left > 0:
        step = max(1, round(age_s * 0.4 / BLOCK_S))
        for block_s, block_arrivals in blocks[max(0, left - step) : left]:
            covered_s += block_s
            arrivals += block_arrivals
        left -= step
        age_s += step * BLOCK_S
        found.append((covered_s, arrivals, age_s))
    return found
