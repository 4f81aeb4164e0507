"""The report of a load test: attainment per model, and whether the test sent the requested load."""

from __future__ import annotations

from loadtests.replay.report import Totals
from streams.tools.replay.replay_report import Limits
from streams.tools.replay.request_schedule import Job

LIMITS = {"mini": Limits(100.0, 50.0)}


def totals(jobs: int, speed: float = 1.0) -> Totals:
    made = Totals()
    made.begin([Job(1000.0 * i, "mini", 10, 11) for i in range(jobs)], LIMITS, speed)
    return made


def test_attainment_is_a_share_of_all_sent_requests() -> None:
    """One request meets its SLO, one is late, and one fails. The attainment is a third, and the
    report lists the reasons.
    """
    run = totals(3)
    run.add(
        [
            ("mini", "", 90.0, 590.0, 10, 11),
            ("mini", "", 190.0, 590.0, 10, 11),
            ("mini", "status 503", 0.0, 0.0, 0, 0),
        ],
        [(0.0, 1.0), (1000.0, 1.0), (2000.0, 1.0)],
    )
    assert "33.3%" in run.text()
    assert "1 failed: status 503" in run.text()
    assert run.exit_code() == 0


def test_reports_of_several_workers_are_added() -> None:
    """Each worker sends every other request. Together they send the trace at its speed."""
    run = totals(9, speed=2.0)
    run.add([], [(1000.0 * i, 2.0) for i in range(0, 9, 2)])
    run.add([], [(1000.0 * i, 2.0) for i in range(1, 9, 2)])
    assert run.asked_req_per_s() == run.sent_req_per_s() == 2.0
    assert run.exit_code() == 0


def test_a_generator_that_is_late_or_stops_early_fails_the_run() -> None:
    """The latencies of such a run are not valid, and the report states this."""
    late = totals(3)
    late.add([], [(0.0, 0.0), (1000.0, 0.0), (2000.0, 150.0)])
    assert late.exit_code() == 3
    assert "not what was asked for" in late.text()
    early = totals(3)
    early.add([], [(0.0, 0.0), (1000.0, 0.0)])
    assert early.exit_code() == 3
    assert "2 of 3 requests" in early.text()
