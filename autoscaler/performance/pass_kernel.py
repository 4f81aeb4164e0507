"""Times of one engine pass from sampled arrays, as compiled kernels.

Implements the formulas of `Roofline` and `StepTimes` over the arrays of `timing_grid`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled, inlined

Floats = npt.NDArray[np.float64]

# Indices in the array of scalars, see `timing_grid`.
COMPUTE, TRAFFIC, BLEND, WINDOW, SHARE, STEP, SEQUENCE, FITTED, FIT = range(9)
DEGREE = 9
SCALARS = FIT + DEGREE + 1


@inlined
def _blended(s: Floats, x: float) -> float:
    """The value of the polynomial FIT at `x`, which approximates an expression with two powers and
    is faster."""
    i, x2 = FIT, x * x
    low = s[i] + s[i + 1] * x + (s[i + 2] + s[i + 3] * x) * x2
    high = s[i + 4] + s[i + 5] * x + (s[i + 6] + s[i + 7] * x) * x2
    return float(low + (high + (s[i + 8] + s[i + 9] * x) * (x2 * x2)) * (x2 * x2))


@inlined
def attention_ms(scalars: Floats, tokens: float, sequences: float, context: float) -> float:
    """`Roofline.attention_ms`, over all layers."""
    seen = context + 0.5 * tokens
    cached = context + tokens
    window = scalars[WINDOW]
    if window > 0.0:
        share = scalars[SHARE]
        seen = (1.0 - share) * seen + share * min(seen, window)
        cached = (1.0 - share) * cached + share * min(cached, window + tokens)
    compute = scalars[COMPUTE] * sequences * tokens * seen
    traffic = scalars[TRAFFIC] * sequences * cached
    if compute <= 0.0:
        return float(traffic)
    if tokens == 1 and scalars[FITTED] > 0.0:
        return float(compute * _blended(scalars, 2.0 * cached / seen - 3.0))
    exponent = scalars[BLEND]
    return float(compute * (1.0 + (traffic / compute) ** exponent) ** (1.0 / exponent))


@compiled
def whole_prompts_ms(scalars: Floats, out_ms: Floats) -> None:
    """Fill `out_ms` (n,) with the attention times of prompts of 0, 1, ... tokens without cached
    tokens."""
    for tokens in range(1, len(out_ms)):
        out_ms[tokens] = attention_ms(scalars, tokens, 1.0, 0.0)


@inlined
def _factor_ms(factors: Floats, batch: int, context: float) -> float:
    """Correction factor of a decode iteration, by batch (rows of `factors`) and context (columns,
    one per half doubling)."""
    if factors.shape[1] == 1:
        return float(factors[0, 0])
    at = 2.0 * np.log2(max(context, 1.0))
    low = min(int(at), factors.shape[1] - 2)
    part = min(at - low, 1.0)
    return float(factors[batch, low] * (1.0 - part) + factors[batch, low + 1] * part)


@inlined
def decode_ms(
    scalars: Floats, dense: Floats, head: Floats, factors: Floats, batch: int, context: float
) -> float:
    """`StepTimes.decode_ms`."""
    time = dense[0, batch] + head[batch] + scalars[STEP] + batch * scalars[SEQUENCE]
    time += attention_ms(scalars, 1.0, batch, context)
    return float(_factor_ms(factors, batch, context) * time)


@inlined
def mixed_ms(
    scalars: Floats,
    dense: Floats,
    head: Floats,
    prompt_factor: Floats,
    tokens: int,
    context: float,
    batch: int,
    batch_context: float,
) -> float:
    """`StepTimes.mixed_ms`, or `StepTimes.prefill_ms` if no sequence decodes."""
    total = tokens + batch
    attention = dense[1, tokens] if context == 0.0 else attention_ms(scalars, tokens, 1.0, context)
    time = dense[0, total] + attention + scalars[STEP]
    if batch > 0:
        time += attention_ms(scalars, 1.0, batch, batch_context) + batch * scalars[SEQUENCE]
    return float(prompt_factor[total] * (time + head[batch + 1]))
