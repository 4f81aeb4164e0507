"""Efficiency factors: how much of a data sheet's figures real kernels reach.

Owns `Efficiency`, one set of factors for a GPU type. Knows no model and no GPU: the roofline
multiplies these with data-sheet figures, and a profile says which set belongs to which GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from autoscaler.domain.checks import finite


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors of one GPU type.

    gemm: share of peak FLOPs that large matrix products reach.  attention: the same for prompt
    attention.  weights: share of memory bandwidth when weights are read.  kv: the same for the KV
    cache.  experts: the same for the weights of routed experts.  elementwise: reads and writes of
    the residual stream per layer, in passes over the hidden state.  link: share of interconnect
    bandwidth in an all-reduce; allreduce_us: its latency per doubling of the GPUs.
    layer_us: fixed time per layer (kernel launches, gaps).  decode_step_ms, prefill_step_ms: fixed
    time of one iteration (scheduling, sampling, input preparation); sequence_us: the part of it
    that grows with every sequence of a decode iteration.
    """

    gemm: float = 0.65
    attention: float = 0.45
    weights: float = 0.8
    kv: float = 0.6
    experts: float = 0.6
    elementwise: float = 12.0
    link: float = 0.7
    allreduce_us: float = 8.0
    layer_us: float = 12.0
    decode_step_ms: float = 2.0
    prefill_step_ms: float = 4.0
    sequence_us: float = 10.0

    def __post_init__(self) -> None:
        for field in ("gemm", "attention", "weights", "kv", "experts", "link"):
            finite(f"efficiency.{field}", getattr(self, field), 1e-3, 2.0)
        for item in fields(self)[-5:]:
            finite(f"efficiency.{item.name}", getattr(self, item.name), 0.0, 1e6)
        finite("efficiency.elementwise", self.elementwise, 0.0, 1e4)


DEFAULT_EFFICIENCY = Efficiency()
