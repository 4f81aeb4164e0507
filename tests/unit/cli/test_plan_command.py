"""`shoal plan` as a user runs it: its output and the input that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

CONFIG = """
defaults: {utilization: 0.8, spot: 0.5, max_len: 8192}
regions:
  us-east:
    h100: {gpu: H100, per_node: 8, nodes: 1, owned: true}
    l40s: {gpu: L40S, per_node: 4, max: 8, price: 7.20, spot_price: 2.90}
models:
  chat:
    source: meta-llama/Llama-3.3-70B-Instruct
    slo: {ttft: 2s, tpot: 60ms}
    workload: {input: 1155, output: 211}
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 500ms, tpot: 30ms}
    workload: {input: 1155, output: 211}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file above. Its folder is the current one, so that paths in the output are short."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    return path


def demand(tmp_path: Path, text: str) -> str:
    (tmp_path / "demand.yaml").write_text(text)
    return "demand.yaml"


def test_a_plan_fits_eighty_columns_and_states_that_nothing_was_changed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = demand(tmp_path, "chat: {req_per_s: 3}\nmini: {req_per_s: 80}\n")
    assert main(["plan", "--config", str(config), "--demand", wanted]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    for words in ("chat", "mini", "USD/h", "lower bound", "gap", "Nothing was changed"):
        assert words in out


def test_a_plan_used_as_the_running_fleet_gives_the_same_plan(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The JSON output uses the combo names and counts of a fleet file, and JSON is also YAML."""
    wanted = demand(tmp_path, '{"chat": {"req_per_s": 3}, "mini": {"req_per_s": 80}}')
    start = ["plan", "--config", str(config), "--demand", wanted, "--json", "--no-explain"]
    assert main(start) == 0
    first = json.loads(capsys.readouterr().out)
    fleet = {
        combo["combo"]: combo["proposed"]
        for model in first["models"].values()
        for combo in model["combos"]
    }
    assert fleet
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(fleet))
    assert main([*start, "--fleet", str(path)]) == 0
    second = json.loads(capsys.readouterr().out)
    for model in second["models"].values():
        assert all(combo["now"] == combo["proposed"] for combo in model["combos"])
    assert second["cost_usd_per_h"] == second["now_usd_per_h"] == first["cost_usd_per_h"]
    assert first["lower_bound_usd_per_h"] <= first["objective_usd_per_h"]
    assert main([*start[:-2], "--fleet", str(path), "--no-explain"]) == 0
    assert "unchanged" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["shoal", "cauchy", "mce-lp", "mc-lp", "homo"])
def test_every_strategy_can_be_selected(
    name: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", "--config", str(config), "--strategy", name, "--json", "--no-explain"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"] == name
    assert found["applied"] is False
    assert (found["gap"] >= 0.0) is (name == "shoal")


def test_without_a_demand_the_default_rate_is_stated(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--config", str(config), "--no-explain"]) == 0
    said = "the declared workloads (1 req/s for a model without a rate)"
    assert said in capsys.readouterr().out


def test_without_a_demand_the_declared_rates_are_planned(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model without a declared rate gets the default rate."""
    config.write_text(CONFIG.replace("workload: {", "workload: {req_per_s: 2.5, ", 1))
    assert main(["plan", "--config", str(config), "--no-explain", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert {name: row["req_per_s"] for name, row in models.items()} == {
        "chat": 2.5,
        "mini": 1.0,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "chta: {req_per_s: 3}\n",
            "demand.yaml:1: chta: no model of this name; did you mean chat?",
        ),
        ("chat: {req_per_s: -3}\n", "chat.req_per_s"),
        ("chat: {req_per_s: .nan}\n", "chat.req_per_s"),
        ("chat: {req_per_s: many}\n", "chat.req_per_s"),
        ("chat: {reqs: 3}\n", "did you mean"),
        ("chat: {req_per_s: 1, input_tokens: 0}\n", "chat.input_tokens"),
        ("chat: 3\n", "chat: a mapping is expected"),
        ("- 3\n", "a mapping is expected, with models"),
        ("", "is empty"),
        ("chat: {req_per_s: 3\n", "is not YAML"),
        ("{}", "no model is named"),
    ],
)
def test_a_bad_demand_file_gives_one_clear_line(
    text: str, said: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = demand(tmp_path, text)
    assert main(["plan", "--config", str(config), "--demand", wanted]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mini: 3\n", "mini"),
        ("mini:a1@us-east/h200/owned: 1\n", "us-east/h200/owned"),
        ("mini:a3@us-east/l40s/spot: 1\n", "1, 2, 4 or 8"),
        ("mini:a8@us-east/l40s/spot: 1\n", "at most 4"),
        ("mini:a1@us-east/l40s/spot: -1\n", "mini:a1@us-east/l40s/spot"),
        ("mni:a1@us-east/l40s/spot: 1\n", "did you mean mini?"),
        ("mini:a4@us-east/l40s/spot: 99\n", "more than the 8 nodes"),
    ],
)
def test_a_bad_fleet_file_gives_one_clear_line(
    text: str, said: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    assert main(["plan", "--config", str(config), "--fleet", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_missing_file_and_a_bad_gap_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in (["--demand", "/nowhere/demand.yaml"], ["--gap", "nan"], ["--time-limit", "0"]):
        assert main(["plan", "--config", str(config), *more]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_stats_show_every_step_of_the_search_with_its_bound(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output lists the candidates, the formulation and the searches. The last search ends at
    the plan's cost.
    """
    wanted = demand(tmp_path, "chat: {req_per_s: 3}\nmini: {req_per_s: 80}\n")
    start = ["plan", "--config", str(config), "--demand", wanted, "--no-explain", "--stats"]
    assert main([*start, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    steps = made["steps"]
    assert [step["step"] for step in steps[:2]] == ["candidates", "formulation"]
    last = steps[-1]
    assert last["columns"] >= last["built"] > 0
    assert last["lower_bound_usd_per_h"] <= last["cost_usd_per_h"]
    assert last["cost_usd_per_h"] == pytest.approx(made["objective_usd_per_h"], rel=1e-3)
    times = [step["ended_at_s"] for step in steps]
    assert times == sorted(times)
    assert main(start) == 0
    out = capsys.readouterr().out
    assert "formulation" in out and "bound USD/h" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("rate", "least", "instances"), [("req_per_s: 0, ", 0, 0), ("req_per_s: 0, ", 1, 1), ("", 0, 2)]
)
def test_a_declared_rate_of_zero_is_not_a_missing_rate(
    rate: str, least: int, instances: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zero requests need only `min`. Without a declared rate, the plan assumes 1 req/s."""
    file = tmp_path / "zero.yaml"
    file.write_text(
        "regions: {r: {l4: {gpu: L4, max: 8, price: 0.85}}}\n"
        f"models: {{m: {{source: Qwen/Qwen3-8B, min: {least}, max_len: 8192, "
        "slo: {ttft: 5s, tpot: 100ms}, "
        f"workload: {{{rate}input: 500, output: 200}}}}}}\n"
    )
    assert main(["plan", "--config", str(file), "--json", "--no-explain"]) == 0
    combos = json.loads(capsys.readouterr().out)["models"]["m"]["combos"]
    assert sum(combo["proposed"] for combo in combos) == instances
