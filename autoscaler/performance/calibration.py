"""Fit a profile to measured points.

Kernel factors per GPU are fitted to timed passes, then engine factors to benchmarks (with these
kernel factors). GPUs without timed passes get kernel factors from benchmarks (with these engine
factors). Tables are made from measured batches.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from statistics import median

from autoscaler.domain.hardware import GpuSpec
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_with_factors
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY, Efficiency, EngineFactors
from autoscaler.performance.least_squares import fit
from autoscaler.performance.measured_tables import MeasuredTable
from autoscaler.performance.plausibility import peak_share
from autoscaler.performance.profile import (
    DEFAULT_ENGINE,
    PCIE_GB_S,
    Profile,
    Source,
    architecture_key,
    engine_format,
)
from autoscaler.performance.profile_codec import make_profile

# GPUs with the chip of another GPU: they use the other GPU's factors if they have no measurements.
_LIKE = {
    "A100-SXM-40GB": "A100-SXM-80GB",
    "A100-PCIe-80GB": "A100-SXM-80GB",
    "A800-SXM-80GB": "A100-SXM-80GB",
    "A800-PCIe-80GB": "A100-SXM-80GB",
    "H100-PCIe": "H100-SXM",
    "H800-SXM": "H100-SXM",
    "h100-80gb-pcap": "H100-SXM",
    "H20": "H200-SXM",
    "B300-SXM": "B200-SXM",
    "L4": "L40S",
    "L40": "L40S",
    "RTX6000-Ada": "L40S",
    "RTX4090": "L40S",
    "L20": "L40S",
    "A100-PCIe-40GB": "A100-SXM-80GB",
    "H100-NVL": "H100-SXM",
    "H200-NVL": "H200-SXM",
    "GH200-96GB": "H100-SXM",
    "GB200": "B200-SXM",
    "GB300": "B200-SXM",
    "H20-3e": "H200-SXM",
    "RTXPRO6000-Blackwell-Workstation": "RTXPRO6000-Blackwell-Server",
    "GH200-144GB": "H200-SXM",
    "A800-SXM-40GB": "A100-SXM-80GB",
    "RTX5000-Ada": "L40S",
    "RTX4000-Ada": "L40S",
    "RTX4090D": "L40S",
    "RTXPRO6000-Blackwell-MaxQ": "RTXPRO6000-Blackwell-Server",
    "RTXPRO5000-Blackwell": "RTXPRO6000-Blackwell-Server",
    "RTXPRO4500-Blackwell": "RTXPRO6000-Blackwell-Server",
    "MI325X": "MI300X",
    "MI350X": "MI355X",
}
_MIN_POINTS = 20
_OWN_KERNELS = ("mxfp4",)
_LOW = ("fp8", "fp4")
# A fit uses at most this many points, spread evenly, because more points hardly change the result.
_SAMPLE = 500
_KERNEL_PRIOR, _ENGINE_PRIOR = 0.05, 0.5
# Kernels reach about three quarters of the peak, so a benchmark that requires more than this share
# must be wrong.
_MAX_PEAK_SHARE = 0.8
# Weight of TTFT residuals: below 1, because TTFT is noisier than TPOT and depends on how the
# benchmark starts.
_TTFT_WEIGHT = 0.6

_KERNELS = {
    "gemm": (0.15, 1.0), "gemm_low": (0.1, 1.0), "expert_gemm": (0.05, 1.5),
    "attention": (0.1, 1.0), "weights": (0.4, 1.0), "kv": (0.2, 1.0), "experts": (0.2, 1.2),
    "link": (0.05, 1.0), "link_wide": (0.02, 1.0), "blend": (1.05, 8.0), "elementwise": (1.0, 60.0),
    "allreduce_us": (0.5, 60.0), "layer_us": (0.2, 80.0), "expert_layer_us": (0.1, 200.0),
    "step_ms": (0.01, 5.0), "sequence_us": (0.01, 30.0),
}  # fmt: skip
# Engines replace or multiply the other factors, so benchmarks cannot determine both.
_IN_BENCHMARKS = ("gemm", "gemm_low", "expert_gemm", "attention", "weights", "kv", "experts",
                  "link", "allreduce_us", "layer_us")  # fmt: skip
_ENGINE = {
    "compute": (0.4, 1.3), "traffic": (0.4, 1.2), "layer": (0.1, 3.0), "allreduce": (0.1, 5.0),
    "step_ms": (0.05, 20.0), "sequence_us": (0.05, 200.0), "first_token_ms": (0.5, 500.0),
    "burst": (0.005, 0.5), "link": (0.3, 4.0),
}  # fmt: skip
_ENGINE_EXPERTS = {
    "expert_compute": (0.05, 1.5),
    "expert_traffic": (0.05, 1.5),
    "expert_layer_us": (0.1, 500.0),
}

Points = Sequence[MeasuredPoint]


def calibrate(points: Iterable[MeasuredPoint]) -> Profile:
    """A profile fitted to `points`, including tables. Factors without points keep their
    defaults."""
    found = [point for point in points if point.typical and _plausible(point)]
    steps = tuple(p for p in found if p.kind is PointKind.STEPS)
    benchmarks = [p for p in found if p.kind is not PointKind.STEPS]
    names = sorted({p.gpu.name for p in steps})
    pools = {
        pcie: _kernels(tuple(p for p in steps if _pcie(p.gpu) is pcie), DEFAULT_EFFICIENCY)
        for pcie in (False, True)
    }
    gpus = {}
    for name in names:
        own = tuple(p for p in steps if p.gpu.name == name)
        if len(own) >= _MIN_POINTS:
            gpus[name] = _kernels(own, pools[_pcie(own[0].gpu)])
    like = {name: other for name, other in _LIKE.items() if other in gpus and name not in gpus}
    bare = make_profile(pools[False], pools[True], gpus, like)
    timed = [p for p in benchmarks if p.gpu.name in bare.gpus or p.gpu.name in bare.like]
    usable = timed or benchmarks
    engines = _engines(usable, bare) if usable else {DEFAULT_ENGINE: EngineFactors()}
    fitted = make_profile(pools[False], pools[True], gpus, like, engines)
    if timed:
        fitted = with_benchmark_kernels(fitted, benchmarks)
    batches = [p for p in found if p.kind is PointKind.BATCH]
    counts = Counter((p.model, p.system) for p in found)
    sources = [Source(model, system, n) for (model, system), n in sorted(counts.items())]
    return make_profile(
        pools[False], pools[True], fitted.gpus, fitted.like, engines, _tables(batches), sources
    )


def with_benchmark_kernels(profile: Profile, benchmarks: Iterable[MeasuredPoint]) -> Profile:
    """`profile` with kernel factors of the GPUs that only `benchmarks` measure. They are fitted
    with the engine factors of `profile`."""
    by_chip: dict[str, list[MeasuredPoint]] = defaultdict(list)
    for point in benchmarks:
        chip = _LIKE.get(point.gpu.name, point.gpu.name)
        if chip not in profile.gpus and point.kind is not PointKind.STEPS:
            by_chip[chip].append(point)
    gpus = {
        name: _kernels_in_engines(own, profile)
        for name, own in sorted(by_chip.items())
        if len(own) >= _MIN_POINTS
    }
    gpus = {**profile.gpus, **gpus}
    like = {name: other for name, other in _LIKE.items() if other in gpus and name not in gpus}
    return make_profile(
        profile.default, profile.default_pcie, gpus, {**profile.like, **like}, profile.engines,
        profile.tables, profile.sources,
    )  # fmt: skip


def _kernels_in_engines(points: Points, profile: Profile) -> Efficiency:
    """Kernel factors of the GPU of `points`, from benchmarks of engines with known factors."""
    sample = _sample([point for point in points if _plausible(point)])
    start = profile.kernels(sample[0].gpu)
    like = {p.gpu.name: sample[0].gpu.name for p in sample[1:] if p.gpu != sample[0].gpu}

    def residuals(factors: Mapping[str, float]) -> list[float]:
        made = replace(profile, gpus={sample[0].gpu.name: Efficiency(**factors)}, like=like)
        return _residuals(
            sample,
            lambda p: made.efficiency(p.gpu, p.engine, p.spec.weight_dtype),
            _TTFT_WEIGHT,
        )

    free = {name: _KERNELS[name] for name in _IN_BENCHMARKS}
    return Efficiency(**fit(asdict(start), residuals, free, _ENGINE_PRIOR))


def _plausible(point: MeasuredPoint) -> bool:
    # Single passes come closer to the peak than whole benchmarks do, so their limit is higher.
    limit = _MAX_PEAK_SHARE if point.kind is PointKind.CLOSED_LOOP else 1.0
    return peak_share(point) <= limit


def _pcie(gpu: GpuSpec) -> bool:
    return gpu.interconnect_gb_s <= PCIE_GB_S


@lru_cache(maxsize=128)
def _kernels(points: tuple[MeasuredPoint, ...], start: Efficiency) -> Efficiency:
    """Kernel factors of one GPU type, or of a class of GPU types, from timed passes."""
    sample = _sample(points)
    if len(sample) < _MIN_POINTS:
        return start

    def residuals(factors: Mapping[str, float]) -> list[float]:
        eff = Efficiency(**factors)
        return _residuals(sample, lambda _: eff, 1.0)

    free = dict(_KERNELS)
    if sum(not p.spec.is_moe and p.spec.weight_dtype in _LOW for p in sample) < _MIN_POINTS:
        # Experts in a low precision tell only the product of both factors.
        del free["gemm_low"]
    return Efficiency(**fit(asdict(start), residuals, free, _KERNEL_PRIOR))


def _engines(benchmarks: Points, bare: Profile) -> dict[str, EngineFactors]:
    """Factors of each engine. Dense models are fitted first, then the factors of experts."""
    dense = [p for p in benchmarks if not p.spec.is_moe]
    sparse = [p for p in benchmarks if p.spec.is_moe]
    # Points of timed batches have no serving engine.
    serving = [p for p in dense if p.kind is not PointKind.BATCH]
    usual = _engine(serving, bare, EngineFactors(), _ENGINE)
    usual = _engine(sparse, bare, usual, _ENGINE_EXPERTS)
    found = {DEFAULT_ENGINE: usual}
    for name in sorted({p.engine for p in benchmarks}):
        own = [p for p in dense if p.engine == name]
        experts = [p for p in sparse if p.engine == name]
        if len(own) >= _MIN_POINTS:
            base = _engine(own, bare, usual, _ENGINE)
            found[name] = _engine(experts, bare, base, _ENGINE_EXPERTS)
        else:
            found[name] = _engine([*own, *experts], bare, usual, {**_ENGINE, **_ENGINE_EXPERTS})
        for key, points in _by_format(p for p in benchmarks if p.engine == name):
            if len(points) >= _MIN_POINTS:
                found[key] = _engine(points, bare, found[name], {**_ENGINE, **_ENGINE_EXPERTS})
    return found


def _by_format(points: Iterable[MeasuredPoint]) -> Iterable[tuple[str, Points]]:
    """Points of formats with kernels of their own, by `engine_format`."""
    found: dict[str, list[MeasuredPoint]] = defaultdict(list)
    for point in points:
        if point.spec.weight_dtype in _OWN_KERNELS:
            found[engine_format(point.engine, point.spec.weight_dtype, point.gpu)].append(point)
    return sorted(found.items())


def _engine(
    points: Points, bare: Profile, start: EngineFactors, free: Mapping[str, tuple[float, float]]
) -> EngineFactors:
    sample = _sample(points)
    if len(sample) < _MIN_POINTS:
        return start

    def residuals(factors: Mapping[str, float]) -> list[float]:
        engine = EngineFactors(**factors)
        efficiencies = {p.gpu: engine.apply_to(bare.kernels(p.gpu)) for p in sample}
        return _residuals(sample, lambda point: efficiencies[point.gpu], _TTFT_WEIGHT)

    return EngineFactors(**fit(asdict(start), residuals, free, _ENGINE_PRIOR))


def _sample(points: Points) -> Points:
    stride = max(1, math.ceil(len(points) / _SAMPLE))
    return points[::stride]


def _residuals(
    points: Points, factors: Callable[[MeasuredPoint], Efficiency], ttft_weight: float
) -> list[float]:
    """ln(estimate / measured) of every measured TTFT and TPOT of `points`."""
    found = []
    for point in points:
        guess = estimate_with_factors(point, factors(point))
        if point.ttft_ms is not None:
            found.append(ttft_weight * math.log(guess.ttft_ms / point.ttft_ms))
        if point.tpot_ms is not None:
            found.append(math.log(guess.tpot_ms / point.tpot_ms))
    return found


def _tables(points: Points) -> list[MeasuredTable]:
    """Measured tables of batches. If a point was measured several times, the median is used."""
    groups: dict[tuple[object, ...], list[MeasuredPoint]] = defaultdict(list)
    for p in points:
        groups[(architecture_key(p.spec), p.spec.weight_dtype, p.gpu.name, p.tp)].append(p)
    tables = []
    for own in groups.values():
        first: dict[tuple[float, float], list[float]] = defaultdict(list)
        later: dict[tuple[float, float], list[float]] = defaultdict(list)
        for p in own:
            if p.ttft_ms is not None:
                first[(p.input_tokens, p.load)].append(p.ttft_ms)
            if p.tpot_ms is not None:
                later[(p.input_tokens + 0.5 * p.output_tokens, p.load)].append(p.tpot_ms)
        tables.append(
            MeasuredTable(
                architecture_key(own[0].spec),
                own[0].spec.weight_dtype,
                own[0].gpu.name,
                own[0].tp,
                _medians(first),
                _medians(later),
            )
        )
    return sorted(tables, key=lambda t: (t.architecture, t.gpu, t.tp))


def _medians(
    measured: Mapping[tuple[float, float], Sequence[float]],
) -> tuple[tuple[float, float, float], ...]:
    return tuple(
        (length, batch, round(median(times), 3))
        for (length, batch), times in sorted(measured.items())
    )
