"""Rule: fewer requests arrive than are planned for, long enough and with enough evidence, and idle
capacity is not worth its rent (`waiting_value`).

The rule sets the lower target. The planner chooses which combos to remove, if any. Missed SLOs and
rising latency veto removals when a planner answer is applied (`removal`).
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, since_first_arrival
from autoscaler.estimate.change_point import current_rate
from autoscaler.estimate.engine_rate import counted_within
from autoscaler.estimate.poisson_tests import mean_bounds
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.prediction_drift import expected_s
from autoscaler.sizing.scale_in.conditions import excess_duration_s
from autoscaler.sizing.scale_in.waiting_value import rate_worth_keeping
from autoscaler.sizing.scale_out_rules import expected_req_per_s, mean_and_burst
from autoscaler.sizing.slo_misses import remaining_budget
from autoscaler.state.model_view import IDLE_RATE, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_COVERED = 0.9
"""Share of the seconds that must have been reported. Gateways that start and stop leave small
gaps."""
_MATTERS = 0.99
"""A lower target below this share of the present one counts; smaller differences are no change."""
# Standard deviations between the measured rate and its upper bound.
_TWO_SIDED_95 = 1.96
# Approximate standard deviations by which chance raises the maximum of several windows.
_CHANCE = 1.0


def lower_target(view: ModelView) -> TargetProposal | None:
    """A lower target: the highest demand within the time for which an excess must last. The model
    meets the conditions `LOWER_TARGET`, and its rate was measured."""
    seen = view.demand.local
    if not isinstance(seen, Stats):
        return None
    must_s = excess_duration_s(view.service, view.policy)
    covered_s, arrivals, highest = _counts_in(
        view.demand.blocks, must_s // BLOCK_S, view.policy.local_window_s // BLOCK_S
    )
    if view.now_ms - view.started_ms < must_s * 1000 or covered_s < _COVERED * must_s:
        return None
    engines = _engine_req_per_s(view, must_s)
    if not arrivals and not seen.arrivals and not engines and not expected_req_per_s(view):
        return _propose_zero(view, must_s)
    mean, burst = mean_and_burst(view.demand.blocks, view.service.percentile)
    rate = max(
        mean_bounds(arrivals, _TWO_SIDED_95)[1] / covered_s,
        highest,
        engines,
        current_rate(view.demand, view.policy).req_per_s,
        burst if burst > mean else 0.0,
        expected_req_per_s(view),
    )
    kept = min(_worth_keeping(view), view.planned_req_per_s)
    known = max(rate, kept), view.service.utilization, view.raw_req_per_s, must_s
    code = ReasonCode.LOWER_DEMAND if rate >= kept else ReasonCode.WORTH_ITS_RENT
    return _lower(view, max(rate, kept), Reason(code, view.service.model, quantities=known))


def _engine_req_per_s(view: ModelView, for_s: float) -> float:
    """The upper bound of the rate that engines counted in the last `for_s` seconds; 0 if probes
    explain the counts."""
    seen = counted_within(view.serving.engine_rates, for_s)
    if seen is None or not seen.arrived:
        return 0.0
    return mean_bounds(seen.arrived, _TWO_SIDED_95)[1] / seen.span_s


def _propose_zero(view: ModelView, must_s: float) -> TargetProposal | None:
    """A target for a model without traffic. With min: 0, the last combo is removed once every block
    of the last `zero_after` was reported as empty."""
    idle_s = max(must_s, view.service.zero_after_s)
    blocks = view.demand.blocks[-round(idle_s / BLOCK_S) :]
    covered_s = sum(seconds for seconds, _ in blocks)
    empty = not any(number for _, number in blocks) and covered_s >= _COVERED * idle_s
    if view.service.min_instances == 0 and not empty:
        # A target slightly above 0 keeps one combo.
        return _lower(view, IDLE_RATE, _no_requests(view, must_s))
    return _lower(view, 0.0, _no_requests(view, idle_s))


def _no_requests(view: ModelView, for_s: float) -> Reason:
    return Reason(ReasonCode.IDLE, view.service.model, quantities=(for_s,))


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def _counts_in(blocks: Blocks, count: int, window: int) -> tuple[int, int, float]:
    """Covered seconds and arrivals of the last `count` blocks, and the highest rate over `window`
    of these blocks. All 0 if requests began within these blocks."""
    if 0 < len(since_first_arrival(blocks)) < count:
        return 0, 0, 0.0
    last = blocks[-count:]
    covered_s = sum(seconds for seconds, _ in last)
    return covered_s, sum(arrivals for _, arrivals in last), _highest_rate(last, window)


def _highest_rate(blocks: Blocks, length: int) -> float:
    """The highest rate among successive spans of `length` blocks, counted back from now, minus the
    amount by which chance raises a maximum. (With the mean over all blocks, an excess that lasted
    half of the time would be accepted.)"""
    found = 0.0
    for last in range(len(blocks), 0, -max(1, length)):
        window = blocks[max(0, last - max(1, length)) : last]
        covered_s = sum(seconds for seconds, _ in window)
        if covered_s:
            arrivals = sum(number for _, number in window)
            found = max(found, mean_bounds(arrivals, _CHANCE)[0] / covered_s)
    return found


def _worth_keeping(view: ModelView) -> float:
    """The rate for which idle capacity is worth its rent, if a start takes as long as that of the
    slowest ready combo."""
    start_s = max((combo.start_s for combo in view.serving.ready), default=0.0)
    history = view.state.estimate.forecast.history
    may_miss = remaining_budget(view.demand.long, view.service.percentile)
    return rate_worth_keeping(history, view.service, expected_s(view.state, start_s), may_miss)


def _lower(view: ModelView, rate: float, why: Reason) -> TargetProposal | None:
    if view.state.hysteresis.since_addition_s(view.now_ms) < view.service.scale_in_after_s:
        # The excess cannot have lasted long enough.
        rate = max(rate, view.planned_req_per_s)
    if rate >= _MATTERS * view.state.target.req_per_s:
        return None
    return TargetProposal(rate, why)
