"""Measurements of a user's own engine correct the estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_point, estimate_scaled
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile_sources import with_measurements
from autoscaler.performance.step_times import step_times
from autoscaler.performance.user_measurements import fit_measurement

SPEC, GPU, PROFILE = catalog.model("meta-llama/Llama-3.1-8B"), catalog.gpu("L4"), default_profile()


def point(load: float, tokens: float = 1024.0) -> MeasuredPoint:
    return MeasuredPoint(
        "m",
        "L4",
        SPEC,
        GPU,
        PointKind.CLOSED_LOOP,
        "vllm",
        1,
        1,
        tokens,
        128.0,
        load,
        load,
        1.0,
        1.0,
    )


def measured_at(
    prefill: float, decode: float, first_token_ms: float | None = None
) -> list[MeasuredPoint]:
    """Points of an engine whose prompts and iterations take longer by the factors `prefill` and
    `decode`.

    first_token_ms: time of the host before a first token; None = as in the packaged profile.
    """
    found = []
    for load in (1.0, 4.0, 16.0):
        for tokens in (256.0, 1024.0):
            truth = estimate_scaled(point(load, tokens), PROFILE, prefill, decode, first_token_ms)
            found.append(replace(point(load, tokens), ttft_ms=truth.ttft_ms, tpot_ms=truth.tpot_ms))
    return found


@pytest.mark.parametrize(("prefill", "decode"), [(1.3, 1.1), (0.9, 1.4), (8.0, 3.0)])
def test_the_factors_of_an_engine_are_recovered(prefill: float, decode: float) -> None:
    found = fit_measurement(measured_at(prefill, decode), PROFILE, "2026-11-20")
    assert found.prefill == pytest.approx(prefill, rel=0.05)
    assert found.decode == pytest.approx(decode, rel=0.05)
    assert found.error < 0.03


@pytest.mark.parametrize("host_ms", [30.0, 200.0])
def test_host_time_before_a_first_token_is_separated_from_prompt_time(host_ms: float) -> None:
    found = fit_measurement(measured_at(1.3, 1.1, host_ms), PROFILE, "2026-11-20")
    assert found.first_token_ms == pytest.approx(host_ms, rel=0.15)
    assert found.prefill == pytest.approx(1.3, rel=0.05)
    knows = with_measurements(PROFILE, [found])
    times = step_times(SPEC, NodeSlice(GPU, 1), Phase.AGGREGATED, knows)
    assert times.first_token_ms == found.first_token_ms


def test_prompts_of_one_length_do_not_show_the_host_time() -> None:
    alike = [one for one in measured_at(1.3, 1.1) if one.input_tokens == 1024.0]
    found = fit_measurement(alike, PROFILE, "2026-11-20")
    assert found.first_token_ms is None
    assert found.prefill == pytest.approx(1.3, rel=0.05)


def test_a_measured_table_is_corrected_once() -> None:
    """Factors of 1 leave the packaged table of the tiny model on a CPU core unchanged."""
    spec, core = catalog.model("shoal/tiny-llama"), catalog.gpu("CPU-core")
    points = [
        replace(point(load, tokens), spec=spec, gpu=core, system="CPU-core")
        for load in (1.0, 2.0)
        for tokens in (128.0, 512.0)
    ]
    guesses = [(one, estimate_point(one, PROFILE)) for one in points]
    real = [replace(p, ttft_ms=guess.ttft_ms, tpot_ms=guess.tpot_ms) for p, guess in guesses]
    found = fit_measurement(real, PROFILE, "2026-11-20")
    assert (found.prefill, found.decode) == pytest.approx((1.0, 1.0), rel=0.05)
    assert found.error < 0.02


def test_a_profile_that_knows_a_measurement_predicts_it_and_calls_it_certain() -> None:
    points = measured_at(1.5, 1.2)
    assert PROFILE.uncertain(SPEC, GPU)
    knows = with_measurements(PROFILE, [fit_measurement(points, PROFILE, "2026-11-20")])
    for one in points:
        guess = estimate_point(one, knows)
        assert guess.ttft_ms == pytest.approx(one.ttft_ms, rel=0.05)
        assert guess.tpot_ms == pytest.approx(one.tpot_ms, rel=0.05)
    assert not knows.uncertain(SPEC, GPU)
    assert knows.uncertain(catalog.model("Qwen/Qwen3-8B"), GPU)
    assert knows.content_hash != PROFILE.content_hash


def test_iterations_of_an_instance_take_the_measured_time() -> None:
    knows = with_measurements(
        PROFILE, [fit_measurement(measured_at(1.5, 1.2), PROFILE, "2026-11-20")]
    )
    node = NodeSlice(GPU, 1)
    before = step_times(SPEC, node, Phase.AGGREGATED, PROFILE)
    after = step_times(SPEC, node, Phase.AGGREGATED, knows)
    assert after.prefill_ms(800.0) == pytest.approx(1.5 * before.prefill_ms(800.0), rel=0.05)
    assert after.decode_ms(8.0, 900.0) == pytest.approx(
        1.2 * before.decode_ms(8.0, 900.0), rel=0.05
    )


def test_the_stated_error_is_that_of_held_out_points() -> None:
    """One point of seven is off by half, and the error includes it."""
    points = measured_at(1.0, 1.0)
    spoilt = [*points, replace(points[0], load=8.0, tpot_ms=1.5 * float(points[0].tpot_ms or 0))]
    assert fit_measurement(spoilt, PROFILE, "2026-11-20").error > 0.02


def test_a_measurement_faster_than_the_gpu_is_refused() -> None:
    fast = [replace(point(16.0), ttft_ms=5.0, tpot_ms=0.5)]
    with pytest.raises(InvalidValue, match="is this the GPU"):
        fit_measurement(fast, PROFILE, "2026-11-20")


def test_points_of_two_models_are_refused_as_one_measurement() -> None:
    other = replace(point(1.0), spec=catalog.model("Qwen/Qwen3-8B"))
    with pytest.raises(InvalidValue, match="one model"):
        fit_measurement([measured_at(1.0, 1.0)[0], other], PROFILE, "2026-11-20")
