"""The share of a data sheet's peak that a measured benchmark needs. Above 1 the measurement is
wrong."""

from __future__ import annotations

from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.efficiency import PEAK
from autoscaler.performance.roofline import roofline

# Assumption: prompts are computed at no less than a third of the peak.
_SLOWEST = 3.0


def peak_share(point: MeasuredPoint) -> float:
    """Smallest share of the data sheet's peak that explains `point`; 0 if unknown.

    For timed passes, it is the time at peak speed divided by the measured time. In a closed loop,
    the prompts and all tokens of `load` requests are computed in the time of one request. Above 1
    the GPU cannot have done this work: prompts came from a cache, fewer requests were in progress
    than the source states, or the batch was not computed in full.
    """
    if point.kind is PointKind.SPLIT:
        return 0.0
    bound = roofline(point.spec, point.gpu, point.tp, PEAK)
    context = point.input_tokens + 0.5 * point.output_tokens
    # One pass over all prompts is optimal, because the weights are read only once.
    prompts_ms = bound.prefill_ms(point.input_tokens, 0.0, point.load)
    if point.kind is PointKind.CLOSED_LOOP:
        if point.ttft_ms is None or point.tpot_ms is None:
            return 0.0
        decode_ms = point.output_tokens * point.tpot_ms
        cycle_ms = point.ttft_ms + decode_ms
        step_ms = bound.decode_ms(max(1.0, point.load * decode_ms / cycle_ms), context)
        return (prompts_ms + point.output_tokens * step_ms) / cycle_ms
    first = prompts_ms / point.ttft_ms if point.ttft_ms else 0.0
    later = bound.decode_ms(point.load, context) / point.tpot_ms if point.tpot_ms else 0.0
    return max(first, later)


def waits_for_slots(point: MeasuredPoint) -> bool:
    """Whether first tokens of a closed loop waited for a slot, in addition to prompts.

    A server that admits fewer sequences than there are requests queues the others. Their TTFT
    includes the wait for a slot, and the TPOT is that of a smaller batch. Benchmarks do not state
    this limit, so such a point cannot be compared. The test uses only measurements and the data
    sheet. It is positive if first tokens took a third of the requests' time, and longer than all
    prompts together take at a third of the peak.
    """
    if point.kind is not PointKind.CLOSED_LOOP or not point.ttft_ms or not point.tpot_ms:
        return False
    bound = roofline(point.spec, point.gpu, point.tp, PEAK)
    prompts_ms = _SLOWEST * bound.prefill_ms(point.input_tokens, 0.0, point.load)
    decode_ms = point.output_tokens * point.tpot_ms
    return point.ttft_ms > max(prompts_ms, 0.5 * decode_ms)
