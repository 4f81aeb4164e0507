"""History of models: limited, ordered, and filled from the past after a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.console.cpu_allowance import CpuAllowance
from streams.console.history import COARSE_MS, FINE_MS, KEPT, History

SAMPLE = {"demand": 1.0, "target": 2.0, "wanted": 3.0, "ready": 3.0, "ttft": None, "usd": 0.5}


def test_two_days_of_samples_stay_in_two_rings() -> None:
    history = History()
    steps = 2 * 86_400_000 // FINE_MS
    for step in range(steps):
        history.add("m", step * FINE_MS + 1, SAMPLE)
    columns = history.columns("m")
    assert columns is not None and len(columns["t"]) <= 2 * KEPT
    assert columns["t"] == sorted(set(columns["t"]))
    assert columns["t"][-1] - columns["t"][0] >= 22 * 3_600_000  # a day, coarse
    assert columns["t"][-1] - columns["t"][-2] == FINE_MS
    assert columns["t"][1] - columns["t"][0] == COARSE_MS


def test_no_data_is_none_and_not_zero() -> None:
    history = History()
    history.add("m", 1, SAMPLE)
    columns = history.columns("m")
    assert columns is not None
    assert columns["ttft"] == [None] and columns["attained"] == [None]
    assert columns["demand"] == [1.0]
    assert history.columns("other") is None


def test_the_past_is_put_before_what_is_known() -> None:
    history = History()
    history.add("m", 100_000, SAMPLE)
    history.put_older({"m": [(80_000, SAMPLE), (90_000, SAMPLE), (100_500, SAMPLE)]})
    columns = history.columns("m")
    assert columns is not None and columns["t"] == [80_000, 90_000, 100_000]


@given(st.lists(st.integers(1, 10_000_000), max_size=50))
def test_times_only_increase_whatever_the_clock_does(times: list[int]) -> None:
    history = History()
    for at_ms in times:
        history.add("m", at_ms, SAMPLE)
    columns = history.columns("m") or {"t": []}
    assert columns["t"] == sorted(set(columns["t"]))


def test_work_is_allowed_again_when_its_share_is_kept() -> None:
    clock = {"now": 0.0, "cpu": 0.0}
    allowance = CpuAllowance(0.01, lambda: clock["cpu"], lambda: clock["now"])
    assert allowance.allowed
    with allowance.work():
        clock["cpu"] += 0.05
    clock["now"] = 4.9
    assert not allowance.allowed
    clock["now"] = 5.1
    assert allowance.allowed
    assert pytest.approx(0.01, rel=0.05) == 0.05 / 5.1
