"""A profile: calibrated factors per GPU and engine, measured tables, and uncertain estimates.

`profile_codec` has its JSON form. Pure Python.
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
# In 1e9 bytes/s: an interconnect up to this speed is PCIe, i.e. there are no direct links between
# GPUs.
PCIE_GB_S = 64.0
# Estimates of mixture-of-experts models above this size may exceed the stated error.
_LARGE_MOE_PARAMS = 100e9


@dataclass(frozen=True, slots=True)
class Source:
    """The source of fitted factors: measured points of one model on one system."""

    model: str
    system: str
    points: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Calibrated factors, with defaults for GPUs without measurements.

    default, default_pcie: factors of unmeasured GPUs with and without direct links between GPUs.
    gpus: factors by GPU name. like: for a GPU whose chip was measured under another name, the other
    name. engines: factors by engine name, and by `engine_format` for weight formats with factors
    of their own; an unknown engine has the factors of `vllm`, and the empty name means bare
    kernels. measurements: the user's measurements, applied last.
    content_hash: SHA-256 over all other fields, which identifies the profile in results.
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

    def efficiency(
        self, gpu: GpuSpec, engine: str = DEFAULT_ENGINE, weight_dtype: str = ""
    ) -> Efficiency:
        """Factors of `gpu` under `engine` for weights in `weight_dtype` (formats without factors of
        their own have those of the engine)."""
        by_format = self.engines.get(engine_format(engine, weight_dtype, gpu))
        factors = by_format or self.engines.get(engine) or self.engines.get(DEFAULT_ENGINE)
        if not engine or factors is None:
            return self.kernels(gpu)
        return factors.apply_to(self.kernels(gpu))

    def is_measured(self, gpu: GpuSpec) -> bool:
        """Whether the factors of `gpu` come from measurements of this GPU type itself."""
        return gpu.name in self.gpus

    def table(self, model: ModelSpec, gpu: GpuSpec, tp: int) -> MeasuredTable | None:
        """The measured table of `model` on `tp` GPUs of type `gpu`; None if there is none."""
        key = architecture_key(model)
        for table in self.tables:
            if (table.gpu, table.tp) == (gpu.name, tp) and table.architecture == key:
                return table if table.weight_dtype == model.weight_dtype else None
        return None

    def measurement(self, model: ModelSpec, gpu: GpuSpec, tp: int = 1) -> Measurement | None:
        """The user's measurement of `model` on `tp` GPUs of type `gpu`, else on the nearest number
        of GPUs; None without any."""
        own = [
            found
            for found in self.measurements
            if (found.gpu, found.weight_dtype) == (gpu.name, model.weight_dtype)
            and found.architecture == architecture_key(model)
        ]
        return min(own, key=lambda m: (abs(m.tp - tp), m.tp), default=None)

    def uncertain(self, model: ModelSpec, gpu: GpuSpec) -> bool:
        """Whether estimates of `model` on `gpu` may exceed the stated error.

        True for GPUs without measurements and for large mixture-of-experts models.
        """
        if self.measurement(model, gpu) is not None:
            return False
        large_moe = model.is_moe and model.params > _LARGE_MOE_PARAMS
        return large_moe or not self.is_measured(gpu)


def engine_format(engine: str, weight_dtype: str, gpu: GpuSpec) -> str:
    """The name in `Profile.engines` of the factors of `engine` for weights in `weight_dtype`, which
    `gpu` multiplies natively or widens first."""
    units = {"fp8": gpu.fp8_tflops, "fp4": gpu.fp4_tflops, "mxfp4": gpu.fp4_tflops}
    native = units.get(weight_dtype, 0.0) > 0.0
    return f"{engine} {weight_dtype} {'native' if native else 'widened'}"


def architecture_key(model: ModelSpec) -> Architecture:
    """Sizes that are equal for all names and weight formats of one model."""
    return (model.layers, model.hidden, model.vocab, model.experts)
