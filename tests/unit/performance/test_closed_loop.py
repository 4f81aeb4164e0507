"""Estimates of a benchmark, compared with a simulation of every iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

import pytest

from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_with_factors
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY, Efficiency
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.performance.plausibility import peak_share
from autoscaler.performance.roofline import Roofline, roofline

LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
H100 = catalog.gpu("H100")
STEADY = replace(DEFAULT_EFFICIENCY, burst=0.0)


def _point(isl: int, osl: int, load: float, **changes: object) -> MeasuredPoint:
    point = MeasuredPoint(
        "m", "s", LLAMA, H100, PointKind.CLOSED_LOOP, "vllm", 1, 1, isl, osl, load, 0.0, 1.0, 1.0
    )
    return replace(point, **changes)  # type: ignore[arg-type]


@dataclass
class _Request:
    came_ms: float
    length: int
    first_ms: float = 0.0
    done: int = 0


def _simulated(bound: Roofline, isl: int, osl: int, load: int) -> tuple[float, float]:
    """Mean TTFT and TPOT of a simulated closed loop.

    Each iteration runs one prompt together with all decodes. Output lengths cycle between 0.8 and
    1.2 of the mean, so requests do not run in step. The first rounds, before the loop is steady,
    are not counted.
    """
    served = 0

    def fresh(now: float) -> _Request:
        nonlocal served
        served += 1
        return _Request(now, round(osl * (0.8 + 0.1 * (served * 7 % 5))))

    now = 0.0
    waiting = [fresh(now) for _ in range(load)]
    running: list[_Request] = []
    ttft: list[float] = []
    tpot: list[float] = []
    while len(tpot) < 12 * load:
        context = isl + (fmean(r.done for r in running) if running else 0.0)
        if waiting:
            now += bound.mixed_ms(isl, 0.0, len(running), context)
            started = waiting.pop(0)
            started.first_ms = now + bound.eff.first_token_ms
            ttft.append(started.first_ms - started.came_ms)
            running.append(started)
        else:
            now += bound.decode_ms(len(running), context)
        for request in running:
            request.done += 1
        for request in [r for r in running if r.done >= r.length]:
            running.remove(request)
            tpot.append((now + bound.eff.first_token_ms - request.first_ms) / request.length)
            waiting.append(fresh(now))
    return fmean(ttft[4 * load :]), fmean(tpot[4 * load :])


@pytest.mark.parametrize(
    ("isl", "osl", "load"), [(512, 128, 1), (512, 128, 16), (2048, 64, 8), (4096, 128, 12)]
)
def test_the_estimate_agrees_with_a_simulated_benchmark(isl: int, osl: int, load: int) -> None:
    ttft, tpot = _simulated(roofline(LLAMA, H100, 1, STEADY), isl, osl, load)
    guess = estimate_with_factors(_point(isl, osl, load), STEADY)
    assert guess.tpot_ms == pytest.approx(tpot, rel=0.15)
    assert guess.ttft_ms == pytest.approx(ttft, rel=0.35)


def test_requests_without_room_in_the_kv_cache_wait_for_slots() -> None:
    room = kv_capacity_tokens(LLAMA, H100, 1) / (8192 + 512)
    inside = estimate_with_factors(_point(8192, 1024, int(room) - 1), STEADY)
    beyond = estimate_with_factors(_point(8192, 1024, int(3 * room)), STEADY)
    assert beyond.ttft_ms > inside.ttft_ms + 1.5 * 1024 * inside.tpot_ms
    assert beyond.tpot_ms == pytest.approx(inside.tpot_ms, rel=0.1)


def test_a_benchmark_that_starts_all_at_once_has_a_longer_first_token() -> None:
    steady = estimate_with_factors(_point(1024, 1024, 64), STEADY)
    bursty = estimate_with_factors(_point(1024, 1024, 64), replace(STEADY, burst=0.1))
    assert bursty.ttft_ms > 1.2 * steady.ttft_ms
    assert bursty.tpot_ms == pytest.approx(steady.tpot_ms, rel=0.02)


def test_a_split_pair_decodes_without_prompts_in_between() -> None:
    together = estimate_with_factors(_point(4096, 128, 32), STEADY)
    apart = estimate_with_factors(
        _point(4096, 128, 32, kind=PointKind.SPLIT, decode_load=32.0), STEADY
    )
    assert apart.tpot_ms < 0.7 * together.tpot_ms


def test_impossibly_fast_work_is_distinguished_from_a_slow_measurement() -> None:
    exact = estimate_with_factors(_point(1024, 128, 32), STEADY)
    measured = _point(1024, 128, 32, ttft_ms=exact.ttft_ms, tpot_ms=exact.tpot_ms)
    assert 0.2 < peak_share(measured) < 1.0
    cached = replace(measured, ttft_ms=exact.ttft_ms / 10, tpot_ms=exact.tpot_ms / 4)
    assert peak_share(cached) > 1.0


def test_a_batch_faster_than_the_peak_was_not_fully_computed() -> None:
    """64 prompts of 512 tokens are 2 x 7e9 x 32768 FLOPs. They take 0.5 s at peak, so a measured
    0.1 s is impossible.
    """
    batch = _point(512, 128, 64, kind=PointKind.BATCH, ttft_ms=100.0, tpot_ms=20.0)
    assert peak_share(batch) > 1.0
    assert peak_share(replace(batch, ttft_ms=1000.0)) < 1.0


def test_an_ideal_gpu_reaches_its_peak() -> None:
    """A peak share of 1 is the roofline without loss, at the best batch size."""
    lossless = Efficiency(
        gemm=1.0, gemm_low=1.0, expert_gemm=1.0, attention=1.0, weights=1.0, kv=1.0, experts=1.0,
        link=1.0, link_wide=1.0, blend=16.0, elementwise=0.0, allreduce_us=0.0, layer_us=0.0,
        expert_layer_us=0.0, step_ms=0.0, sequence_us=0.0, first_token_ms=0.0, burst=0.0,
    )  # fmt: skip
    guess = estimate_with_factors(_point(2048, 256, 16), lossless)
    share = peak_share(_point(2048, 256, 16, ttft_ms=guess.ttft_ms, tpot_ms=guess.tpot_ms))
    assert 0.85 < share <= 1.05
