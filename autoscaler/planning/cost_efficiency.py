"""Cost efficiency: tokens per USD, by the formulas and by what a combo really does.

Owns eq. 1-2, 6-7 and 12-15 of Cauchy (sec. 3.2) as functions of values. Knows no pools and no
solver; the calibrated rates of `autoscaler.performance` decide capacity, these rank candidates.
"""

from __future__ import annotations

from autoscaler.domain.checks import finite
from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.models import ModelSpec
from autoscaler.domain.workload import Lengths

_SECONDS_PER_HOUR = 3600.0


def prefill_coefficient(model: ModelSpec, lengths: Lengths) -> float:
    """A1 in tokens per FLOP: 1 / (C1 R_in + C2) (Cauchy eq. 1, 2, 12)."""
    layers, hidden = model.layers, model.hidden
    c1 = 4.0 * layers * hidden
    c2 = 8.0 * layers * hidden**2 + 6.0 * layers * hidden * model.intermediate
    return 1.0 / (c1 * lengths.input_tokens + c2)


def decode_coefficient(
    model: ModelSpec, lengths: Lengths, batch: float, dtype_bytes: float = 2.0
) -> float:
    """A2 in tokens per byte: 1 / (C4 R_out / 2 + C4 R_in + C3 / B) (Cauchy eq. 6, 7, 13)."""
    finite("batch", batch, 1e-9, 1e9)
    layers, hidden = model.layers, model.hidden
    per_layer = 4.0 * hidden**2 + 3.0 * hidden * model.intermediate + 2.0 * hidden
    c3 = dtype_bytes * (2.0 * model.vocab * hidden + per_layer * layers)
    c4 = 2.0 * dtype_bytes * layers * model.kv_heads * model.head_dim
    return 1.0 / (0.5 * c4 * lengths.output_tokens + c4 * lengths.input_tokens + c3 / batch)


def theoretical_tokens_per_usd(
    model: ModelSpec,
    lengths: Lengths,
    batch: float,
    prefill: tuple[GpuSpec, float],
    decode: tuple[GpuSpec, float],
) -> float:
    """CE of a prefill-decode GPU pair (Cauchy eq. 15), each as (GPU, USD per GPU-hour > 0).

    Peak FLOPs and bandwidth are per second and prices per hour, hence the factor 3600.
    """
    a1 = prefill_coefficient(model, lengths)
    a2 = decode_coefficient(model, lengths, batch)
    prefill_gpu, prefill_usd_per_h = prefill
    decode_gpu, decode_usd_per_h = decode
    finite("price of the prefill GPU", prefill_usd_per_h, 1e-9, 1e9)
    finite("price of the decode GPU", decode_usd_per_h, 1e-9, 1e9)
    flops_per_usd = prefill_gpu.bf16_tflops * 1e12 * _SECONDS_PER_HOUR / prefill_usd_per_h
    bytes_per_usd = decode_gpu.mem_bw_gb_s * 1e9 * _SECONDS_PER_HOUR / decode_usd_per_h
    return a1 * flops_per_usd + a2 * bytes_per_usd


def phase_tokens_per_usd(
    lengths: Lengths, req_per_s: float, prefill_usd_per_h: float, decode_usd_per_h: float
) -> float:
    """CE of eq. 14 at a served rate: input tokens per prefill USD + output tokens per decode USD.

    With the rate that the phases sustain together, a mismatched ratio shows as idle money.
    """
    tokens_per_h = req_per_s * _SECONDS_PER_HOUR
    return (
        tokens_per_h * lengths.input_tokens / prefill_usd_per_h
        + tokens_per_h * lengths.output_tokens / decode_usd_per_h
    )


def combo_tokens_per_usd(lengths: Lengths, req_per_s: float, usd_per_h: float) -> float:
    """C_n of eq. 16: all tokens that a combo processes per USD spent on it.

    Check with the example of Cauchy sec. 3.3.2: 0.82 req/s for 1.09 USD/h at about 395 tokens a
    request are 1.07 million tokens per USD.
    """
    tokens = lengths.input_tokens + lengths.output_tokens
    return req_per_s * tokens * _SECONDS_PER_HOUR / usd_per_h
