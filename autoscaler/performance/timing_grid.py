"""Step times of one instance as arrays, for the compiled engine.

Unlike `StepTimes`, which simulated engines use, this module imports numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev, polynomial

from autoscaler.performance import pass_kernel as kernel
from autoscaler.performance.step_times import StepTimes

Floats = npt.NDArray[np.float64]

_FIT_ERROR = 1e-9
_CONTEXT_COLUMNS = 42  # half doublings of the context, up to 2 million tokens


@dataclass(frozen=True, slots=True, eq=False)
class TimingGrid:
    """Arrays for `engine_kernel.serve`, all times in ms.

    dense, (2, batched_tokens + 1): time of a pass over T tokens without attention, head and fixed
    times; attention time of a prompt of T tokens without cached tokens. head, (max_batch + 2,):
    time of the output head for n sequences. prompt_factor: ratio of measured to estimated prompt
    time, by T. factors: this ratio for decode iterations, by batch and half doublings of the
    context; (1, 1) without measurements.
    """

    scalars: Floats
    dense: Floats
    head: Floats
    prompt_factor: Floats
    factors: Floats

    def decode_ms(self, batch: int, context: float) -> float:
        """As `StepTimes.decode_ms`, from the arrays."""
        return float(
            kernel.decode_ms(self.scalars, self.dense, self.head, self.factors, batch, context)
        )


@lru_cache(maxsize=1024)
def timing_grid(times: StepTimes, batched_tokens: int) -> TimingGrid:
    """The arrays of `times` for iterations of up to `batched_tokens` tokens."""
    bound, layers = times.roofline, times.roofline.model.layers
    model = bound.model
    scalars = np.zeros(kernel.SCALARS)
    scalars[kernel.COMPUTE] = (
        layers * 4.0 * model.heads * model.head_dim / bound.attention_flops_per_ms
    )
    bandwidth = bound.gpu.mem_bw_gb_s * 1e6 * bound.kv_shards * bound.eff.kv
    scalars[kernel.TRAFFIC] = layers * bound.shape.kv_bytes / bandwidth
    scalars[kernel.BLEND] = bound.eff.blend
    _fit(scalars)
    scalars[kernel.WINDOW] = float(model.sliding_window)
    scalars[kernel.SHARE] = model.sliding_share
    scalars[kernel.STEP] = bound.eff.step_ms
    scalars[kernel.SEQUENCE] = bound.eff.sequence_us / 1e3
    tokens = _sample_points(batched_tokens)
    dense = [
        layers * (bound.layer_ms(t, 1.0, 0.0) - bound.attention_ms(t, 1.0, 0.0)) for t in tokens
    ]
    sequences = _sample_points(times.max_batch + 1)
    head = [bound.head_ms(n) for n in sequences]
    every = np.arange(batched_tokens + 1, dtype=float)
    passes = np.zeros((2, batched_tokens + 1))
    passes[0] = np.interp(every, tokens, dense)
    kernel.whole_prompts_ms(scalars, passes[1])
    return TimingGrid(
        scalars,
        passes,
        np.interp(np.arange(times.max_batch + 2, dtype=float), sequences, head),
        _prompt_factor(times, every, tokens),
        _decode_factors(times),
    )


def _fit(scalars: Floats) -> None:
    """Store a polynomial for (1 + y^e)^(1/e) of one token's attention; y = traffic / compute. The
    attention reads r times as many KV tokens as it computes with, r in [1, 2], and the polynomial's
    argument is 2 r - 3. If no polynomial is accurate to 1e-9, because the exponent bends the curve
    too sharply, none is stored and powers are used.
    """
    if scalars[kernel.COMPUTE] <= 0.0:
        return
    full, exponent = scalars[kernel.TRAFFIC] / scalars[kernel.COMPUTE], scalars[kernel.BLEND]
    nodes = chebyshev.chebpts1(kernel.DEGREE + 1)
    at = np.concatenate([nodes, np.linspace(-1.0, 1.0, 101)])
    blended = (1.0 + (full * (0.5 * at + 1.5)) ** exponent) ** (1.0 / exponent)
    fit = polynomial.polyfit(nodes, blended[: len(nodes)], kernel.DEGREE)
    if np.abs(polynomial.polyval(at, fit) / blended - 1.0).max() < _FIT_ERROR:
        scalars[kernel.FIT : kernel.FIT + len(fit)] = fit
        scalars[kernel.FITTED] = 1.0


def _prompt_factor(times: StepTimes, every: Floats, tokens: list[float]) -> Floats:
    if not times.correction.prefill:
        return np.ones(len(every))
    factors = [times.correction.prefill_factor(t, 1.0) for t in tokens]
    return np.interp(every, tokens, factors)


def _decode_factors(times: StepTimes) -> Floats:
    if not times.correction.decode:
        return np.ones((1, 1))
    batches = _sample_points(times.max_batch)
    every = np.arange(times.max_batch + 1, dtype=float)
    columns = [
        np.interp(
            every,
            batches,
            [times.correction.decode_factor(2.0 ** (0.5 * k), b) for b in batches],
        )
        for k in range(_CONTEXT_COLUMNS)
    ]
    return np.ascontiguousarray(np.array(columns).T)


def _sample_points(most: int) -> list[float]:
    """1, 2, 3, ... up to `most`: every number up to 64, then in steps of 1.6%."""
    found = list(range(1, min(most, 64) + 1))
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, math.ceil(found[-1] / 64))))
    return [float(n) for n in found]
