"""Evidence that the capacity is above its plan, and that a gain learnt from it is lost.

A plan may be below the prediction (`capacity: cautious`), and the prediction may be too low. Two
kinds of evidence count. The time per token agrees with the prediction, or lasts below it. Or the
instances serve more than their whole capacity within the SLO. Gains rise by small steps, because a
step that is too large shows only as missed SLOs. They end at once when requests miss their SLO at a
load that the ready instances should carry, whether or not others are starting.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.estimate.model_demand import SHIFT_SPANS_S
from autoscaler.estimate.windows import Stats
from autoscaler.sizing.engine_slowdown import SLOW, capacity_share, token_time_ratio
from autoscaler.sizing.slo_misses import beyond_chance, surely_attained
from autoscaler.state.model_view import ModelView

STEP = 0.03
"""Relative size of one increase. It is small, because an increase that is too large shows only as
missed SLOs."""
_WAIT_MS = 6 * 3_600_000
"""Time in ms without gains after misses ended one. Each gain that is too large costs minutes of
missed SLOs, so this limits them to less than a hundredth of the time."""
_NEAR = 0.8
"""Share of the planned load from which fast tokens prove more than the prediction. At lower loads,
speculative decoding is faster than at the planned load."""
_QUARTER = 0.5
"""Share of the requests in decoding at half of the planned load from which token times count as
confirmation of the prediction."""
_EXCESS_SIGMAS = 2.0


def learnt_gain(view: ModelView) -> float:
    """The factor of at least 1 that measurements justify now; 0 while misses that ended a gain are
    recent."""
    known = view.state.capacity
    if known.gain_lost_ms and view.now_ms - known.gain_lost_ms < _WAIT_MS:
        return 0.0
    step = known.derate * (1.0 + STEP)
    return max(min(step, _supported_factor(view)), _served_factor(view))


def _supported_factor(view: ModelView) -> float:
    """The capacity that token times confirm now, as a multiple of the planned one, within the
    interval of the prediction; at most 1 without such evidence."""
    known = view.state.capacity
    most = min(known.highest, capacity_share(view) * known.predicted)
    ratio = token_time_ratio(view, _QUARTER)
    if ratio is None:
        return min(1.0, most)
    loaded = view.demand.req_per_s >= _NEAR * view.planned_req_per_s
    fastest = known.slowdown if known.slowdown < 1.0 and loaded else 1.0
    return min(most, known.predicted / max(ratio, fastest))


def _served_factor(view: ModelView) -> float:
    """The load that was served within the SLO as a multiple of the raw capacity, within the
    interval; 0 without evidence. The raw capacity includes the margin of `utilization`, so a load
    above the plan is no such evidence. Slow tokens contradict it."""
    seen, ratio = view.demand.local, token_time_ratio(view, _QUARTER)
    if not isinstance(seen, Stats) or not surely_attained(seen, view.service.percentile):
        return 0.0
    if ratio is None or ratio >= SLOW:
        return 0.0
    served = min(seen.req_per_s, seen.attained / max(seen.covered_s, 1))
    return min(view.state.capacity.highest, served / max(view.raw_req_per_s, 1e-9))


def gain_is_lost(view: ModelView) -> bool:
    """Whether a derating above 1 is too high: requests miss their SLO beyond chance, in any of the
    last spans, at loads that the ready instances should carry."""
    ready, derate = view.serving.ready, view.state.capacity.derate
    if not any(combo.meets_slo for combo in ready):
        return False
    holds = sum(combo.req_per_s for combo in ready) * view.service.utilization * derate
    spans = list(_spans(view))
    for span_s, arrivals, _, _ in spans:
        if arrivals - _EXCESS_SIGMAS * arrivals**0.5 > holds * span_s:
            return False
    return any(beyond_chance(view, misses, ended) for _, _, misses, ended in spans)


def _spans(view: ModelView) -> Iterator[tuple[int, int, int, int]]:
    """(seconds, arrivals, misses, requests that ended) of the last spans."""
    for span_s, sums in zip(SHIFT_SPANS_S, view.demand.recent_tokens, strict=False):
        ended = sums.completions + sums.failures + sums.refused
        yield span_s, sums.arrivals, ended - sums.attained, ended
    seen = view.demand.local
    if isinstance(seen, Stats):
        ended = seen.completions + seen.failures + seen.refused
        yield max(seen.covered_s, 1), seen.arrivals, ended - seen.attained, ended
