"""Demand from Prometheus: rates become whole requests; no data, NaN and zero are three things."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests.exceptions import ConnectionError as NoConnection

from streams.clock import Clock
from streams.ports.promql import PromqlDemand, rate_of
from topics.records import Telemetry
from topics.timebase import TimeBase

CLOCK = Clock(TimeBase(1.0, 1_000_000, 0), mono_ns=lambda: 60_000_000_000, wall_ms=lambda: 0)


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
    """Part of a sum is no demand; zero is a demand of zero."""
    assert rate_of(answer) == rate


async def test_zero_is_reported_and_no_data_is_not() -> None:
    """Each question is asked outside the event loop; an error counts as no data."""
    threads = set()

    def ask(query: str) -> list[dict[str, Any]]:
        threads.add(threading.get_ident())
        if query == "gone":
            raise NoConnection("refused")
        return vector(query)

    seen: list[tuple[Telemetry, int]] = []
    queries = {"busy": "2", "idle": "0", "lost": "NaN", "gone": "gone"}
    source = PromqlDemand(ask, queries, CLOCK, every_s=15.0)
    await source.ask_all(lambda record, event_ms: seen.append((record, event_ms)))
    assert {record.model: record.arrivals for record, _ in seen} == {"busy": 30, "idle": 0}
    assert {event_ms for _, event_ms in seen} == {CLOCK.now_ms()}
    assert {record.span_ms for record, _ in seen} == {15_000}
    assert threading.get_ident() not in threads


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=30))
async def test_fractions_of_requests_are_carried_on(rates: list[float]) -> None:
    """In the long run as many requests are reported as the rates say, within one."""
    answers = iter(rates)
    seen: list[int] = []
    source = PromqlDemand(lambda _: vector(repr(next(answers))), {"m": "q"}, CLOCK, every_s=15.0)
    for _ in rates:
        await source.ask_all(lambda record, _: seen.append(record.arrivals))
    assert len(seen) == len(rates)
    assert abs(sum(seen) - 15.0 * sum(rates)) <= 1.0 + 1e-6
