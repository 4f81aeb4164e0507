"""Weights in MXFP4 have kernels of their own. The points are public benchmarks of gpt-oss-120b
under vLLM (InferenceMAX) to which nothing was fitted."""

from __future__ import annotations

import pytest

from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_point
from autoscaler.performance.intervals import planned_share, rate_interval
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import engine_format

SPEC = catalog.model("openai/gpt-oss-120b")
PROFILE = default_profile()
MEASURED = [
    # GPU, tensor parallelism, prompt, answer, concurrency, TTFT and TPOT in ms
    ("B200", 1, 1024, 1024, 32, 75.8, 8.206),
    ("B200", 1, 8192, 1024, 32, 240.3, 9.869),
    ("B200", 2, 1024, 8192, 64, 69.5, 6.897),
    ("B200", 4, 8192, 1024, 8, 88.8, 3.533),
    ("H100", 2, 8192, 1024, 64, 964.9, 26.64),
    ("H100", 4, 1024, 1024, 8, 48.5, 4.87),
]


@pytest.mark.parametrize("row", MEASURED)
def test_measured_times_are_near_the_estimate(
    row: tuple[str, int, int, int, int, float, float],
) -> None:
    name, tp, prompt, answer, load, ttft_ms, tpot_ms = row
    lengths = 0.9 * prompt, 0.9 * answer  # the benchmark draws lengths from 80% to 100%
    point = MeasuredPoint(
        SPEC.name, name, SPEC, catalog.gpu(name), PointKind.CLOSED_LOOP, "vllm", tp, tp,
        *lengths, load, 0.0, ttft_ms, tpot_ms,
    )  # fmt: skip
    found = estimate_point(point, PROFILE)
    assert found.tpot_ms == pytest.approx(tpot_ms, rel=0.25)
    assert found.ttft_ms == pytest.approx(ttft_ms, rel=0.45)
    low, high = rate_interval(SPEC, None, catalog.gpu(name).name)
    assert low < found.tpot_ms / tpot_ms < high


def test_units_for_the_format_decide_its_factors() -> None:
    names = {engine_format("vllm", "mxfp4", catalog.gpu(one)) for one in ("B200", "H100")}
    assert names == {"vllm mxfp4 native", "vllm mxfp4 widened"} <= set(PROFILE.engines)
    assert PROFILE.efficiency(catalog.gpu("B200"), "vllm", "bf16") == PROFILE.efficiency(
        catalog.gpu("B200")
    )


def test_a_gpu_without_points_keeps_the_wide_interval() -> None:
    assert planned_share(SPEC, None, "B200-SXM") == 1.0
    assert planned_share(SPEC, None, "L40S") < 0.6
