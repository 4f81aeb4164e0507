"""A plan uses the lower end of a wide interval, and states how much a measurement could save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoscaler.performance import catalog
from autoscaler.performance.profile import architecture_key
from streams.cli.main import main

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CONFIG = """
measurements: measurements.json
defaults: {max_len: 8192}
regions: {eu: {l40s: {gpu: L40S, max: 40, price: 1.8}}}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
    workload: {req_per_s: 30, input: 1155, output: 211}
    disaggregate: false
"""


def write(folder: Path, capacity: str = "", **measured: float) -> Path:
    """The path of a shoal.yaml in `folder`, with a measurements file for its model on its GPU.

    measured: fields of the measurement; without any, the shoal.yaml names no measurements file.
    capacity: value of the model's `capacity` key.
    """
    spec = catalog.model(MODEL)
    text = CONFIG if measured else CONFIG.replace("measurements: measurements.json", "")
    values = {"prefill": 1.0, "decode": 1.0, "error": 0.0, **measured}
    one = {
        "architecture": architecture_key(spec), "weight_dtype": spec.weight_dtype, "gpu": "L40S",
        "tp": 1, "points": 4, "day": "2026-11-20", **values,
    }  # fmt: skip
    (folder / "measurements.json").write_text(json.dumps([one]))
    path = folder / "shoal.yaml"
    path.write_text(text + (f"    capacity: {capacity}\n" if capacity else ""))
    return path


def planned(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    main(["plan", "--config", str(path), "--json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_unmeasured_model_is_planned_at_the_lower_end_and_the_saving_of_a_measurement_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cautious = planned(write(tmp_path), capsys)
    own = cautious["capacity_90_req_per_s"]["mini"]
    assert own["planned"] == pytest.approx(own["low"])
    assert own["low"] < 0.8 * own["predicted"] < own["predicted"] < own["high"]
    trusting = planned(write(tmp_path, "predicted"), capsys)
    own = trusting["capacity_90_req_per_s"]["mini"]
    assert own["planned"] == pytest.approx(own["predicted"])
    assert trusting["models"]["mini"]["measuring"] == []
    saved = cautious["cost_usd_per_h"] - trusting["cost_usd_per_h"]
    assert saved > 0.0
    (worth,) = cautious["models"]["mini"]["measuring"]
    assert worth["gpu"] == "L40S"
    assert worth["saves_usd_per_h"] == pytest.approx(saved)
    main(["plan", "--config", str(write(tmp_path))])
    out = " ".join(capsys.readouterr().out.split())
    assert f"measuring mini on L40S could save {saved:.2f} USD/h" in out
    command = "to measure mini: shoal profile measure --url http://ENGINE --gpu L40S"
    assert f"{command} --model {MODEL}" in out


def test_a_measured_model_is_planned_for_at_its_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(write(tmp_path, error=0.04), capsys)
    own = found["capacity_90_req_per_s"]["mini"]
    assert own["planned"] == pytest.approx(own["predicted"])
    assert own["low"] == pytest.approx(own["predicted"] / 1.08)
    assert found["models"]["mini"]["measuring"] == []


def test_a_measurement_with_a_large_error_keeps_the_caution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = planned(write(tmp_path, error=0.3), capsys)["capacity_90_req_per_s"]["mini"]
    assert own["planned"] == pytest.approx(own["low"])
    assert own["low"] == pytest.approx(own["predicted"] / 1.6)


def test_budget_mode_uses_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured iterations take 1.5 times as long: the plan serves less than three quarters of the
    rate."""
    rates = [
        planned(write(tmp_path, prefill=slow, decode=slow), capsys, "--budget", "9")["req_per_s"]
        for slow in (1.0, 1.5)
    ]
    assert rates[1] < 0.75 * rates[0]
    main(["plan", "--config", str(write(tmp_path, error=0.04)), "--budget", "9"])
    assert "mini on L40S: measured 2026-11-20, error 4%" in capsys.readouterr().out
