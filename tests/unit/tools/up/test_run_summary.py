"""The summary at the end of a run: its cost, the reasons of failed requests, and an early end."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from streams.tools.replay.replay_report import Record
from streams.tools.up.run_state import Picture
from streams.tools.up.run_summary import Ended, summarize
from streams.tools.up.summary_view import show
from streams.tools.up.trace_facts import Gap, Traffic
from tests.integration.docs.json_forms import undocumented
from tests.unit.tools.up.status_records import NOW_MS, telemetry

NOTHING = {"p50": None, "p99": None}


def report(failed: dict[str, int]) -> dict[str, Any]:
    """A replayer's report with three served requests, and `failed` ones."""
    record = Record({"mini": None})
    model = record.models["mini"]
    model.sent = 3 + sum(failed.values())
    for first_ms in (100.0, 200.0, 900.0):
        model.serve(first_ms, first_ms + 400.0, 10, 21)
    for reason, count in failed.items():
        for _ in range(count):
            record.fail("mini", reason)
    return record.report()


def printed(
    picture: Picture,
    found: dict[str, Any],
    ended: Ended,
    otherwise: tuple[dict[str, Any], ...] = (),
    simulated: tuple[dict[str, Any], ...] = (),
) -> str:
    summary = summarize(found, picture, NOW_MS, NOTHING, 10.0, 8.0, {}, ended)
    summary["otherwise"] = list(otherwise)
    summary["simulated"] = list(simulated)
    said = io.StringIO()
    show(summary, Console(width=200, file=said))
    assert "None" not in said.getvalue()
    return said.getvalue()


def test_the_cost_stands_over_that_of_other_policies(picture: Picture) -> None:
    others = (
        {"what": "one GPU type", "usd": 9.8, "unserved": 0.25, "gpu": "L40S"},
        {"what": "each model alone", "usd": 8.1, "unserved": 0.001},
    )
    simulated = ({"policy": "hpa-rate", "usd": 11.204, "slo_attainment": 0.7, "least": 0.61},)
    picture.add(telemetry(completions=3, attained=2))
    picture.add(telemetry(completions=3, attained=2))  # a copy
    text = printed(picture, report({}), Ended(Traffic(3, 9.0), 0.0, False), others, simulated)
    lines = text.splitlines()
    first = lines.index("Cost") + 1
    assert lines[first : first + 4] == [
        "  this run             0.00 USD   SLO met 66.7%",
        "  hpa-rate, simulated  11.20 USD  SLO met 70.0%, least 61.0%",
        "  one GPU type (L40S)  9.80 USD   serves 75%",
        "  each model alone     8.10 USD",
    ]
    assert "  SLO met     66.7%" in lines
    assert max(map(len, lines)) <= 80


def test_each_key_of_the_summary_is_documented(picture: Picture) -> None:
    ended = Ended(Traffic(9, 9.0, (Gap(1.0, 2.0),)), 60.0, True)
    summary = summarize(report({"timeout": 1}), picture, NOW_MS, NOTHING, 10.0, 8.0, {}, ended)
    assert undocumented("shoal up", summary) == []


def test_failed_requests_have_a_reason(picture: Picture) -> None:
    ended = Ended(Traffic(7, 9.0), 0.0, False)
    assert "\n  failed      4: 503, no instance yet\n" in printed(
        picture, report({"503, no instance yet": 4}), ended
    )
    several = printed(picture, report({"timeout": 1, "503, no instance yet": 3}), ended)
    assert "3: 503, no instance yet\n" in several and "1: timeout\n" in several
    assert "  failed " not in printed(picture, report({}), ended)


@pytest.mark.parametrize(
    ("ended", "key", "said"),
    [
        (Ended(Traffic(3, 9.0), 0.0, False), "whole trace", ""),
        (Ended(Traffic(9, 9.0), 60.0, False), "time given", "the time of --for was over"),
        (Ended(Traffic(9, 9.0), 60.0, True), "interrupted", "it was interrupted"),
        (Ended(Traffic(9, 9.0), 0.0, False), "load lost", "the load generator was lost"),
    ],
)
def test_an_early_end_is_stated(picture: Picture, ended: Ended, key: str, said: str) -> None:
    text = printed(picture, report({}), ended)
    line = f"3 of its 9 requests were sent: {said}"
    assert (line in text) == bool(said)
    summary = summarize(report({}), picture, NOW_MS, NOTHING, 10.0, 8.0, {}, ended)
    assert summary["ended"] == key
    assert summary["trace"]["requests"] == ended.traffic.requests


def test_without_a_report_the_last_reported_counts_apply(picture: Picture) -> None:
    """The disk is full, or the load generator was killed. Requests in flight have no answer."""
    told = {"sent": 5, "served": 2, "failed": 1}
    text = printed(picture, {}, Ended(Traffic(9, 9.0), 60.0, False, told))
    assert "SLO met     unknown" in text
    assert "5 sent, 2 served, 1 failed, 2 dropped" in text
    assert "failed      1: the load generator ended before it reported why" in text
    assert "TTFT p50" not in text
    assert "5 of its 9 requests were sent: the load generator was lost" in text


def test_a_gap_in_the_trace_is_stated(picture: Picture) -> None:
    ended = Ended(Traffic(3, 3000.0, (Gap(1020.0, 1740.0),)), 0.0, False)
    text = printed(picture, report({}), ended)
    assert "it has no requests from +17:00 to +29:00" in text


def test_a_run_without_requests_states_the_reason(picture: Picture) -> None:
    """Zero served of zero sent requests is no success. The line states that there was no time for
    requests.
    """
    text = printed(picture, {}, Ended(Traffic(3, 9.0), 5.0, False))
    assert "no request was sent" in text
    assert "the time of --for was over" in text
