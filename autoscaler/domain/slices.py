"""Node slices: 1, 2, 4 or 8 GPUs of one node. Each stage of an instance runs on one slice."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.validation import InvalidValue

SLICE_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """`gpus` GPUs of type `gpu` inside one node, tensor parallel over all of them."""

    gpu: GpuSpec
    gpus: int

    def __post_init__(self) -> None:
        if self.gpus not in SLICE_SIZES:
            raise InvalidValue("slice.gpus", self.gpus, "1, 2, 4 or 8")

    @property
    def mem_gb(self) -> float:
        """Memory of the slice in 1e9 bytes."""
        return self.gpu.mem_gb * self.gpus

    @property
    def name(self) -> str:
        """Short text for people: "4xH100-SXM"."""
        return f"{self.gpus}x{self.gpu.name}"
