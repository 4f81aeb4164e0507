"""Latencies in engines' histograms, as telemetry."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autoscaler.estimate.windows import NoData, Stats, TelemetryWindows
from streams.clock import Clock
from streams.controller.demand_sources import latency_sources, prometheus_sink
from streams.files.shoal_yaml import load_config
from streams.ports.latency_histograms import (
    TOKEN,
    TPOT,
    TTFT,
    WHOLE,
    Histogram,
    LatencyMeter,
    growth_by_mark,
    histogram_of,
    latencies_of,
)
from streams.ports.metric_servers import MARK
from streams.ports.promql import LatencySource, PromqlDemand
from topics.sketch import bucket_value_ms
from topics.time_base import TimeBase

INF = math.inf
SIXTY = {0.1: 30.0, 0.5: 54.0, 1.0: 57.0, INF: 60.0}


def test_a_share_is_interpolated_within_the_bucket_of_the_limit() -> None:
    seen = histogram_of(SIXTY, 60.0)
    assert seen is not None and seen.total == pytest.approx(1.0)
    assert seen.share_within(500.0) == pytest.approx(0.9)
    assert seen.share_within(300.0) == pytest.approx((30 + 24 / 2) / 60)
    assert seen.bucket_at(300.0) == (100.0, 500.0)
    assert seen.share_within(9_000.0) == pytest.approx(0.95)  # beyond the highest bound: missed
    assert seen.bucket_at(9_000.0) == (1000.0, INF)


@pytest.mark.parametrize(
    "growth",
    [
        {},
        {INF: 60.0},
        {0.1: 30.0, 0.5: 54.0},
        {0.1: math.nan, INF: 60.0},
        {0.1: -1.0, INF: 60.0},
        {0.1: 1.0, INF: 1e18},
    ],
)
def test_incomplete_or_impossible_histograms_are_unknown(growth: dict[float, float]) -> None:
    assert histogram_of(growth, 60.0) is None


def test_a_missing_or_smaller_bucket_keeps_the_total() -> None:
    assert histogram_of({0.1: 30.0, 1.0: 57.0, INF: 60.0}, 60.0) == Histogram(
        (100.0, 1000.0, INF), (0.5, 0.45, pytest.approx(0.05))
    )
    lower = histogram_of({**SIXTY, 0.5: 20.0}, 60.0)
    assert lower is not None and lower.rates[1] == 0.0 and lower.total == pytest.approx(1.0)


def test_telemetry_counts_each_request_once_over_many_spans() -> None:
    seen = latencies_of({TTFT: SIXTY, TPOT: {0.01: 30.0, 0.1: 60.0, INF: 60.0}}, 60.0, False)
    assert seen is not None
    meter = LatencyMeter(500.0, 200.0)
    spans = [meter.counts(seen, 1.0) for _ in range(600)]
    assert sum(one["completions"] for one in spans) == pytest.approx(600, abs=4)
    assert sum(one["attained"] for one in spans) == pytest.approx(540, abs=4)
    ttft = [b for one in spans for b, n in one["ttft_ms"].items() for _ in range(n)]
    late = sum(bucket_value_ms(bucket) > 1000.0 for bucket in ttft)
    assert late == pytest.approx(30, abs=2)
    assert sum(n for one in spans for n in one["tpot_ms"].values()) == pytest.approx(600, abs=4)


def test_the_smaller_share_of_both_limits_counts() -> None:
    tpot = {0.05: 48.0, 0.1: 60.0, INF: 60.0}
    seen = latencies_of({TTFT: SIXTY, TOKEN: tpot}, 60.0, False)
    assert seen is not None
    got = LatencyMeter(500.0, 50.0).counts(seen, 100.0)
    assert (got["completions"], got["attained"]) == (100, 80)
    said = LatencyMeter(300.0, 50.0).resolution(seen)
    assert said.startswith("TTFT limit 300 ms is in a bucket from 100 to 500 ms, TPOT limit 50 ms")


def test_without_traffic_nothing_completes_and_without_tpot_nothing_is_judged() -> None:
    none = dict.fromkeys(SIXTY, 0.0)
    seen = latencies_of({TTFT: none, TPOT: none}, 60.0, False)
    assert seen is not None
    got = LatencyMeter(500.0, 50.0).counts(seen, 60.0)
    assert (got["completions"], got["attained"], got["ttft_ms"]) == (0, 0, {})
    half = latencies_of({TTFT: SIXTY}, 60.0, False)
    assert half is not None
    assert set(LatencyMeter(500.0, 50.0).counts(half, 60.0)) == {"ttft_ms"}
    assert latencies_of({TPOT: SIXTY}, 60.0, False) is None


def test_pooling_models_are_judged_by_the_whole_answer() -> None:
    seen = latencies_of({WHOLE: SIXTY}, 60.0, True)
    assert seen is not None
    got = LatencyMeter(500.0, 0.0, pooling=True).counts(seen, 60.0)
    assert (got["completions"], got["attained"]) == (60, 54)


def test_bad_samples_make_their_histogram_unknown() -> None:
    good = {"metric": {"m": TTFT, "le": "+Inf"}, "value": [1, "6"]}
    for bad in ({"metric": {"m": TTFT}, "value": [1, "3"]}, {"metric": {"m": TTFT, "le": "x"}}):
        growth = growth_by_mark([good, bad], "m")
        assert histogram_of(growth[TTFT], 60.0) is None


CONFIG = """
prometheus: {main: {url: "http://p:9090"}}
regions: {eu: {l4: {gpu: L4, max: 4, price: 0.8}}}
models:
  chat:
    source: Qwen/Qwen3-8B
    slo: {ttft: 500ms, tpot: 50ms}
    demand: ENGINE
"""


def samples(mark: str, growth: dict[float, float]) -> list[dict[str, Any]]:
    return [
        {"metric": {MARK: mark, "le": "+Inf" if le == INF else str(le)}, "value": [1, str(n)]}
        for le, n in growth.items()
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "dynamo"])
def test_each_engine_with_histograms_has_a_query(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG.replace("ENGINE", engine))
    (source,) = latency_sources(load_config(path)).values()
    assert "time_to_first_token_seconds_bucket" in source.query
    assert "request_latency" not in source.query and "sum by (le)" in source.query
    assert (source.meter.ttft_ms, source.meter.tpot_ms) == (500.0, 50.0)
    path.write_text(CONFIG.replace("ENGINE", "llm-d"))
    assert latency_sources(load_config(path)) == {}
    path.write_text(CONFIG.replace("ENGINE", "sum(rate(requests[1m]))"))
    assert latency_sources(load_config(path)) == {}


async def test_latencies_are_reported_with_the_demand_and_never_without_it() -> None:
    """The windows show latencies and attainment as if a gateway had measured them. Prometheus fails
    to answer for latencies, and then for the demand.
    """
    now_s = [1_000]
    clock = Clock(TimeBase(1.0, 0, 0), mono_ns=lambda: now_s[0] * 10**9, broker_ms=lambda: 0)
    tpot = {0.05: 54.0, 0.1: 60.0, INF: 60.0}
    answers: dict[str, list[dict[str, Any]]] = {
        "rate": [{"metric": {}, "value": [1, "2"]}],
        "latency": [*samples(TTFT, SIXTY), *samples(TPOT, tpot), *samples(TOKEN, SIXTY)],
    }
    asked: list[str] = []

    def ask(query: str) -> list[dict[str, Any]]:
        asked.append(query)
        return answers[query]

    windows = TelemetryWindows(600)
    sink = prometheus_sink(windows)
    latencies = {"m": LatencySource("latency", LatencyMeter(500.0, 50.0))}
    source = PromqlDemand({"p": ask}, {"m": ("rate",)}, clock, latencies=latencies)

    async def seconds(count: int) -> None:
        for _ in range(count):
            now_s[0] += 1
            await source.ask_all(sink)

    await seconds(120)
    assert asked.count("latency") == 12 and asked.count("rate") == 120
    windows.advance(now_s[0] * 1000)
    seen = windows.stats("m", now_s[0] * 1000, 120)
    assert isinstance(seen, Stats) and seen.arrivals == pytest.approx(240, abs=4)
    assert seen.completions == pytest.approx(120, abs=4)
    assert seen.attained / seen.completions == pytest.approx(0.9, abs=0.03)
    assert seen.ttft_p95_ms == pytest.approx(1000.0, rel=0.06)
    assert seen.tpot_p95_ms is not None and 50.0 < seen.tpot_p95_ms < 105.0
    answers["latency"] = []
    await seconds(60)
    later = windows.stats("m", now_s[0] * 1000, 40)
    assert isinstance(later, Stats) and later.completions == 0 and later.arrivals > 70
    answers["rate"] = []
    answers["latency"] = samples(TTFT, SIXTY) + samples(TPOT, tpot)
    before = now_s[0]
    await seconds(30)
    gone = windows.stats("m", now_s[0] * 1000, now_s[0] - before)
    assert isinstance(gone, NoData) or gone.completions == 0
