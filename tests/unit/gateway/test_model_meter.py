"""Counts of requests, and of answers that meet the SLO."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executors.gateway.model_meter import Ending, ModelMeter, Outcome
from topics.records import Telemetry
from topics.sketch import bucket_of, quantile_ms
from topics.telemetry_columns import requests_by_kind
from topics.version_counts import mean_of, read_counts


def report(meter: ModelMeter) -> Telemetry:
    return meter.report("chat", "g", "boot", 1, 5000, 1000, 3)


def served(first_ms: float | None, last_ms: float, output_tokens: int = 11) -> Outcome:
    return Outcome(Ending.COMPLETED, last_ms, first_ms, 7, output_tokens)


@pytest.mark.parametrize(
    ("outcome", "attained"),
    [
        (served(100.0, 200.0), 1),  # TPOT 10: exactly at both limits
        (served(100.1, 200.0), 0),
        (served(100.0, 200.2), 0),
        (served(100.0, 9999.0, 1), 1),  # a single token has no TPOT
        (served(None, 200.0), 1),  # not streamed: 100 + 10 x 10 in total
        (served(None, 200.1), 0),
        (Outcome(Ending.FAILED), 0),
        (Outcome(Ending.REFUSED), 0),
    ],
)
def test_an_answer_within_both_limits_attains(outcome: Outcome, attained: int) -> None:
    meter = ModelMeter()
    meter.record_arrival(7)
    meter.record_end(outcome, 7, 100.0, 10.0)
    assert report(meter).attained == attained


def test_every_arrival_ends_once_and_a_span_starts_at_zero() -> None:
    meter = ModelMeter()
    for outcome in (served(50.0, 150.0), Outcome(Ending.FAILED), Outcome(Ending.REFUSED)):
        meter.record_arrival(5)
        meter.record_end(outcome, 5, 100.0, 10.0)
    meter.record_arrival(5)
    first = report(meter)
    counts = (first.arrivals, first.completions, first.failures, first.refused, first.in_flight)
    assert counts == (4, 1, 1, 1, 1)
    assert (first.input_tokens, first.output_tokens) == (7, 11)
    assert quantile_ms(first.ttft_ms, 0.5) == pytest.approx(50.0, rel=0.02)
    assert quantile_ms(first.tpot_ms, 0.5) == pytest.approx(10.0, rel=0.02)
    second = report(meter)
    assert (second.arrivals, second.completions, second.in_flight) == (0, 0, 1)
    assert second.ttft_ms == {}
    assert sum(first.ttft_ms.values()) == 1  # A report does not change after it is made.


@pytest.mark.parametrize(
    ("outcome", "failures"),
    [
        (Outcome(Ending.WITHDRAWN), 0),  # no engine serves the model
        (Outcome(Ending.WITHDRAWN, 100.0), 0),
        (Outcome(Ending.WITHDRAWN, 100.1), 1),  # no token within the limit
        (Outcome(Ending.WITHDRAWN, 900.0, 0.0), 0),  # The client already had tokens.
    ],
)
def test_a_client_that_leaves_is_a_failure_only_after_the_ttft_limit(
    outcome: Outcome, failures: int
) -> None:
    meter = ModelMeter()
    meter.record_arrival(7)
    meter.record_end(outcome, 7, 100.0, 10.0)
    record = report(meter)
    assert (record.failures, record.withdrawn) == (failures, 1 - failures)
    assert record.in_flight == 0
    assert report(meter).withdrawn == 0


def test_estimated_prompt_tokens_follow_the_counts_of_engines() -> None:
    """Prompts are estimated at 100 tokens and have 150. The reported sum
    converges to the true sum.
    """
    meter = ModelMeter()
    for _ in range(80):
        meter.record_arrival(100)
        meter.record_end(Outcome(Ending.COMPLETED, 1.0, 1.0, 150, 1), 100, 10.0, 10.0)
    report(meter)
    meter.record_arrival(100)
    assert report(meter).input_tokens_arrived == 150


def test_lengths_count_in_the_span_in_which_they_become_known() -> None:
    """Inputs count on arrival, scaled by the ratio of counted to estimated tokens. Outputs count on
    completion.
    """
    meter = ModelMeter()
    meter.tokens_per_estimate = 1.5
    meter.record_arrival(100)
    meter.record_arrival(200)
    meter.record_end(Outcome(Ending.COMPLETED, 900.0, 50.0, 150, 40), 100, 100.0, 50.0)
    meter.record_end(Outcome(Ending.FAILED), 200, 100.0, 50.0)
    record = report(meter)
    assert record.input_lengths == {bucket_of(150): 1, bucket_of(300): 1}
    assert record.output_lengths == {bucket_of(40): 1}
    assert not record.leaving
    after = report(meter)
    assert after.input_lengths == after.output_lengths == {}
    assert sum(record.input_lengths.values()) == record.arrivals


def test_the_expected_output_is_the_requested_limit_or_the_mean() -> None:
    """The mean includes the first earlier answer."""
    meter = ModelMeter()
    assert meter.record_arrival(100, 40) == (100.0, 40)
    for tokens in (50, 150):
        meter.record_end(served(1.0, 2.0, tokens), 0, 100.0, 10.0)
    assert meter.record_arrival(100) == (100.0, 100.0)
    assert sum(report(meter).shapes.values()) == 2


def test_destinations_by_kind_are_reported_once() -> None:
    meter = ModelMeter()
    meter.count_sent("long", "g1")
    meter.count_sent("long", "g1")
    meter.count_sent("", "g1")  # without a kind
    meter.count_sent("long", "")  # without a destination
    assert report(meter).sent == {"long": {"g1": 2}}
    assert report(meter).sent == {}


def test_cached_tokens_count_once_an_engine_reports_them() -> None:
    """vLLM leaves out a count of 0, so its answers alone do not show whether it reports."""
    meter = ModelMeter()
    for cached in (0, 6, 0):
        meter.record_arrival(7)
        meter.record_end(replace(served(50.0, 60.0), cached_tokens=cached), 7, 100.0, 10.0)
    first = report(meter)
    assert (first.cache_queried_tokens, first.cache_hit_tokens) == (14, 6)
    second = report(meter)
    assert (second.cache_queried_tokens, second.cache_hit_tokens) == (0, 0)


def test_requests_of_compared_versions_are_counted_by_version() -> None:
    meter = ModelMeter()
    for version, outcome in (
        ("new", served(100.0, 300.0)),
        ("new", served(None, 300.0)),
        ("old", served(50.0, 150.0)),
        ("old", Outcome(Ending.FAILED)),
        ("old", Outcome(Ending.WITHDRAWN, last_ms=200.0)),  # later than the TTFT limit
        ("old", Outcome(Ending.REFUSED)),
        ("", served(50.0, 150.0)),
    ):
        meter.record_arrival(7)
        meter.record_end(outcome, 7, 100.0, 10.0, version)
    meter.count_failed_attempt("new")
    found = read_counts(requests_by_kind(report(meter).sent))
    new, old = found["new"], found["old"]
    assert found.keys() == {"new", "old"}
    assert (new.completed, new.failed, new.timed, new.decoded) == (2, 1, 1, 1)
    assert (old.completed, old.failed, old.output_tokens) == (1, 2, 11)
    assert mean_of(new.ttft_log, new.timed) == pytest.approx(100.0, rel=0.02)
    assert mean_of(old.tpot_log, old.decoded) == pytest.approx(10.0, rel=0.02)
