"""Slices of NVIDIA GPUs (Multi-Instance GPU): their names, and their shares of a GPU.

The profile "1g.10gb" has 1 of 7 compute slices and 10 GB of memory. Its share of the memory
bandwidth equals its share of the memory, which is a multiple of 1/8 (1/4 on GPUs with four slices).
Slices have no link to each other. Source: NVIDIA's MIG user guide, "Supported MIG Profiles" and
"Supported GPUs".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from autoscaler.domain.hardware import GpuSpec

_NAME = re.compile(r"(.+?)(?:/|[-_ ]mig[-_ ])(\dg\.\d+gb)(?:\+me(?:\.all)?|\+gfx|-me)?\Z")
_SEVENTHS = {
    (1, 8): "1g", (1, 4): "1g", (2, 4): "2g", (3, 2): "3g", (4, 2): "4g", (7, 1): "7g",
}  # fmt: skip
_QUARTERS = {(1, 4): "1g", (2, 2): "2g", (4, 1): "4g"}
_OF_SEVEN = frozenset({
    "A100-SXM-40GB", "A100-SXM-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB", "A800-SXM-80GB",
    "A800-PCIe-80GB", "H100-SXM", "H100-PCIe", "H100-NVL", "H800-SXM", "H20", "GH200-96GB",
    "H200-SXM", "H200-NVL", "B200-SXM", "B300-SXM", "GB200", "GB300",
})  # fmt: skip
_OF_FOUR = frozenset({"A30", "RTXPRO6000-Blackwell-Server"})
_ROUNDED_GB = 1.0


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A profile of one GPU. compute, memory: shares of the whole GPU."""

    name: str
    compute: Fraction
    memory: Fraction


def split_name(name: str) -> tuple[str, str] | None:
    """GPU and profile in the name of a slice, "H100/1g.10gb", or
    "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb" as device plugins label nodes. None if `name` is not a
    slice."""
    match = _NAME.match(name.strip().lower())
    return (name.strip()[: len(match[1])], match[2]) if match else None


def profiles(gpu: GpuSpec) -> tuple[MigProfile, ...]:
    """The profiles of `gpu`; empty if the GPU has no slices. A name contains the slice's memory,
    rounded to whole GB."""
    parts, table = 7, _SEVENTHS
    if gpu.name in _OF_FOUR:
        parts, table = 4, _QUARTERS
    elif gpu.name not in _OF_SEVEN:
        return ()
    found = []
    for (slices, share), words in table.items():
        name = f"{words}.{int((gpu.label_gb or gpu.mem_gb) / share + 0.5)}gb"
        found.append(MigProfile(name, Fraction(slices, parts), Fraction(1, share)))
    return tuple(found)


def slice_of(gpu: GpuSpec, profile: str) -> GpuSpec | None:
    """The slice of `gpu` with the name `profile`; None if `gpu` has no such profile.

    The memory in a name may differ by 1 GB, because drivers round it.
    """
    slices, _, memory = profile.partition("g.")
    for one in profiles(gpu):
        own, _, gb = one.name.partition("g.")
        if own == slices and abs(float(gb[:-2]) - float(memory[:-2])) <= _ROUNDED_GB:
            compute, share = float(one.compute), float(one.memory)
            return replace(
                gpu,
                name=f"{gpu.name}/{one.name}",
                bf16_tflops=gpu.bf16_tflops * compute,
                fp8_tflops=gpu.fp8_tflops * compute,
                fp4_tflops=gpu.fp4_tflops * compute,
                mem_bw_gb_s=gpu.mem_bw_gb_s * share,
                mem_gb=gpu.mem_gb * share,
                interconnect_gb_s=gpu.pcie_gb_s,
            )
    return None


def whole_gpu(name: str) -> str:
    """The full name of the GPU that the slice `name` is part of; `name` itself for a whole GPU."""
    return name.partition("/")[0]


def is_slice(name: str) -> bool:
    """Whether `name`, the full name of a GPU, denotes a slice."""
    return "/" in name
