"""Measured points: what was measured, on what, so that any source can be compared with estimates.

Owns the values. Knows no file formats (streams reads them) and no formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec


class PointKind(StrEnum):
    """How a point was measured.

    closed_loop: a benchmark that keeps `load` requests under way on one instance that does both
    phases; split: the same with a prefill and a decode side; batch: one batch of `load` requests
    alone on the instance, first pass and later iterations timed; steps: passes timed by
    themselves, prompts in batches of `load`.
    """

    CLOSED_LOOP = "closed_loop"
    SPLIT = "split"
    BATCH = "batch"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured point.

    model, system: as the source names them.  engine: "vllm", "sglang", "trtllm" or "" for passes
    without an engine around them.  tp: GPUs that prefill; decode_tp: GPUs that decode (the same
    ones unless kind is split).  load: requests under way per prefill side, or batch size;
    decode_load: requests per decode instance.  ttft_ms, tpot_ms: what was measured, None where
    this point does not measure it.  typical: False where the source ran kernels unlike those that
    the factors stand for; such points are compared but not fitted to.
    """

    model: str
    system: str
    spec: ModelSpec
    gpu: GpuSpec
    kind: PointKind
    engine: str
    tp: int
    decode_tp: int
    input_tokens: float
    output_tokens: float
    load: float
    decode_load: float
    ttft_ms: float | None
    tpot_ms: float | None
    typical: bool = True


@dataclass(frozen=True, slots=True)
class Estimate:
    """TTFT and TPOT that the model predicts for a point, in ms."""

    ttft_ms: float
    tpot_ms: float
