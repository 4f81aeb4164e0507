"""Split of a trace over models, and the report of its requests."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.files.user_errors import UserError
from streams.tools.replay.replay_report import Limits, Record, quantile
from streams.tools.replay.request_schedule import schedule
from streams.tools.replay.traces import Trace


def trace(count: int, read: int = 10, written: int = 5) -> Trace:
    return Trace(
        Path("t"),
        "aibrix",
        array("d", [float(n * 10) for n in range(count)]),
        array("q", [read] * count),
        array("q", [written] * count),
    )


def test_shares_follow_weights_and_seed() -> None:
    """Of 6000 draws with shares of 1/6, 2/6 and 3/6, four standard deviations are about 160."""
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "never": 0.0}
    jobs = schedule(trace(6000), weights, {}, 7, 1e9)
    seen = Counter(job.model for job in jobs)
    for model, weight in weights.items():
        assert abs(seen[model] - 1000 * weight) < 160
    assert seen["never"] == 0
    assert schedule(trace(6000), weights, {}, 7, 1e9) == jobs
    assert schedule(trace(6000), weights, {}, 8, 1e9) != jobs


def test_only_the_first_part_is_sent() -> None:
    jobs = schedule(trace(100), {"a": 1.0}, {}, 1, 95.0)
    assert [job.at_ms for job in jobs] == [float(n * 10) for n in range(10)]


def test_a_request_goes_to_a_model_that_can_hold_it() -> None:
    limits = {"small": 14, "large": 15}
    jobs = schedule(trace(50), {"small": 9.0, "large": 1.0}, limits, 1, 1e9)
    assert {job.model for job in jobs} == {"large"}


def test_a_request_that_no_model_can_hold_goes_to_the_largest() -> None:
    limits = {"small": 5, "large": 6}
    jobs = schedule(trace(50), {"small": 9.0, "large": 1.0}, limits, 1, 1e9)
    assert {job.model for job in jobs} == {"large"}


def test_empty_prompts_and_answers_become_one_token() -> None:
    job = schedule(trace(1, 0, 0), {"a": 1.0}, {}, 1, 1e9)[0]
    assert (job.input_tokens, job.output_tokens) == (1, 1)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_quantile_is_the_smallest_value_that_covers(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values) - 1e-9
    below = [value for value in values if value < found]
    assert len(below) < q * len(values) + 1e-9


def test_attainment_includes_failed_and_dropped_requests() -> None:
    record = Record({"a": Limits(100.0, 10.0), "b": None})
    model = record.models["a"]
    model.sent = 5
    model.serve(100.0, 190.0, 7, 10)  # TPOT 10: exactly at both limits
    model.serve(101.0, 110.0, 7, 10)  # first token late
    model.serve(50.0, 200.0, 7, 10)  # too slow between tokens
    record.fail("a", "status 503")
    report = record.report()
    assert report["requests"] == {"sent": 5, "served": 3, "failed": 1, "dropped": 1}
    assert report["failures"] == {"status 503": 1}
    models = report["models"]
    assert isinstance(models, dict)
    assert models["a"]["slo_attainment"] == pytest.approx(0.2)
    assert models["a"]["ttft_ms"] == {"p50": 100.0, "p95": 101.0, "p99": 101.0}
    assert models["a"]["output_tokens"] == 30
    assert models["b"]["slo_attainment"] is None
    assert models["b"]["ttft_ms"]["p99"] is None


def test_a_trace_that_names_models_is_not_split() -> None:
    named = replace(trace(3), models=("b", "a", "b"))
    assert [job.model for job in schedule(named, {"a": 1.0, "b": 0.0}, {}, 1, 1e9)] == [
        "b", "a", "b",
    ]  # fmt: skip
    with pytest.raises(UserError, match="model 'b' is not configured; models: a"):
        schedule(named, {"a": 1.0}, {}, 1, 1e9)


def test_turns_of_a_session_go_to_one_model() -> None:
    plain = trace(400)
    sessions = array("q", [n // 4 if n < 200 else -1 for n in range(400)])
    spoken = replace(plain, sessions=sessions, delays_ms=array("d", [-1.0, 5.0] * 200))
    jobs = schedule(spoken, {"a": 1.0, "b": 1.0}, {}, 1, 1e9)
    models: dict[int | None, set[str]] = {}
    for job in jobs:
        models.setdefault(job.session, set()).add(job.model)
    assert models.pop(None) == {"a", "b"}
    assert len(models) == 50
    assert {len(of) for of in models.values()} == {1}
    assert [(job.session, job.delay_ms) for job in jobs[:2]] == [(0, None), (0, 5.0)]
