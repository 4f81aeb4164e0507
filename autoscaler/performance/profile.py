"""A profile: calibrated factors per GPU and engine, measured tables, and what is uncertain.

Owns `Profile` and its lookups. Its JSON form is in `profile_codec`. Knows no formulas of time.
Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.measurement import Architecture, Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance.efficiency import Efficiency, EngineFactors
from autoscaler.performance.measured_tables import MeasuredTable
from autoscaler.performance.mig_profiles import whole_gpu

DEFAULT_ENGINE = "vllm"
# An interconnect no faster than this is PCIe: no GPU-to-GPU links of its own.
PCIE_GB_S = 64.0
# Mixture-of-experts models beyond this size were off by more than the stated error.
_LARGE_MOE_PARAMS = 100e9


@dataclass(frozen=True, slots=True)
class Source:
    """What a profile was fitted to: measured points of one model on one system."""

    model: str
    system: str
    points: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated factors, with defaults for GPUs never measured.

    default, default_pcie: factors of GPUs never measured, with and without links of their own.
    gpus: by GPU name.  like: GPUs whose chip was measured under another name.  engines: by engine
    name; what is not there runs as `vllm`, and the empty name stands for bare kernels.
    measurements: a user's own, on top of everything else.
    content_hash: SHA-256 over everything else, so that what was built from a profile can say so.
    """

    version: int
    content_hash: str
    default: Efficiency
    default_pcie: Efficiency
    gpus: Mapping[str, Efficiency] = field(default_factory=dict)
    like: Mapping[str, str] = field(default_factory=dict)
    engines: Mapping[str, EngineFactors] = field(default_factory=dict)
    tables: tuple[MeasuredTable, ...] = ()
    sources: tuple[Source, ...] = ()
    measurements: tuple[Measurement, ...] = ()

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def kernels(self, gpu: GpuSpec) -> Efficiency:
        """Factors of bare kernels on `gpu`."""
        name = whole_gpu(gpu.name)
        name = self.like.get(name, name)
        default = self.default_pcie if gpu.interconnect_gb_s <= PCIE_GB_S else self.default
        return self.gpus.get(name, default)

    def efficiency(self, gpu: GpuSpec, engine: str = DEFAULT_ENGINE) -> Efficiency:
        """Factors of `gpu` under `engine`."""
        factors = self.engines.get(engine) or self.engines.get(DEFAULT_ENGINE)
        if not engine or factors is None:
            return self.kernels(gpu)
        return factors.applied(self.kernels(gpu))

    def measured(self, gpu: GpuSpec) -> bool:
        """Whether factors of this very GPU type were measured."""
        return gpu.name in self.gpus

    def table(self, model: ModelSpec, gpu: GpuSpec, tp: int) -> MeasuredTable | None:
        """The measured table of `model` on `tp` GPUs of type `gpu`, if there is one."""
        key = architecture(model)
        for table in self.tables:
            if (table.gpu, table.tp) == (gpu.name, tp) and table.architecture == key:
                return table if table.weight_dtype == model.weight_dtype else None
        return None

    def measurement(self, model: ModelSpec, gpu: GpuSpec, tp: int = 1) -> Measurement | None:
        """The user's measurement of `model` on `gpu`: of `tp` GPUs, else of the nearest width."""
        own = [
            found
            for found in self.measurements
            if (found.gpu, found.weight_dtype) == (gpu.name, model.weight_dtype)
            and found.architecture == architecture(model)
        ]
        return min(own, key=lambda m: (abs(m.tp - tp), m.tp), default=None)

    def uncertain(self, model: ModelSpec, gpu: GpuSpec) -> bool:
        """Whether estimates of `model` on `gpu` may be off by more than the stated error.

        So it is for GPUs that were never measured and for large mixture-of-experts models.
        """
        if self.measurement(model, gpu) is not None:
            return False
        large_moe = model.is_moe and model.params > _LARGE_MOE_PARAMS
        return large_moe or not self.measured(gpu)


def architecture(model: ModelSpec) -> Architecture:
    """What makes two names the same model, however its weights are stored."""
    return (model.layers, model.hidden, model.vocab, model.experts)
