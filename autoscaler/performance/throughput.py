"""Throughput of one single-node instance under its SLOs, in each phase.

Owns the steady-state and queueing model of an instance; `stage_table` (pipelines) is offered
here too, so that callers need one import. Knows no prices and no fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autoscaler.domain.checks import finite
from autoscaler.domain.models import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance.profile import Profile
from autoscaler.performance.stages import decode_batches, prefill_batches, stage_table
from autoscaler.performance.steps import StepTimes, step_times

__all__ = ["InstanceRate", "instance_throughput", "stage_table"]


_Z95 = 1.65  # of the normal distribution: 95% lie below


@dataclass(frozen=True, slots=True)
class InstanceRate:
    """What one instance sustains.

    req_per_s: highest rate at which the SLOs hold, 0 when it cannot hold them at all.  batch:
    sequences per iteration that the limits still allow.  ttft_ms: prefill pass plus mean wait at
    the caller's utilisation.  tpot_ms: time per output token at that batch.  bound_by: "compute",
    "ttft", "tpot", "memory", "sequences" or "does not fit".
    """

    req_per_s: float
    batch: int
    ttft_ms: float
    tpot_ms: float
    bound_by: str
    uncertain: bool


def instance_throughput(
    model: ModelSpec,
    node: NodeSlice,
    phase: Phase,
    slo: Slo,
    lengths: Lengths,
    profile: Profile,
    utilisation: float = 0.8,
) -> InstanceRate:
    """Requests/s of one instance of `model` on `node` at `lengths` within `slo`.

    The rate is the capacity: the caller loads the instance to `utilisation` of it at most.
    Prefill is a queue of passes of fixed length s (M/D/1): at load ρ a request waits ρ s / 2(1-ρ)
    on average, and wait + s must stay within the TTFT limit at ρ = utilisation; where it would
    not, the rate is lowered until it does. Decode takes the largest batch whose iteration fits the
    TPOT limit and whose KV cache fits (Cauchy eq. 8-11), less what chance takes
    (`sustained_batch`). Aggregated: prefill and decode share the
    iterations, so a rate λ with prefill time P a request leaves 1 - λP of the time to decode
    iterations t(B); B = λ R_out t(B) / (1 - λP) gives λ = B / (R_out t(B) + B P).
    """
    finite("utilisation", utilisation, 1e-3, 1.0)
    times = step_times(model, node, phase, profile)
    if phase is Phase.PREFILL:
        found = list(_prefill_rates(times, slo, lengths, utilisation))
    elif phase is Phase.DECODE:
        found = list(_decode_rates(times, slo, lengths, utilisation))
    else:
        found = list(_aggregated_rates(times, slo, lengths, utilisation))
    if not found:
        return InstanceRate(0.0, 0, 0.0, 0.0, "does not fit", times.uncertain)
    best = max(found, key=lambda rate: rate.req_per_s)
    last = found[-1]
    if best.req_per_s > 0 and best is not last and last.bound_by in ("ttft", "tpot"):
        return InstanceRate(
            best.req_per_s, best.batch, best.ttft_ms, best.tpot_ms, last.bound_by, best.uncertain
        )
    return best


def allowed_load(pass_ms: float, limit_ms: float) -> float:
    """Largest load ρ of an M/D/1 queue at which mean wait + service stays within `limit_ms`."""
    slack = limit_ms / pass_ms - 1.0
    return 2.0 * slack / (1.0 + 2.0 * slack) if slack > 0 else 0.0


def wait_ms(pass_ms: float, load: float) -> float:
    """Mean wait of an M/D/1 queue with service `pass_ms` at `load` < 1."""
    return load * pass_ms / (2.0 * (1.0 - load))


def _prefill_rates(
    times: StepTimes, slo: Slo, lengths: Lengths, utilisation: float
) -> Iterator[InstanceRate]:
    for batch in prefill_batches(lengths.input_tokens):
        if batch * lengths.input_tokens > times.kv_capacity_tokens:
            return
        pass_ms = times.prefill_ms(lengths.input_tokens, 0.0, batch)
        limit_ms = slo.ttft_ms - times.first_token_ms
        factor = min(1.0, allowed_load(pass_ms, limit_ms) / utilisation)
        ttft = times.first_token_ms + pass_ms + wait_ms(pass_ms, min(factor * utilisation, 0.999))
        bound = "compute" if factor >= 1.0 else "ttft"
        rate = factor * batch / pass_ms * 1e3
        yield InstanceRate(rate, batch, ttft, 0.0, bound, times.uncertain)
        if factor <= 0.0:
            return


def sustained_batch(limit: float, utilisation: float) -> float:
    """Mean batch at capacity, so that the batch stays within `limit` in 95% of cases.

    Arrivals come by chance, so the number of requests in an instance is about Poisson (M/G/inf).
    At `utilisation` of capacity its mean m must leave room: m + 1.65 sqrt(m) <= limit, and the
    batch at capacity is m / utilisation. E.g. limit 9 at 80%: m = 5.2, so 6.5; limit 137: m = 120,
    so the limit itself, because the utilisation leaves more room than chance takes.
    """
    root = (math.sqrt(_Z95 * _Z95 + 4.0 * limit) - _Z95) / 2.0
    return min(limit, max(min(limit, 1.0), root * root / utilisation))


def _decode_rates(
    times: StepTimes, slo: Slo, lengths: Lengths, utilisation: float
) -> Iterator[InstanceRate]:
    context = lengths.input_tokens + 0.5 * lengths.output_tokens
    memory = int(min(times.kv_capacity_tokens / context, 1e9))
    for batch in decode_batches(times.max_batch):
        if batch > memory:
            return
        step = times.decode_ms(batch, context)
        planned = sustained_batch(batch, utilisation)
        planned_step = times.decode_ms(planned, context)
        rate = planned / (planned_step * lengths.output_tokens) * 1e3
        rate = rate if step <= slo.tpot_ms else 0.0
        bound = "tpot" if step > slo.tpot_ms else _room(batch, memory, times.max_batch)
        yield InstanceRate(rate, batch, 0.0, step, bound, times.uncertain)
        if step > slo.tpot_ms:
            return


def _aggregated_rates(
    times: StepTimes, slo: Slo, lengths: Lengths, utilisation: float
) -> Iterator[InstanceRate]:
    context = lengths.input_tokens + 0.5 * lengths.output_tokens
    memory = int(min(times.kv_capacity_tokens / context, 1e9))
    prefill = times.prefill_ms(lengths.input_tokens)
    for batch in decode_batches(times.max_batch):
        if batch > memory:
            return
        step = times.decode_ms(batch, context)
        per_ms = batch / (lengths.output_tokens * step + batch * prefill)
        busy = per_ms * prefill
        tpot = step / (1.0 - busy)
        # A prompt waits for the iteration under way, then for prompts before it.
        load = min(busy * utilisation, 0.999)
        ttft = times.first_token_ms + prefill + step + wait_ms(prefill, load)
        late = "ttft" if ttft > slo.ttft_ms else "tpot" if tpot > slo.tpot_ms else ""
        planned = sustained_batch(batch, utilisation)
        cycle = lengths.output_tokens * times.decode_ms(planned, context) + planned * prefill
        rate = 0.0 if late else planned / cycle * 1e3
        bound = late or _room(batch, memory, times.max_batch)
        yield InstanceRate(rate, batch, ttft, tpot, bound, times.uncertain)
        if late:
            return


def _room(batch: int, memory: int, max_batch: int) -> str:
    if batch == max_batch:
        return "sequences"
    return "memory" if batch * 9 // 8 > memory else "compute"
