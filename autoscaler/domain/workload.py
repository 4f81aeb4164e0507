"""What a model is asked to do: phases, workload buckets, SLOs and demand.

Owns the values. Knows nothing of how demand was observed (scaling) or will be met (planning).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.checks import finite


class Phase(StrEnum):
    """What an instance does of a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A workload bucket: mean input and output tokens of a request (R_in, R_out)."""

    input_tokens: float
    output_tokens: float

    def __post_init__(self) -> None:
        finite("bucket.input_tokens", self.input_tokens, 1.0, 1e7)
        finite("bucket.output_tokens", self.output_tokens, 1.0, 1e7)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits of one request: time to first token and mean time per output token."""

    ttft_ms: float
    tpot_ms: float

    def __post_init__(self) -> None:
        finite("slo.ttft_ms", self.ttft_ms, 1e-3, 1e9)
        finite("slo.tpot_ms", self.tpot_ms, 1e-3, 1e9)


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand for one model: arrivals in requests/s at a workload bucket."""

    model: str
    req_per_s: float
    bucket: Bucket

    def __post_init__(self) -> None:
        finite(f"demand of {self.model}: req_per_s", self.req_per_s, 0.0, 1e9)
