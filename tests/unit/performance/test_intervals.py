"""Intervals cover the points of models that were not used to make them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import Estimate, MeasuredPoint, PointKind
from autoscaler.performance.closed_loop import estimate_point
from autoscaler.performance.estimate_errors import EstimatedPoint
from autoscaler.performance.intervals import (
    interval_of,
    intervals,
    intervals_on,
    packaged_intervals,
    rate_interval,
)
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.plausibility import waits_for_slots

SPEC, GPU = catalog.model("meta-llama/Llama-3.1-8B"), catalog.gpu("H100")


def point(model: str, ttft_ms: float, tpot_ms: float, load: float = 8.0) -> MeasuredPoint:
    kind = PointKind.CLOSED_LOOP
    return MeasuredPoint(
        model, "h100", SPEC, GPU, kind, "vllm", 1, 1, 1000.0, 200.0, load, load, ttft_ms, tpot_ms
    )


def pairs(models: int, each: int, seed: int = 1) -> list[EstimatedPoint]:
    """Estimates of 100 and 10 ms, with measurements that scatter by 20% around them."""
    chance = random.Random(seed)
    return [
        (
            point(
                f"m{m}", 100.0 * chance.lognormvariate(0, 0.2), 10.0 * chance.lognormvariate(0, 0.2)
            ),
            Estimate(100.0, 10.0),
        )
        for m in range(models)
        for _ in range(each)
    ]


def test_intervals_cover_nine_in_ten_points_of_held_out_models() -> None:
    found = intervals(pairs(8, 100))
    assert [(i.kind, i.figure) for i in found] == [("dense", "TTFT"), ("dense", "TPOT")]
    for one in found:
        assert one.covered == pytest.approx(0.9, abs=0.03)
        assert one.low == pytest.approx(0.72, abs=0.05)
        assert one.high == pytest.approx(1.39, abs=0.08)


def test_an_unusual_model_is_not_covered_by_its_own_points() -> None:
    odd = [(replace(p, model="odd", tpot_ms=30.0), e) for p, e in pairs(1, 100)]
    found = {i.figure: i for i in intervals([*pairs(4, 100), *odd])}
    assert found["TPOT"].covered < 0.85


def test_a_few_points_give_no_interval() -> None:
    assert intervals(pairs(2, 5)) == []


def test_a_rate_has_its_interval_and_a_measurement_a_narrower_one() -> None:
    low, high = rate_interval(SPEC)
    assert low < 1.0 < high
    assert len(packaged_intervals()) == 11
    assert all(0.85 <= one.covered <= 1.0 for one in packaged_intervals())


def test_a_chip_has_an_interval_of_its_own() -> None:
    """MI300X and MI355X have no timed passes, so most predictions are too fast."""
    sparse = catalog.model("deepseek-ai/DeepSeek-R1")
    assert interval_of("TPOT", sparse, "MI300X") == interval_of("TPOT", sparse, "MI355X")
    assert interval_of("TPOT", sparse, "MI300X").high > interval_of("TPOT", sparse, "H200-SXM").high
    assert interval_of("TTFT", sparse, "B200-SXM").high > interval_of("TTFT", sparse).high
    assert interval_of("TPOT", SPEC, "MI300X") != interval_of("TPOT", SPEC, GPU.name)


def test_an_interval_that_misses_a_format_widens_on_that_side() -> None:
    fast = replace(GPU, name="fast")
    late = [
        (replace(p, model="late", gpu=fast, tpot_ms=30.0 + n), e)
        for n, (p, e) in enumerate(pairs(1, 20))
    ]
    before, after = (
        next(one for one in make([*pairs(40, 20), *late]) if one.figure == "TPOT")
        for make in (intervals, intervals_on)
    )
    assert before.high < 3.0 and before.low == after.low
    held = sum(30.0 + n <= 10.0 * after.high for n in range(20))
    assert held >= 17


def test_an_interval_holds_points_of_models_that_chose_no_factor() -> None:
    """Six points of a new model are too few to matter among 800 of others."""
    new = [(replace(p, model="new", tpot_ms=p.tpot_ms * 5.0), e) for p, e in pairs(1, 6)]
    everything = [*pairs(40, 20), *new]
    with_new, without = (
        next(one for one in intervals_on(everything, aside) if one.figure == "TPOT")
        for aside in (new, ())
    )
    assert without.high < with_new.high
    assert all((p.tpot_ms or 0.0) / e.tpot_ms <= with_new.high + 1e-9 for p, e in new)


def test_a_server_with_fewer_slots_than_requests_is_detected_by_its_ttft() -> None:
    """512 requests are in flight on 128 slots. The others wait for whole
    answers, not for prompts.
    """
    usual = estimate_point(point("m", 1.0, 1.0, load=64.0), default_profile())
    assert not waits_for_slots(point("m", usual.ttft_ms, usual.tpot_ms, load=64.0))
    assert waits_for_slots(point("m", 30_000.0, 10.0, load=512.0))


def test_differing_models_widen_the_interval_until_it_covers_held_out_ones() -> None:
    """Each of eight models is off by its own factor. Quantiles over seven of them rarely cover the
    eighth.
    """
    shifted = []
    for number, factor in enumerate((0.6, 0.75, 0.85, 0.95, 1.05, 1.2, 1.4, 1.8)):
        for own, guess in pairs(1, 40, seed=number):
            tpot_ms = None if own.tpot_ms is None else own.tpot_ms * factor
            shifted.append((replace(own, model=f"m{number}", tpot_ms=tpot_ms), guess))
    found = {one.figure: one for one in intervals(shifted)}
    assert found["TPOT"].covered >= 0.88
    assert found["TPOT"].low < 0.6 * 0.75
    assert found["TPOT"].high > 1.8 * 1.2
