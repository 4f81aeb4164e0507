"""Cauchy sec. 4.6: a fixed plan and an adapted plan serve identical requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.experiments.cauchy_autoscaling import (
    WORKLOADS,
    both,
    main,
    rates_of,
    scenario_of,
    table,
)


def test_both_fleets_start_alike_and_the_adapted_one_follows_a_threefold_rate() -> None:
    rates = [0.5, 0.5, 3.0, 3.0, 3.0]
    scenario = scenario_of("LongWriter", rates, seed=1)
    fixed, live = both(scenario)
    assert fixed.moves == 0 < live.moves
    assert fixed.usd_per_h < live.usd_per_h
    assert live.p90_s < fixed.p90_s
    assert "paper" in table({"LongWriter": (fixed, live)})[0]


def test_arrivals_keep_the_workloads_mean_rate() -> None:
    scenario = scenario_of("DailyMail", [0.5, 1.5], seed=1)
    per_s = len(scenario.arrivals) / scenario.duration_s
    assert per_s == pytest.approx(WORKLOADS["DailyMail"][2], rel=0.05)


def test_rates_follow_the_minutes_of_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    at_s = [0, 10, 20, 70, 125]
    trace.write_text("time,input_tokens,output_tokens\n" + "".join(f"{t},5,5\n" for t in at_s))
    assert rates_of(trace, 2) == [1.5, 0.5]


def test_a_missing_trace_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--trace", str(tmp_path / "none.csv")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "none.csv" in said
