"""How much of a data sheet's peak a measured benchmark would need.

Owns the bound that tells an impossible measurement from a bad estimate. Knows no efficiencies.
"""

from __future__ import annotations

from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.efficiency import PEAK
from autoscaler.performance.roofline import roofline

# Prompts are computed at a third of the peak at worst.
_SLOWEST = 3.0


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


def waits_for_slots(point: MeasuredPoint) -> bool:
    """Whether a closed loop's first tokens waited for more than prompts to be computed.

    A server that admits fewer sequences than are under way keeps the rest in a queue: their TTFT is
    the wait for a slot and the TPOT is that of a smaller batch. Which limit it had, benchmarks do
    not say, so such a point cannot be compared. Judged from what was measured and the data sheet
    alone: first tokens took a third of the requests' time, and longer than all prompts under way
    together take at a third of the peak.
    """
    if point.kind is not PointKind.CLOSED_LOOP or not point.ttft_ms or not point.tpot_ms:
        return False
    bound = roofline(point.spec, point.gpu, point.tp, PEAK)
    prompts_ms = _SLOWEST * bound.prefill_ms(point.input_tokens, 0.0, point.load)
    decode_ms = point.output_tokens * point.tpot_ms
    return point.ttft_ms > max(prompts_ms, 0.5 * decode_ms)
