"""Estimates the TTFT and TPOT of closed-loop benchmarks from pass times, including the queueing
among the requests in progress. Planning uses the open-loop model of `throughput` instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance.benchmark_points import Estimate, MeasuredPoint, PointKind
from autoscaler.performance.efficiency import PEAK, Efficiency
from autoscaler.performance.measured_tables import NO_CORRECTION, Correction
from autoscaler.performance.memory import cache_of
from autoscaler.performance.profile import Profile
from autoscaler.performance.roofline import Roofline, roofline
from autoscaler.performance.step_times import bind_formulas

_ROUNDS = 3
_MAX_SEQUENCES = 1024


def estimate_point(point: MeasuredPoint, profile: Profile) -> Estimate:
    """TTFT and TPOT in ms for `point` under `profile`, including the profile's measurements."""
    return _estimate(point, *bind_formulas(point.spec, point.gpu, point.tp, profile, point.engine))


def estimate_with_factors(point: MeasuredPoint, eff: Efficiency) -> Estimate:
    """TTFT and TPOT in ms for `point` from the roofline alone, with efficiency `eff`."""
    return _estimate(point, roofline(point.spec, point.gpu, point.tp, eff), NO_CORRECTION)


def estimate_scaled(
    point: MeasuredPoint,
    profile: Profile,
    prefill: float,
    decode: float,
    first_token_ms: float | None = None,
) -> Estimate:
    """As `estimate_point`, with the times of prompts multiplied by `prefill` and those of decode
    iterations by `decode`.

    first_token_ms: time outside of iterations before a first token; None uses the profile's value.
    """
    bound, correction = bind_formulas(point.spec, point.gpu, point.tp, profile, point.engine)
    if first_token_ms is not None:
        bound = replace(bound, eff=replace(bound.eff, first_token_ms=first_token_ms))
    return _estimate(point, bound, correction.scaled(prefill, decode))


@dataclass(frozen=True, slots=True)
class _Passes:
    """Pass times of one instance: the roofline, corrected by measurements."""

    bound: Roofline
    correction: Correction

    @property
    def model(self) -> ModelSpec:
        return self.bound.model

    @property
    def eff(self) -> Efficiency:
        return self.bound.eff

    def layer_ms(self, tokens: float, sequences: float, context: float) -> float:
        factor = self.correction.prefill_factor(tokens, sequences)
        return factor * self.bound.layer_ms(tokens, sequences, context)

    def prefill_ms(self, tokens: float, context: float = 0.0, batch: float = 1.0) -> float:
        factor = self.correction.prefill_factor(tokens, batch)
        return factor * self.bound.prefill_ms(tokens, context, batch)

    def decode_ms(self, batch: float, context: float) -> float:
        return self.correction.decode_factor(context, batch) * self.bound.decode_ms(batch, context)


def _estimate(point: MeasuredPoint, bound: Roofline, correction: Correction) -> Estimate:
    context = point.input_tokens + 0.5 * point.output_tokens
    passes = _Passes(bound, correction)
    if point.kind in (PointKind.BATCH, PointKind.STEPS):
        return Estimate(
            passes.prefill_ms(point.input_tokens, 0.0, point.load),
            passes.decode_ms(point.load, context),
        )
    if point.kind is PointKind.SPLIT:
        decode = roofline(point.spec, point.gpu, point.decode_tp, bound.eff)
        tpot = decode.decode_ms(point.decode_load, context)
        think = point.output_tokens * tpot
        return Estimate(_first_token_ms(passes, point, point.load, think, 0.0), tpot)
    return _estimate_shared(passes, point, context)


def _estimate_shared(bound: _Passes, point: MeasuredPoint, context: float) -> Estimate:
    """Prefill and decode in the iterations of one instance, with `load` requests always in
    progress.

    Between two tokens of a request, the instance computes prompts of other requests. During the
    R_out tokens of one request this is one prompt for each other request, minus the prompts before
    its first token. So TPOT = t(B d) + (B - 1) d P / R_out. B is the number of running requests, d
    the share of a request's time in decoding, and P the time that a prompt adds.
    """
    room = cache_of(point.spec, point.gpu, point.tp).sequences_at(context)
    held = max(1.0, min(point.load, room, _MAX_SEQUENCES))
    each = _marginal_prefill_ms(bound, point.input_tokens)
    decoding = 1.0
    tpot = ttft = 0.0
    for _ in range(_ROUNDS):
        step = bound.decode_ms(max(1.0, held * decoding), context)
        tpot = step + (held - 1.0) * decoding * each / point.output_tokens
        ttft = _first_token_ms(bound, point, held, point.output_tokens * tpot, step)
        decoding = point.output_tokens * tpot / (point.output_tokens * tpot + ttft)
    ttft = max(ttft, _min_first_token_ms(point, held, decoding, tpot))
    if point.load > held:
        # Requests without a slot wait. Slots become free at the service rate.
        cycle = ttft + point.output_tokens * tpot
        ttft += (point.load - held) / held * cycle
    return Estimate(ttft, tpot)


def _first_token_ms(
    bound: _Passes, point: MeasuredPoint, load: float, think_ms: float, step_ms: float
) -> float:
    """Time to the first token: the current iteration, earlier prompts, then the request's own pass.

    The steady wait follows from mean-value analysis of a closed queue. By Schweitzer's
    approximation an arriving request sees (n - 1)/n of the mean queue, which gives a quadratic
    equation. The wait is halved because service times hardly vary. A benchmark starts with all
    requests at once; `eff.burst` is the share of requests that meet this queue.
    """
    own = bound.prefill_ms(point.input_tokens) + bound.eff.first_token_ms
    each = _marginal_prefill_ms(bound, point.input_tokens)
    away = think_ms + max(0.0, own - each)
    half = 0.5 * (away - load * each)
    response = math.sqrt(half * half + each * away) - half
    wait = 0.5 * max(0.0, response - each)
    share = bound.eff.burst
    first = 0.5 * (load - 1.0) * each
    return own + 0.5 * step_ms + (1.0 - share) * wait + share * max(first, wait)


def _marginal_prefill_ms(bound: _Passes, tokens: float) -> float:
    """Time that a prompt adds to an iteration."""
    two = bound.layer_ms(2.0 * tokens, 2.0, 0.0)
    return max(1e-6, bound.model.layers * (two - bound.layer_ms(tokens, 1.0, 0.0)))


def _min_first_token_ms(
    point: MeasuredPoint, held: float, decoding: float, tpot_ms: float
) -> float:
    """Lower bound of the time to the first token in ms, from the data sheet's peak. It is needed
    for short answers at a high load: the factors are fitted to long answers, and the estimate would
    be slightly faster than the GPU can compute.
    """
    peak = roofline(point.spec, point.gpu, point.tp, PEAK)
    context = point.input_tokens + 0.5 * point.output_tokens
    step = peak.decode_ms(max(1.0, held * decoding), context)
    work = peak.prefill_ms(point.input_tokens, 0.0, held) + point.output_tokens * step
    return work - point.output_tokens * tpot_ms
