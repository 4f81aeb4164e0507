"""A change of demand multiplies the requests of its time and model, and nothing else."""

from __future__ import annotations

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.demand_changes import (
    DemandChange,
    format_changes,
    parse_changes,
    with_changes,
)
from streams.tools.replay.request_schedule import Job

JOBS = [Job(100.0 * n, "chat" if n % 2 else "code", 10, 20) for n in range(4000)]


def count(jobs: list[Job], model: str, from_ms: float, until_ms: float) -> int:
    return sum(job.model == model and from_ms <= job.at_ms < until_ms for job in jobs)


def test_requests_of_other_times_and_models_are_unchanged() -> None:
    jobs = with_changes(JOBS, [DemandChange(100_000, 200_000, 2.5, "chat")], 1)
    assert [j for j in jobs if j.model == "code"] == [j for j in JOBS if j.model == "code"]
    assert count(jobs, "chat", 0, 100_000) == 500
    assert count(jobs, "chat", 205_000, 400_000) == 975
    assert count(jobs, "chat", 100_000, 205_000) == pytest.approx(1250 + 25, rel=0.05)
    assert [j.at_ms for j in jobs] == sorted(j.at_ms for j in jobs)


def test_a_factor_below_one_drops_requests_and_zero_drops_all() -> None:
    half = with_changes(JOBS, [DemandChange(0, 400_000, 0.5)], 1)
    assert len(half) == pytest.approx(2000, rel=0.05)
    assert with_changes(JOBS, [DemandChange(0, 400_000, 0.0)], 1) == []


def test_the_option_gives_the_same_changes_back() -> None:
    changes = [DemandChange(0.0, 60_000.0, 2.5, "chat"), DemandChange(5.0, 10.0, 0.0)]
    assert parse_changes(format_changes(changes)) == changes
    assert parse_changes("") == []


@pytest.mark.parametrize("text", ["1:2:3", "a:2:3:", "5:2:3:", "0:5:-1:", "0:5:nan:", "0:5:1000:"])
def test_bad_changes_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--demand"):
        parse_changes(text)
