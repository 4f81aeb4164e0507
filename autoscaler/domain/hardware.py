"""GPU types with the figures of their data sheets, in decimal units. Prices belong to pools."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import finite


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU type.

    name: as in `data/gpus.json`, e.g. "H100-SXM". FLOPs are in 1e12 per second (dense, no
    sparsity), bandwidths in 1e9 bytes/s (memory: per GPU; interconnect: per GPU and direction),
    memory sizes in 1e9 bytes as the driver reports them. `label_gb`: memory size that names of MIG
    slices state, 0 = `mem_gb`. `fp8_tflops` and `fp4_tflops` are 0 if the GPU has no units for
    these formats.
    """

    name: str
    bf16_tflops: float
    fp8_tflops: float
    mem_bw_gb_s: float
    mem_gb: float
    interconnect_gb_s: float
    pcie_gb_s: float
    fp4_tflops: float = 0.0
    label_gb: float = 0.0

    def __post_init__(self) -> None:
        for field in ("bf16_tflops", "mem_bw_gb_s", "mem_gb", "interconnect_gb_s", "pcie_gb_s"):
            finite(f"gpu {self.name}: {field}", getattr(self, field), 1e-3, 1e9)
        for field in ("fp8_tflops", "fp4_tflops"):
            finite(f"gpu {self.name}: {field}", getattr(self, field), 0.0, 1e9)
