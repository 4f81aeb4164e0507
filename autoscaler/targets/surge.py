"""More requests arrive than are planned for: at once where that is beyond chance.

Owns the test and the size. Many spans are looked at, from one second to the whole long window: a
tenfold burst shows within a second or two, a rise by a tenth within minutes. What lies within the
planned capacity is followed without a test, because it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.demand.dispersion import dispersion
from autoscaler.demand.observed import ModelDemand
from autoscaler.demand.present import present_rate
from autoscaler.demand.remembered import remembered
from autoscaler.demand.significance import beyond_chance
from autoscaler.demand.totals import Blocks, Count
from autoscaler.demand.windows import Stats
from autoscaler.explain import reasons
from autoscaler.targets.sustained import sustained
from autoscaler.targets.view import SLIVER, ModelView, Proposal

_LONGER = 1.5
_AT_ONCE = 1.03, 1.1
_ALIKE_S = 5.0
_MOST_LENIENT = 6.0


def propose(view: ModelView) -> Proposal | None:
    """The present rate, where arrivals prove that it exceeds what is planned."""
    demand, policy = view.demand, view.policy
    seen = demand.local
    if not isinstance(seen, Stats) or seen.age_ms > policy.surge_window_s * 1000:
        return None
    planned = view.planned_req_per_s
    # Of arrivals that come in clumps of D, only one in D says something new.
    spread = dispersion(demand.blocks).claimed
    proving = [
        (covered_s, arrivals)
        for covered_s, arrivals in spans(demand)
        if arrivals >= policy.min_samples
        and arrivals > planned * covered_s
        and beyond_chance(
            round(arrivals / spread),
            planned * covered_s / spread,
            _allowed(covered_s, policy.significance),
        )
    ]
    if proving:
        # Beyond the local window only what came since the rate last changed speaks of the present:
        # half an hour of 10 req/s proves nothing ten minutes after it fell to 3.
        longest_s = max(present_rate(demand, policy).window_s, seen.covered_s)
        proving = [span for span in proving if span[0] <= longest_s]
    raw = view.raw_req_per_s * view.state.derate
    if not proving and view.is_surging:
        size = _beyond_a_sliver(sustained(demand, policy).likely_req_per_s, planned)
        why = reasons.over(size, view.service.utilization, raw)
        return Proposal("surge", size, why, followed=True)
    if not proving:
        if seen.arrivals < policy.min_samples or seen.req_per_s <= view.state.target_req_per_s:
            return None
        why = f"{reasons.rate(seen.req_per_s)} req/s"
        return Proposal("surge", seen.req_per_s, why, evident=False)
    likely = _beyond_a_sliver(sustained(demand, policy).likely_req_per_s, planned)
    size = max(likely, _at_once(view, proving))
    since_ms = view.now_ms - seen.age_ms - min(proving)[0] * 1000
    why = reasons.over(size, view.service.utilization, raw)
    return Proposal("surge", size, why, since_ms)


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
    if view.is_surging and view.state.last_out_ms > view.state.rose_ms:
        return planned
    seen = max(arrivals / covered_s for covered_s, arrivals in proving)
    least, most = _AT_ONCE
    return min(max(seen, least * planned), most * planned)


def _allowed(covered_s: int, significance: float) -> float:
    """The probability of seeing so much by chance that is allowed of a span: `significance` of
    short ones, up to six times that from half a minute on. Looks at 30 s, a second apart, are
    nearly the same look, so all spans together raise about twice the false alarms, not six times
    (simulated at 1, 5 and 20 req/s: 1.6 to 2 times)."""
    return significance * min(_MOST_LENIENT, max(1.0, covered_s / _ALIKE_S))


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


@remembered(4096)  # blocks change every ten seconds
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
