"""Demand from Prometheus: rates become whole requests. Missing data, NaN and zero differ."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.exceptions import ConnectionError as NoConnection

from autoscaler.estimate.windows import NoData, Stats, TelemetryWindows
from streams.clock import Clock, Times
from streams.controller.demand_sources import gateways_sink, prometheus_queries, prometheus_sink
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.ports import promql as module
from streams.ports.merged_records import MERGED
from streams.ports.promql import PromqlDemand, rate_of
from tests.hang_limit import HANG_S
from topics.telemetry_columns import ROUTE_GENERATION, SPAN_MS, TelemetryBatch
from topics.time_base import TimeBase

CLOCK = Clock(TimeBase(1.0, 1_000_000, 0), mono_ns=lambda: 60_000_000_000, broker_ms=lambda: 0)


def vector(*values: str) -> list[dict[str, Any]]:
    return [{"metric": {}, "value": [1.0, value]} for value in values]


@pytest.mark.parametrize(
    ("answer", "rate"),
    [
        (vector("1.5"), 1.5),
        (vector("1", "2.5"), 3.5),
        (vector("0"), 0.0),
        ([], None),
        (vector("NaN"), None),
        (vector("1", "NaN"), None),
        (vector("+Inf"), None),
        (vector("-1"), None),
        (vector("1e9"), None),
        (vector("many"), None),
        ([{"metric": {}}], None),
        ([{"metric": {}, "value": 3}], None),
    ],
)
def test_a_vector_is_a_rate_or_no_data(answer: list[dict[str, Any]], rate: float | None) -> None:
    """A partial sum is no demand; zero is a demand of zero."""
    assert rate_of(answer) == rate


async def test_zero_is_reported_and_missing_data_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query runs outside of the event loop. An error counts as no data."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    threads = set()

    def ask(query: str) -> list[dict[str, Any]]:
        threads.add(threading.get_ident())
        if query == "gone":
            raise NoConnection("refused")
        return vector(query)

    seen: list[tuple[TelemetryBatch, Times]] = []
    queries = {"busy": ("2",), "idle": ("0",), "lost": ("NaN",), "gone": ("gone",)}
    source = PromqlDemand({"here": ask}, queries, CLOCK, every_s=15.0)
    await source.ask_all(lambda *one: seen.append(one))
    ((records, ends_ms),) = seen
    arrivals = records.numbers[:, 0].tolist()
    assert dict(zip([name[0] for name in records.names], arrivals, strict=True)) == {
        "busy": 30,
        "idle": 0,
    }
    assert set(ends_ms.tolist()) == {CLOCK.now_ms()}
    assert set(records.numbers[:, SPAN_MS].tolist()) == {15_000}
    assert threading.get_ident() not in threads


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=30))
async def test_fractions_of_requests_are_carried_over(rates: list[float]) -> None:
    """The sums of reported requests and of rates differ by at most one request."""
    answers = iter(rates)
    seen: list[int] = []
    source = PromqlDemand(
        {"p": lambda _: vector(repr(next(answers)))}, {"m": ("q",)}, CLOCK, every_s=15.0
    )
    for _ in rates:
        await source.ask_all(lambda records, _: seen.extend(records.numbers[:, 0].tolist()))
    assert len(seen) == len(rates)
    assert abs(sum(seen) - 15.0 * sum(rates)) <= 1.0 + 1e-6


async def test_a_query_that_failed_once_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single lost connection causes no gap in demand."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    failing = [NoConnection("reset")]

    def ask(_: str) -> list[dict[str, Any]]:
        if failing:
            raise failing.pop()
        return vector("3")

    seen: list[int] = []
    source = PromqlDemand({"here": ask}, {"m": ("q",)}, CLOCK)
    await source.ask_all(lambda records, _: seen.extend(records.numbers[:, 0].tolist()))
    assert seen == [3]


async def test_queries_of_many_models_run_in_parallel_threads() -> None:
    """32 queries run at the same time on any number of cores. They do not use the threads of
    asyncio and end with the source.
    """
    together = threading.Barrier(32, timeout=HANG_S)
    threads: set[threading.Thread] = set()

    def ask(_: str) -> list[dict[str, Any]]:
        together.wait()
        threads.add(threading.current_thread())
        return vector("1")

    seen: list[int] = []
    source = PromqlDemand({"p": ask}, {f"m{k}": ("q",) for k in range(64)}, CLOCK)
    await source.ask_all(lambda records, _: seen.extend(records.numbers[:, 0].tolist()))
    assert seen == [1] * 64
    assert len(threads) == 32 and all(one.name.startswith("promql") for one in threads)
    following = asyncio.create_task(source.follow(lambda *_: None))
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    for thread in threads:
        thread.join(5.0)
    assert not any(thread.is_alive() for thread in threads)


async def test_prometheus_replaces_the_counts_of_gateways_but_confirms_no_routes() -> None:
    """The gateway reports the same requests, so its counts are ignored. It still proves that it is
    alive and which routes it has.
    """
    windows, now_ms = TelemetryWindows(600), CLOCK.now_ms()
    windows.advance(now_ms)
    said: list[tuple[TelemetryBatch, Times]] = []
    source = PromqlDemand({"p": lambda _: vector("5")}, {"asked": ("q",)}, CLOCK)
    await source.ask_all(lambda *one: said.append(one))
    ((records, ends_ms),) = said
    ours = records.numbers.copy()
    ours[:, ROUTE_GENERATION] = 7
    from_gateways = gateways_sink(windows, {"asked": ("q",)}, lambda: None)
    for model in ("asked", "other"):
        for gateway in ("g", f"{MERGED}-0"):  # its report, and the merged counts
            from_gateways(replace(records, names=[(model, gateway, "b")], numbers=ours), ends_ms)
    assert isinstance(windows.stats("asked", now_ms, 10), NoData)
    assert windows.stats("asked", now_ms, 10) == NoData(None)
    prometheus_sink(windows)(records, ends_ms)
    for model in ("asked", "other"):
        found = windows.stats(model, now_ms, 10)
        assert isinstance(found, Stats) and found.arrivals == 5
        assert [g.route_generation for g in windows.gateways(model, now_ms)] == [7]


async def test_rates_of_several_servers_are_added_and_a_lost_server_is_no_falling_demand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last rate of a lost server counts for a minute. Then the demand is unknown; it is not the
    rate of the other server. A server that never had data of the model is not required.
    """
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    now_s, away = [60.0], [False]
    clock = Clock(
        TimeBase(1.0, 1_000_000, 0), mono_ns=lambda: int(now_s[0] * 1e9), broker_ms=lambda: 0
    )

    def eu(_: str) -> list[dict[str, Any]]:
        if away[0]:
            raise NoConnection("refused")
        return vector("3")

    asks = {"us": lambda _: vector("5"), "eu": eu, "idle": lambda _: vector()}
    source = PromqlDemand(asks, {"m": ("q",)}, clock)
    seen: list[int] = []
    for second in range(70):
        away[0] = second >= 2
        await source.ask_all(lambda records, _: seen.extend(records.numbers[:, 0].tolist()))
        now_s[0] += 1.0
    assert seen[:62] == [8] * 62
    assert len(seen) == 62  # The rate stays for a minute from the second query on.


def test_a_query_without_a_prometheus_is_refused(tmp_path: Path) -> None:
    """Otherwise the model would wait forever for its first request."""
    demo = resources.files("streams").joinpath("data", "demo.yaml").read_text()
    path = tmp_path / "shoal.yaml"
    path.write_text(demo.replace("  mini:\n", "  mini:\n    demand: sum(rate(x[1m]))\n", 1))
    with pytest.raises(UserError, match=r"models\.mini\.demand: no address under prometheus"):
        prometheus_queries(load_config(path))


async def test_the_names_of_a_model_are_added_up_and_an_empty_answer_adds_nothing() -> None:
    """A failing query for one name makes the sum unknown; a name without series does not."""
    answers = {"a": vector("2"), "b": vector("3"), "none": [], "bad": vector("NaN")}

    async def arrivals(*queries: str) -> list[int]:
        seen: list[int] = []
        source = PromqlDemand({"p": lambda query: answers[query]}, {"m": queries}, CLOCK)
        await source.ask_all(lambda records, _: seen.extend(records.numbers[:, 0].tolist()))
        return seen

    assert await arrivals("a", "none", "b") == [5]
    assert await arrivals("none") == []
    assert await arrivals() == []
    assert await arrivals("a", "bad") == []
    assert await arrivals("a", "lost") == []  # KeyError: not an answer of Prometheus


async def test_unknown_demand_is_logged_once_and_its_return_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer: list[list[dict[str, Any]]] = [[]]
    source = PromqlDemand({"p": lambda _: answer[0]}, {"m": ("q",)}, CLOCK)
    with caplog.at_level("INFO"):
        for answer[0] in ([], [], vector("1"), vector("1")):
            await source.ask_all(lambda *_: None)
    assert [record.message for record in caplog.records] == [
        "demand for m: no data; shoal doctor shows the queries and the answers",
        "demand for m: known again",
    ]
