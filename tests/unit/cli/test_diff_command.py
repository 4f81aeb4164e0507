"""`shoal diff` compares a fleet file with its plan and lists the changes for a person to review."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

CONFIG = """
defaults: {max_len: 8192, spot: 0.5}
regions:
  us:
    l40s: {gpu: L40S, per_node: 4, max: 8, price: 7.20, spot_price: 2.90}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
    workload: {req_per_s: 20, input: 1155, output: 211}
  idle:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
    min: 1
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    config, fleet = tmp_path / "shoal.yaml", tmp_path / "fleet.yaml"
    config.write_text(CONFIG)
    return str(config), fleet


def test_additions_and_removals_add_up_to_the_plan(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config, fleet = files
    fleet.write_text("mini:a4@us/l40s/on-demand: 5\n")
    assert main(["diff", "--config", config, "--fleet", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert "- 5 instances of 4xL40S us on-demand (5 -> 0)" in out
    assert "  + " in out and "ready in about " in out
    assert "Cost\n  36.00 -> " in out
    assert "Nothing was changed." in out
    assert main(["diff", "--config", config, "--fleet", str(fleet), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    after = {"mini:a4@us/l40s/on-demand": 5}
    for change in found["changes"]:
        assert change["now"] == after.get(change["combo"], 0)
        after[change["combo"]] = change["proposed"]
    fleet.write_text(json.dumps({combo: n for combo, n in after.items() if n}))
    assert main(["diff", "--config", config, "--fleet", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert "  - " not in out and "  + " not in out
    assert "Unchanged\n  mini: " in out


def test_the_json_of_a_plan_is_a_fleet(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config, fleet = files
    assert main(["plan", "--config", config, "--no-explain", "--json"]) == 0
    fleet.write_text(capsys.readouterr().out)
    assert main(["diff", "--config", config, "--fleet", str(fleet)]) == 0
    out = capsys.readouterr().out
    assert "  - " not in out and "  + " not in out
    fleet.write_text('{"strategy": "shoal", "models": {"mini": {"combos": [{"combo": 1}]}}}')
    assert main(["diff", "--config", config, "--fleet", str(fleet)]) == 2
    assert "what shoal plan --json printed" in capsys.readouterr().err


def test_a_fleet_must_be_named(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--config", files[0]]) == 2
    assert "--fleet FILE or --broker HOST:PORT" in capsys.readouterr().err


def test_unserved_demand_is_printed_and_gives_exit_code_3(
    files: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, fleet = files
    fleet.write_text("{}")
    demand = tmp_path / "demand.yaml"
    demand.write_text("mini: {req_per_s: 2000}\n")
    options = ["--config", config, "--fleet", str(fleet), "--demand", str(demand)]
    assert main(["diff", *options]) == 3
    assert "of 2,000 req/s cannot be served" in capsys.readouterr().out
