"""Fits recover known factors and resist bad points; tables of measurements interpolate."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.calibration import calibrate
from autoscaler.performance.closed_loop import estimate_point, estimate_with_factors
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY, Efficiency, EngineFactors
from autoscaler.performance.estimate_errors import errors_by_class, errors_by_group
from autoscaler.performance.holdout import estimate_all, estimate_held_out_half, leave_one_out
from autoscaler.performance.least_squares import fit
from autoscaler.performance.packaged_profile import plain_profile
from autoscaler.performance.profile_codec import decode, encode

LLAMA, QWEN = catalog.model("meta-llama/Llama-3.1-8B"), catalog.model("Qwen/Qwen3-8B")
LLAMA_70B = catalog.model("meta-llama/Llama-3.1-70B")
H100, A100, L40S = catalog.gpu("H100"), catalog.gpu("A100"), catalog.gpu("L40S")
MI300X = catalog.gpu("MI300X")

TRUTH = replace(
    DEFAULT_EFFICIENCY, gemm=0.62, weights=0.9, kv=0.6, attention=0.4, layer_us=35.0, step_ms=0.4
)


def _steps(spec, gpu, truth: Efficiency) -> list[MeasuredPoint]:
    """Timed iterations as a measurement would give them if `truth` were exact."""
    points = []
    for tp, length, batch, first in product((1, 2), (128, 1024, 8192), (1, 8, 64), (True, False)):
        blank = MeasuredPoint(
            spec.name, gpu.name, spec, gpu, PointKind.STEPS, "", tp, tp, length, 0.0, batch, 0.0,
            None, None,
        )  # fmt: skip
        exact = estimate_with_factors(blank, truth)
        points.append(
            replace(
                blank,
                ttft_ms=exact.ttft_ms if first else None,
                tpot_ms=None if first else exact.tpot_ms,
            )
        )
    return points


def _benchmarks(spec, gpu, truth: Efficiency) -> list[MeasuredPoint]:
    """Closed loops as they would run if `truth` were exact."""
    points = []
    for isl, osl, load, tp in product((512, 4096), (128, 1024), (1, 8, 32), (1, 2)):
        blank = MeasuredPoint(
            spec.name, gpu.name, spec, gpu, PointKind.CLOSED_LOOP, "vllm", tp, tp, isl, osl, load,
            0.0, None, None,
        )  # fmt: skip
        exact = estimate_with_factors(blank, truth)
        points.append(replace(blank, ttft_ms=exact.ttft_ms, tpot_ms=exact.tpot_ms))
    return points


def test_the_fit_recovers_the_factors_of_the_points() -> None:
    points = _steps(LLAMA, H100, TRUTH) + _steps(LLAMA_70B, H100, TRUTH)
    found = calibrate(points).gpus["H100-SXM"]
    for name in ("gemm", "weights", "kv"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.1), name
    after = errors_by_class(estimate_all(points, calibrate(points)))[-1]
    assert after.ttft_mape is not None
    assert after.ttft_mape < 0.02
    before = errors_by_class(estimate_all(points, plain_profile()))[-1]
    assert before.ttft_mape is not None
    assert before.ttft_mape > 0.1


def test_a_few_wrong_measurements_barely_change_the_fit() -> None:
    good = _steps(LLAMA, H100, TRUTH) + _steps(LLAMA_70B, H100, TRUTH)
    bad = [
        replace(p, ttft_ms=p.ttft_ms and 20 * p.ttft_ms, tpot_ms=p.tpot_ms and 20 * p.tpot_ms)
        if i % 15 == 0
        else p
        for i, p in enumerate(good)
    ]
    error = errors_by_class(estimate_all(good, calibrate(bad)))[-1]
    assert error.ttft_mape is not None
    assert error.tpot_mape is not None
    assert error.ttft_mape < 0.1
    assert error.tpot_mape < 0.1


def test_a_point_of_an_unusual_kernel_is_not_used() -> None:
    good = _steps(LLAMA, H100, TRUTH)
    odd = [replace(p, typical=False, ttft_ms=1e5, tpot_ms=1e5) for p in good]
    assert calibrate(good + odd).gpus == calibrate(good).gpus


def test_an_unmeasured_gpu_gets_the_factors_of_its_class() -> None:
    slow = replace(TRUTH, gemm=0.3)
    profile = calibrate(_steps(LLAMA, H100, TRUTH) + _steps(LLAMA, L40S, slow))
    pcie = catalog.gpu("A10G")
    assert not profile.is_measured(pcie)
    assert profile.uncertain(LLAMA, pcie)
    assert profile.kernels(pcie).gemm == pytest.approx(0.3, rel=0.15)
    assert profile.kernels(catalog.gpu("MI300X")).gemm == pytest.approx(0.62, rel=0.15)


def test_engine_overheads_are_derived_from_benchmarks() -> None:
    steps = _steps(LLAMA, H100, TRUTH) + _steps(LLAMA_70B, H100, TRUTH)
    kernels = calibrate(steps).gpus["H100-SXM"]
    engine = EngineFactors(
        compute=0.8, traffic=0.8, step_ms=3.0, sequence_us=40.0, first_token_ms=90.0, burst=0.1
    )
    bench = _benchmarks(LLAMA, H100, engine.apply_to(kernels))
    profile = calibrate(steps + bench)
    error = errors_by_class(estimate_all(bench, profile))[-1]
    assert error.ttft_mape is not None
    assert error.tpot_mape is not None
    assert error.ttft_mape < 0.08
    assert error.tpot_mape < 0.08
    assert decode(encode(profile)) == profile


def test_a_measured_batch_is_preferred_and_neighbours_follow_it() -> None:
    def batch(tokens: float, load: float, ttft: float, tpot: float) -> MeasuredPoint:
        return MeasuredPoint(
            "m", "s", LLAMA, A100, PointKind.BATCH, "", 1, 1, tokens, 128, load, 0.0, ttft, tpot
        )

    points = [batch(512, 1, 77.0, 19.0), batch(2048, 1, 300.0, 20.0), batch(512, 8, 500.0, 25.0)]
    profile = calibrate(points)
    for point in points:
        assert estimate_point(point, profile).ttft_ms == pytest.approx(point.ttft_ms, rel=1e-3)
        assert estimate_point(point, profile).tpot_ms == pytest.approx(point.tpot_ms, rel=1e-3)
    between = estimate_point(batch(1024, 1, 1.0, 1.0), profile)
    assert 77.0 < between.ttft_ms < 300.0
    assert 19.0 < between.tpot_ms < 20.5


def test_leave_one_out_does_not_use_the_held_out_model_on_its_gpu() -> None:
    """The points of the 8B model on an H100 are wrong on purpose. An estimate that leaves them out
    does not follow them.
    """
    honest = _steps(LLAMA_70B, H100, TRUTH) + _steps(LLAMA, A100, TRUTH)
    wrong = [
        replace(p, ttft_ms=p.ttft_ms and 2 * p.ttft_ms, tpot_ms=p.tpot_ms and 2 * p.tpot_ms)
        for p in _steps(LLAMA, H100, TRUTH)
    ]
    asked: list[tuple[int, int]] = []
    pairs = leave_one_out(
        honest + wrong, [], whole_model=False, report=lambda done, n: asked.append((done, n))
    )
    assert asked == [(0, 3), (1, 3), (2, 3)]
    groups = {(g.model, g.system): g for g in errors_by_group(pairs, [False] * len(pairs))}
    left_out = groups[(LLAMA.name, H100.name)].tpot_mape
    assert left_out == pytest.approx(0.5, abs=0.1)


def test_half_the_configurations_predict_the_other_half() -> None:
    points = _steps(LLAMA, H100, TRUTH) + _steps(LLAMA_70B, H100, TRUTH)
    error = errors_by_class(estimate_held_out_half(points, [], configurations=True))[-1]
    assert error.points == len(points) // 2
    assert error.tpot_mape is not None
    assert error.tpot_mape < 0.05


def test_least_squares_stays_in_bounds_and_at_its_start_without_data() -> None:
    found = fit(
        {"a": 1.0, "b": 3.0, "c": 5.0},
        lambda f: [math.log(f["a"] / 4.0), math.log(f["b"] / 9.0)],
        {"a": (0.1, 10.0), "b": (0.1, 6.0), "c": (0.1, 10.0)},
        prior_weight=1e-6,
    )
    assert found["a"] == pytest.approx(4.0, rel=1e-2)
    assert found["b"] == pytest.approx(6.0, rel=1e-6)
    assert found["c"] == pytest.approx(5.0, rel=1e-6)


def test_a_gpu_without_timed_passes_takes_its_kernels_from_benchmarks() -> None:
    """The engine factors come from the GPUs with timed passes."""
    slow = replace(TRUTH, weights=0.45, gemm=0.3)
    engine = EngineFactors(traffic=0.8, step_ms=2.0)
    points = [*_steps(LLAMA, H100, TRUTH), *_steps(LLAMA_70B, H100, TRUTH)]
    served = [
        *_benchmarks(LLAMA, H100, engine.apply_to(TRUTH)),
        *_benchmarks(LLAMA, MI300X, engine.apply_to(slow)),
    ]
    found = calibrate([*points, *served])
    assert found.gpus["MI300X"].weights < 0.75 * found.gpus["H100-SXM"].weights
    assert found.like["MI325X"] == "MI300X"
    error = errors_by_class(estimate_all(_benchmarks(QWEN, MI300X, engine.apply_to(slow)), found))
    assert error[-1].tpot_mape is not None and error[-1].tpot_mape < 0.1
    alone = calibrate([*points, *served[: len(served) // 2]])
    assert alone.engines == found.engines
    assert "MI300X" not in alone.gpus


def test_experts_do_not_determine_the_rate_of_dense_layers_in_fp8() -> None:
    """Experts tell only the product of two factors, so the rate of dense layers is that of other
    GPUs, although the experts of this one are slow."""
    dense, experts = (
        catalog.quantized(catalog.model(name), "fp8")
        for name in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B")
    )
    h200 = catalog.gpu("H200")
    slow = replace(TRUTH, gemm_low=0.6, expert_gemm=0.1)
    found = calibrate(
        _steps(dense, H100, replace(TRUTH, gemm_low=0.6))
        + _steps(experts, H100, replace(TRUTH, gemm_low=0.6))
        + _steps(experts, h200, slow)
        + _steps(QWEN, h200, slow)
    )
    usual, other = found.gpus["H100-SXM"], found.gpus["H200-SXM"]
    assert other.gemm_low == pytest.approx(usual.gemm_low, rel=0.1)
