"""More requests arrive than are planned for: at once where that is beyond chance.

Owns the tests and the size. Many spans are looked at, from one second to the whole long window: a
tenfold burst shows within a second or two, a rise by a tenth within minutes. Where the plan leaves
room above the rate so far, that the rate rose is proven sooner than that it is above the plan: then
the one must be beyond doubt and the other likely. What lies within the planned capacity is followed
without a test, because it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import Blocks, Count
from autoscaler.estimate.change_point import (
    RateSpan,
    current_rate,
    current_rate_spans,
    increase_evidence,
)
from autoscaler.estimate.memoize import memoize
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import is_significant
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.sizing_rate import LASTS_S, sustained
from autoscaler.state.model_view import SLIVER, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_LONGER = 1.5
_AT_ONCE = 1.03, 1.1
_EVIDENT = 2.0


def propose(view: ModelView) -> TargetProposal | None:
    """The present rate, where arrivals prove that it exceeds what is planned."""
    demand, policy = view.demand, view.policy
    seen = demand.local
    if not isinstance(seen, Stats) or seen.age_ms > policy.surge_window_s * 1000:
        return None
    planned = view.planned_req_per_s
    proving = _over_plan(view, seen) or _risen(view)
    if not proving and view.is_surging:
        likely = sustained(demand, policy).likely_req_per_s
        size = _beyond_a_sliver(likely, planned) if _goes_on(view) else min(likely, planned)
        return TargetProposal(size, _why(view, size), continues_proof=True)
    if not proving:
        if seen.arrivals < policy.min_samples or seen.req_per_s <= view.state.target_req_per_s:
            return None
        why = Reason(ReasonCode.SURGE, view.service.model, quantities=(seen.req_per_s,))
        return TargetProposal(seen.req_per_s, why, is_proven=False)
    likely = _beyond_a_sliver(sustained(demand, policy).likely_req_per_s, planned)
    size = max(likely, _at_once(view, proving))
    since_ms = view.now_ms - seen.age_ms - min(proving)[0] * 1000
    return TargetProposal(size, _why(view, size), since_ms)


def _why(view: ModelView, size: float) -> Reason:
    capacity = view.service.utilization, view.raw_req_per_s * view.state.derate, view.groups
    return Reason(ReasonCode.SURGE, view.service.model, quantities=(size, *capacity))


def _over_plan(view: ModelView, seen: Stats) -> list[Count]:
    """The spans that by themselves prove that more arrives than is planned for. There are ten times
    as many of one second in a day as of ten, so each of them may err a tenth as often."""
    demand, policy, planned = view.demand, view.policy, view.planned_req_per_s
    proving = [
        span
        for span in spans(demand)
        if span[1] > planned * span[0]
        and span[1] >= policy.min_samples
        and _is_over(view, span, policy.significance * min(1.0, span[0] / policy.surge_window_s))
    ]
    if not proving:
        return []
    # Beyond the local window only what came since the rate last changed speaks of the present:
    # half an hour of 10 req/s proves nothing ten minutes after it fell to 3.
    longest_s = max(current_rate(demand, policy).window_s, seen.covered_s)
    return [span for span in proving if span[0] <= longest_s]


def _risen(view: ModelView) -> list[Count]:
    """The spans since whose beginning the rate is higher beyond doubt (a likelihood ratio of twice
    1 / `significance`: any rate may be tested against itself all day, while a plan mostly lies
    above it) and above the plan likely (the root of `significance`)."""
    demand, policy, planned = view.demand, view.policy, view.planned_req_per_s
    if demand.reported_ms is None:
        return []
    enough = math.log(_EVIDENT / policy.significance)
    return [
        span[:2]
        for span in current_rate_spans(demand, policy)
        if span[1] > planned * span[0]
        and _may_rise(view, span, demand.reported_ms)
        and _is_over(view, span[:2], math.sqrt(policy.significance))
        and increase_evidence(demand, policy, span) >= enough
    ]


def _may_rise(view: ModelView, span: RateSpan, seen_ms: int) -> bool:
    """Whether a rise may have begun with `span`: one that something was ordered for, or that is
    older than the local window, proves no more."""
    policy = view.policy
    covered_s, arrivals, age_s = span
    return (
        policy.surge_window_s <= covered_s <= policy.local_window_s
        and arrivals >= policy.min_samples
        and view.state.last_out_ms <= seen_ms - age_s * 1000
    )


def _goes_on(view: ModelView) -> bool:
    """Whether a rise that was proven asks for more than is planned by now.

    In its first half minute what is believed of it grows, and orders with it. What is ordered later
    leaves room above the mean, and whatever chance adds to what is believed would have one more
    instance bought: then the mean itself must exceed the plan.
    """
    rate = current_rate(view.demand, view.policy)
    return rate.window_s < LASTS_S or rate.req_per_s > view.planned_req_per_s


def _is_over(view: ModelView, span: Count, significance: float) -> bool:
    """Whether so many, of a span in which more came than is planned for, arrive by chance only with
    this probability if no more are to come."""
    covered_s, arrivals = span
    expected = view.planned_req_per_s * covered_s
    # Of arrivals that come in clumps of D, only one in D says something new.
    spread = dispersion(view.demand.blocks).confirmed
    return is_significant(round(arrivals / spread), expected / spread, significance)


def _beyond_a_sliver(likely: float, planned: float) -> float:
    """What is ordered for a rise that is likely to need more than is planned: so much that it is
    ordered. A sliver short of a rate that stays is a queue that grows."""
    return max(likely, 1.001 * planned / (1.0 - SLIVER)) if likely > planned else likely


def _at_once(view: ModelView, proving: list[Count]) -> float:
    """What is ordered whatever headroom half a minute of a rise would leave, until something was:
    as much as was seen, but little. What was added before the rise was for something else.
    Instances that share a higher rate are worth up to a tenth more each (of bursts each gets a
    smaller part), so that less might order nothing."""
    planned = view.planned_req_per_s
    if view.is_surging and view.state.last_out_ms > view.state.increase_started_ms:
        return planned
    seen = max(arrivals / covered_s for covered_s, arrivals in proving)
    least, most = _AT_ONCE
    return min(max(seen, least * planned), most * planned)


def spans(demand: ModelDemand) -> Iterator[tuple[int, int]]:
    """(covered seconds, arrivals): the short spans, then longer ones out of 10 s blocks."""
    longest = 0
    for covered_s, arrivals in demand.recent:
        longest = max(longest, covered_s)
        yield covered_s, arrivals
    seen = demand.local
    if isinstance(seen, Stats):
        longest = max(longest, seen.covered_s)
        yield seen.covered_s, seen.arrivals
    yield from _beyond(demand.blocks, longest)


@memoize(4096)  # blocks change every ten seconds
def _beyond(blocks: Blocks, longest_s: int) -> list[Count]:
    """Spans longer than `longest_s`, each half as long again as the one before."""
    found = []
    covered_s = arrivals = 0
    for block_s, count in reversed(blocks):
        covered_s += block_s
        arrivals += count
        if covered_s >= _LONGER * longest_s:
            longest_s = covered_s
            found.append((covered_s, arrivals))
    return found
