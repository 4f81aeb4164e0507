"""Cost efficiency (CE): tokens per USD of a combo, for ranking candidates. Formulas: eq. 14-15 of
Cauchy (sec. 3.2), at the calibrated rates of `autoscaler.performance`.
"""

from __future__ import annotations

from autoscaler.domain.workload import Lengths

_SECONDS_PER_HOUR = 3600.0


def phase_tokens_per_usd(
    lengths: Lengths, req_per_s: float, prefill_usd_per_h: float, decode_usd_per_h: float
) -> float:
    """CE of eq. 14 at a served rate: input tokens per prefill USD + output tokens per decode USD.

    Both phases run at the rate of the slower one, so a mismatched ratio of instances lowers the
    result.
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
