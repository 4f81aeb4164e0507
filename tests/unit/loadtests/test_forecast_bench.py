"""The forecast bench: it tells repeating demand from other demand and refuses invalid files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtests.forecast_bench import Series, judged, main, recorded


def test_an_hourly_pattern_is_forecast_better_than_by_the_last_value() -> None:
    rates = np.array([16.0 if m % 60 < 6 else 4.0 for m in range(360)])
    rows = {row.method: row for row in judged(Series("hourly", 60, rates), 300)}
    assert rows["last value"].mae == rows["last value"].mae_of_last > 0.0
    assert rows["seasonal (1 h)"].mae < 0.5 * rows["last value"].mae
    assert rows["auto"].mae < 0.6 * rows["last value"].mae
    assert "seasonal (1 d)" not in rows  # not evaluated: it has no earlier day to repeat


def test_auto_chooses_the_last_value_for_a_random_walk() -> None:
    steps = np.random.default_rng(3).normal(0.0, 1.0, 400)
    rates = np.maximum(0.0, 100.0 + np.cumsum(steps))
    rows = {row.method: row for row in judged(Series("walk", 60, rates), 120)}
    assert rows["auto"].mae <= 1.05 * rows["last value"].mae


def test_a_gap_in_servegen_windows_is_not_zero_traffic(tmp_path: Path) -> None:
    path = tmp_path / "x_rate_10min.csv"
    path.write_text("window_start_s,rate_rps\n0,5\n1200,7\n")
    series = recorded(path)
    assert series.bin_s == 600 and series.rates[0] == 5.0 and np.isnan(series.rates[1])


def test_an_invalid_file_gives_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("window_start_s,rate_rps\n0,fast\n")
    with pytest.raises(SystemExit) as stopped:
        main(["--trace", str(path)])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1 and "rate_rps: 'fast'" in said
