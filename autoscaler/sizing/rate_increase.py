"""Rule: significantly more requests arrive than are planned for.

The tests compare many spans, from one second to the whole long window: a tenfold burst is
significant within a second or two, an increase by a tenth within minutes. If the planned capacity
was above the previous rate, an increase of the rate can be proven sooner than an excess over the
plan; then the increase must be significant, but the excess only probable. Increases within planned
capacity are followed without a significance test, because they cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, Count
from autoscaler.estimate.change_point import (
    LASTS_S,
    RateSpan,
    current_rate,
    current_rate_spans,
    increase_evidence,
    sizing_rate,
)
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import is_significant
from autoscaler.estimate.windows import Stats
from autoscaler.state.model_view import SLIVER, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_LONGER = 1.5
"""Each tested span is longer than the previous one by this factor, because tests of similar spans
repeat the same evidence."""
_AT_ONCE = 1.03, 1.1
"""Limits of the first order for an increase, as multiples of the plan: an order for less might add
no instance, and one for more would rest on few seconds."""
_EVIDENT = 2.0
"""The likelihood ratio must exceed this / `significance`, because an increase is tested many
times."""


def rate_increase(view: ModelView) -> TargetProposal | None:
    """The present rate, if the arrivals prove that it exceeds the planned rate."""
    demand, policy = view.demand, view.policy
    seen = demand.local
    if not isinstance(seen, Stats) or seen.age_ms > policy.surge_window_s * 1000:
        return None
    planned = view.planned_req_per_s
    proving = _spans_over_plan(view, seen) or _spans_of_increase(view)
    if not proving and view.is_surging:
        likely = sizing_rate(demand, policy).likely_req_per_s
        size = least_order(likely, planned) if _increase_continues(view) else min(likely, planned)
        return TargetProposal(size, increase_reason(view, size), continues_proof=True)
    if not proving:
        if seen.arrivals < policy.min_samples or seen.req_per_s <= view.state.target.req_per_s:
            return None
        why = Reason(ReasonCode.SURGE, view.service.model, quantities=(seen.req_per_s,))
        return TargetProposal(seen.req_per_s, why, is_proven=False)
    likely = least_order(sizing_rate(demand, policy).likely_req_per_s, planned)
    size = max(likely, _first_order(view, proving))
    since_ms = view.now_ms - seen.age_ms - min(proving)[0] * 1000
    return TargetProposal(size, increase_reason(view, size), since_ms)


def increase_reason(view: ModelView, size: float) -> Reason:
    """The reason for an order of `size`, with the capacity that it exceeds."""
    capacity = (
        view.service.utilization,
        view.raw_req_per_s * view.state.capacity.derate,
        view.groups,
    )
    return Reason(ReasonCode.SURGE, view.service.model, quantities=(size, *capacity))


def _spans_over_plan(view: ModelView, seen: Stats) -> list[Count]:
    """Spans whose arrivals alone prove a rate above the plan. There are ten times as many spans
    of one second as of ten seconds, so the test of a shorter span must err less often in
    proportion."""
    demand, policy, planned = view.demand, view.policy, view.planned_req_per_s
    spread = dispersion(demand.blocks).confirmed
    proving = [
        span
        for span in spans(demand)
        if span[1] > planned * span[0]
        and span[1] >= policy.min_samples
        and _is_beyond_chance(
            view, spread, span, policy.significance * min(1.0, span[0] / policy.surge_window_s)
        )
    ]
    if not proving:
        return []
    # In spans longer than the local window, only arrivals since the last change of the rate count:
    # half an hour at 10 req/s proves nothing ten minutes after the rate fell to 3.
    longest_s = max(current_rate(demand, policy).window_s, seen.covered_s)
    return [span for span in proving if span[0] <= longest_s]


def _spans_of_increase(view: ModelView) -> list[Count]:
    """Spans at whose start the rate increased significantly, to a rate that is probably above the
    plan. The likelihood ratio must be at least _EVIDENT / `significance`, because it is tested many
    times a day. The excess over the plan is tested at the square root of `significance`."""
    demand, policy, planned = view.demand, view.policy, view.planned_req_per_s
    if demand.reported_ms is None:
        return []
    enough = math.log(_EVIDENT / policy.significance)
    spread = dispersion(demand.blocks).confirmed
    return [
        span[:2]
        for span in current_rate_spans(demand, policy)
        if span[1] > planned * span[0]
        and _may_begin(view, span, demand.reported_ms)
        and _is_beyond_chance(view, spread, span[:2], math.sqrt(policy.significance))
        and increase_evidence(demand, policy, span) >= enough
    ]


def _may_begin(view: ModelView, span: RateSpan, seen_ms: int) -> bool:
    """Whether an increase that began with `span` is new evidence. It is not if capacity was ordered
    after its start, or if the span is longer than the local window."""
    policy = view.policy
    covered_s, arrivals, age_s = span
    return (
        policy.surge_window_s <= covered_s <= policy.local_window_s
        and arrivals >= policy.min_samples
        and view.state.hysteresis.last_out_ms <= seen_ms - age_s * 1000
    )


def _increase_continues(view: ModelView) -> bool:
    """Whether a proven increase needs more capacity than is planned now. During the first half
    minute the estimate still grows, and orders grow with it. After that, the order already has
    headroom above the mean; the mean rate itself must exceed the plan, because otherwise noise
    would add another instance.
    """
    rate = current_rate(view.demand, view.policy)
    return rate.window_s < LASTS_S or rate.req_per_s > view.planned_req_per_s


def _is_beyond_chance(view: ModelView, spread: float, span: Count, significance: float) -> bool:
    """Whether so many arrivals as in `span` have at most probability `significance` at the planned
    rate. spread: confirmed dispersion D of arrivals."""
    covered_s, arrivals = span
    expected = view.planned_req_per_s * covered_s
    # Divide by D: in bursts of D arrivals, only one is independent evidence.
    if covered_s < BLOCK_S:
        spread = max(spread, view.state.estimate.arrival_cv**2)  # D of single seconds
    return is_significant(round(arrivals / spread), expected / spread, significance)


def least_order(likely: float, planned: float) -> float:
    """The rate to order: `likely`, but at least enough to trigger a scale-out if `likely` exceeds
    the planned capacity. A persistent shortfall, however small, grows a queue."""
    return max(likely, 1.001 * planned / (1.0 - SLIVER)) if likely > planned else likely


def _first_order(view: ModelView, proving: list[Count]) -> float:
    """The rate of the first order for an increase: about the measured rate. Capacity added before
    this increase does not count towards the order. With more instances, each can serve up to a
    tenth more, because it gets a smaller part of bursts; so an order for exactly the measured rate
    might add no instance."""
    planned = view.planned_req_per_s
    if (
        view.is_surging
        and view.state.hysteresis.last_out_ms > view.state.target.increase_started_ms
    ):
        return planned
    seen = max(arrivals / covered_s for covered_s, arrivals in proving)
    least, most = _AT_ONCE
    return min(max(seen, least * planned), most * planned)


def spans(demand: ModelDemand) -> Iterator[tuple[int, int]]:
    """(covered seconds, arrivals) of each span: the short spans, then longer spans of 10 s
    blocks."""
    longest = 0
    for covered_s, arrivals in demand.recent:
        longest = max(longest, covered_s)
        yield covered_s, arrivals
    seen = demand.local
    if isinstance(seen, Stats):
        longest = max(longest, seen.covered_s)
        yield seen.covered_s, seen.arrivals
    yield from _longer_spans(demand.blocks, longest)


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def _longer_spans(blocks: Blocks, longest_s: int) -> list[Count]:
    """Spans longer than `longest_s`, each at least `_LONGER` times as long as the previous span."""
    found = []
    covered_s = arrivals = 0
    for block_s, count in reversed(blocks):
        covered_s += block_s
        arrivals += count
        if covered_s >= _LONGER * longest_s:
            longest_s = covered_s
            found.append((covered_s, arrivals))
    return found
