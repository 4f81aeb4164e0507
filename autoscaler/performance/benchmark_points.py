"""Benchmark points: measurements with their conditions, for comparison with estimates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec


class PointKind(StrEnum):
    """How a point was measured.

    closed_loop: a benchmark that keeps `load` requests in progress on one instance that does both
    phases. split: a closed loop with a prefill and a decode side. batch: a single batch of `load`
    requests on the instance, with times of the first pass and of later iterations. steps: times of
    single passes; prompts are in batches of `load`.
    """

    CLOSED_LOOP = "closed_loop"
    SPLIT = "split"
    BATCH = "batch"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One measured point.

    model, system: names in the source. engine: "vllm", "sglang", "trtllm", or "" for passes without
    an engine. tp: GPUs that prefill; decode_tp: GPUs that decode (the same GPUs unless kind is
    split). load: requests in progress per prefill side, or batch size; decode_load: requests per
    decode instance. ttft_ms, tpot_ms: measured times, None if not measured. typical: False if the
    source used other kernels than the factors describe; such points are compared but not fitted.
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
    """Predicted TTFT and TPOT of a point, in ms."""

    ttft_ms: float
    tpot_ms: float
