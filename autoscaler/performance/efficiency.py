"""Efficiency factors: the share of data sheet figures that real kernels and engines reach.

The roofline multiplies data-sheet figures by `Efficiency` (one GPU type with an engine);
`EngineFactors` describe an engine relative to bare kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from autoscaler.domain.validation import finite


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors of one GPU type, with the overheads of the engine that runs on it.

    gemm: share of peak FLOPs that large BF16 matrix products reach; gemm_low: the share for FP8 and
    FP4, of their own peak; expert_gemm: share of these rates that routed experts reach. attention:
    share of peak BF16 FLOPs in prompt attention. weights, kv, experts: share of memory bandwidth
    for reading weights, the KV cache and routed experts. link: share of interconnect bandwidth in
    an all-reduce; link_wide: factor on that bandwidth among more than two GPUs (below 1 if GPUs
    without NVLink share a host bridge). blend: exponent p of the time (c^p + m^p)^(1/p) of compute
    c and memory traffic m, which overlap in part. elementwise: reads and writes of the hidden state
    per layer outside of matrix products. allreduce_us: latency of an all-reduce per doubling of the
    GPUs.

    layer_us: fixed time per layer (kernel launches, gaps); expert_layer_us: additional time in a
    layer that routes to experts. step_ms: fixed time of one iteration (scheduling, sampling, input
    preparation); sequence_us: additional time per decoding sequence. first_token_ms: time outside
    of iterations until a client sees the first token (request parsing, tokenising, transfer of the
    answer); it takes no GPU time. burst: share of a benchmark's requests that start at the same
    time (only for comparisons with benchmarks, not for plans).
    """

    gemm: float = 0.75
    gemm_low: float = 0.6
    expert_gemm: float = 0.5
    attention: float = 0.5
    weights: float = 0.8
    kv: float = 0.8
    experts: float = 0.65
    link: float = 0.6
    link_wide: float = 0.9
    blend: float = 1.4
    elementwise: float = 12.0
    allreduce_us: float = 5.0
    layer_us: float = 20.0
    expert_layer_us: float = 10.0
    step_ms: float = 1.0
    sequence_us: float = 8.0
    first_token_ms: float = 30.0
    burst: float = 0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            finite(f"efficiency.{item.name}", getattr(self, item.name), *_bounds(item.name))


@dataclass(frozen=True, slots=True)
class EngineFactors:
    """An engine compared with bare kernels: multipliers of speeds and times, and overheads.

    compute, traffic: multiply the speeds of matrix products and attention, and of reading weights
    and KV cache. expert_compute, expert_traffic: multiply these speeds for routed experts. link:
    multiplies the bandwidth of all-reduces (engines overlap some of them). layer, allreduce:
    multiply fixed times. The other fields replace those of `Efficiency` with equal names.
    """

    compute: float = 1.0
    traffic: float = 0.9
    expert_compute: float = 1.0
    expert_traffic: float = 0.9
    link: float = 1.0
    layer: float = 1.0
    allreduce: float = 1.0
    expert_layer_us: float = 10.0
    step_ms: float = 1.0
    sequence_us: float = 8.0
    first_token_ms: float = 30.0
    burst: float = 0.1

    def __post_init__(self) -> None:
        for item in fields(self):
            finite(f"engine.{item.name}", getattr(self, item.name), 0.0, 1e6)

    def apply_to(self, kernels: Efficiency) -> Efficiency:
        """The factors of kernels in this engine, from those of bare `kernels`."""
        return replace(
            kernels,
            gemm=kernels.gemm * self.compute,
            gemm_low=kernels.gemm_low * self.compute,
            attention=kernels.attention * self.compute,
            expert_gemm=kernels.expert_gemm * self.expert_compute,
            weights=kernels.weights * self.traffic,
            kv=kernels.kv * self.traffic,
            experts=kernels.experts * self.expert_traffic,
            link=kernels.link * self.link,
            layer_us=kernels.layer_us * self.layer,
            allreduce_us=kernels.allreduce_us * self.allreduce,
            expert_layer_us=self.expert_layer_us,
            step_ms=self.step_ms,
            sequence_us=self.sequence_us,
            first_token_ms=self.first_token_ms,
            burst=self.burst,
        )


def _bounds(name: str) -> tuple[float, float]:
    if name == "blend":
        return 1.0, 16.0
    overhead = name.endswith(("_us", "_ms")) or name in ("elementwise", "burst")
    return (0.0, 1e6) if overhead else (1e-3, 4.0)


DEFAULT_EFFICIENCY = Efficiency()


# All kernels reach the data sheet's figures, compute and traffic overlap fully, no overheads.
PEAK = Efficiency(
    gemm=1.0, gemm_low=1.0, expert_gemm=1.0, attention=1.0, weights=1.0, kv=1.0, experts=1.0,
    link=1.0, link_wide=1.0, blend=16.0, elementwise=0.0, allreduce_us=0.0, layer_us=0.0,
    expert_layer_us=0.0, step_ms=0.0, sequence_us=0.0, first_token_ms=0.0, burst=0.0,
)  # fmt: skip
