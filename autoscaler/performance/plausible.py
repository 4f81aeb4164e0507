"""How much of a data sheet's peak a measured benchmark would need.

Owns the bound that tells an impossible measurement from a bad estimate. Knows no efficiencies.
"""

from __future__ import annotations

from autoscaler.performance.efficiency import PEAK
from autoscaler.performance.points import MeasuredPoint, PointKind
from autoscaler.performance.roofline import roofline


def peak_share(point: MeasuredPoint) -> float:
    """Least share of the data sheet's peak that what `point` measured takes; 0 if not known.

    Passes timed by themselves: the lossless time over the measured one. A closed loop: while a
    request passes, every one of the `load` requests gets its prompt computed and all its tokens
    decoded. Above 1 the GPU cannot have done this work: prompts came out of a cache, fewer
    requests were under way than the source says, or not all of the batch was computed.
    """
    if point.kind is PointKind.SPLIT:
        return 0.0
    bound = roofline(point.spec, point.gpu, point.tp, PEAK)
    context = point.input_tokens + 0.5 * point.output_tokens
    # One pass over all prompts: reading the weights once for all of them is the optimum.
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
