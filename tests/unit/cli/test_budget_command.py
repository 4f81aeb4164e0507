"""`shoal plan --budget` and `shoal workload types` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

CONFIG = """
defaults: {utilization: 0.8, spot: 0.5, max_len: 8192}
regions:
  us-east:
    l40s: {gpu: L40S, per_node: 1, max: 6, price: 1.80}
    l4:   {gpu: L4, per_node: 1, max: 8, price: 0.85, spot_price: 0.32}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 60ms}
    workload:
      req_per_s: 4
      types:
        long: {share: 30%, input: 2455, output: 18}
        chat: {share: 70%, input: 496, output: 510}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    return path


def plan(config: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["plan", "--config", str(config), "--json", *options]) == 0
    shown: dict[str, object] = json.loads(capsys.readouterr().out)
    return shown


def test_max_limits_the_nodes_of_both_markets_together(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = plan(config, capsys, "--budget", "100")
    nodes = shown["nodes"]
    assert isinstance(nodes, dict)
    assert sum(count for pool, count in nodes.items() if "/l4/" in pool) <= 8


def test_a_larger_budget_serves_more_and_is_never_exceeded(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each type's fractions sum to 1, and spot stays within its share."""
    rates = []
    for budget in (2.0, 5.0, 9.0):
        shown = plan(config, capsys, "--budget", str(budget))
        assert shown["cost_usd_per_h"] <= budget  # type: ignore[operator]
        assert shown["gap"] < 1e-3  # type: ignore[operator]
        rates.append(shown["req_per_s"])
        fractions: dict[str, float] = {}
        spot = 0.0
        for row in shown["assignment"]:  # type: ignore[attr-defined]
            fractions[row["type"]] = fractions.get(row["type"], 0.0) + row["fraction"]
            share = {"long": 0.3, "chat": 0.7}[row["type"]]
            spot += share * row["fraction"] * ("/spot" in row["combo"])
        assert fractions == pytest.approx({"long": 1.0, "chat": 1.0})
        assert spot <= 0.5 + 1e-6
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_twice_the_requests_of_a_batch_take_twice_the_time(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The budget stays the same."""
    one = plan(config, capsys, "--budget", "5", "--objective", "makespan", "--requests", "500")
    two = plan(config, capsys, "--budget", "5", "--objective", "makespan", "--requests", "1000")
    assert two["makespan_s"] == pytest.approx(2.0 * one["makespan_s"], rel=1e-3)  # type: ignore[operator]


def test_the_text_of_a_plan_shows_the_instances_of_each_type(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the optimality gap and fits 100 columns."""
    assert main(["plan", "--config", str(config), "--budget", "5"]) == 0
    out = capsys.readouterr().out
    assert "mini/long" in out
    assert "proven optimal" in out
    assert "limited by  budget" in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "0.1"], "budget"),
        (["--budget", "nan"], "--budget"),
        (["--budget", "5", "--objective", "makespan", "--requests", "0"], "--requests"),
    ],
)
def test_a_bad_budget_is_refused_in_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """The exit code is 2, and the line names the fault."""
    assert main(["plan", "--config", str(config), *options]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("find", "replaced", "said"),
    [
        ("share: 30%", "share: 20%", "shares sum to 90.0%"),
        ("share: 30%", "share: 0%", "share above 0"),
        ("output: 18}", "output: 18, ouput: 3}", "ouput"),
        ("input: 2455", "input: -1", "input"),
        ("long: {", "so long: {", "a name is 1 to 63 letters"),
        ("regions:", "policy: {objective: throughput}\nregions:", "above 0 with objective"),
        ("regions:", "policy: {budget: 5, objective: speed}\nregions:", "cost or throughput or"),
    ],
)
def test_errors_in_request_types_name_file_line_and_key(
    config: Path, capsys: pytest.CaptureFixture[str], find: str, replaced: str, said: str
) -> None:
    """Each error is one line."""
    config.write_text(CONFIG.replace(find, replaced))
    assert main(["plan", "--config", str(config), "--budget", "5"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err
    assert "shoal.yaml:" in err


def test_the_workload_reader_accepts_the_output_of_workload_types(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user pastes the types that `shoal workload types` finds in a trace into `workload`."""
    trace = tmp_path / "trace.csv"
    rows = [(100 * i, 2000 if i % 3 else 200, 20 if i % 2 else 400) for i in range(600)]
    trace.write_text(
        "timestamp_ms,input_tokens,output_tokens\n" + "\n".join(f"{t},{i},{o}" for t, i, o in rows)
    )
    assert main(["workload", "types", "--trace", str(trace)]) == 0
    printed = capsys.readouterr().out
    types = [line for line in printed.splitlines() if not line.startswith("#")]
    head, _, _ = CONFIG.partition("      types:")
    config.write_text(head + "\n".join("      " + line for line in types) + "\n")
    shown = plan(config, capsys, "--budget", "6")
    assert {row["type"] for row in shown["assignment"]} == {  # type: ignore[attr-defined]
        "2000-20", "2000-400", "200-20", "200-400",
    }  # fmt: skip


def test_the_file_can_select_budget_mode(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`shoal plan` shows the plan that the controller would make. `--budget` overrides the file."""
    said = "policy: {budget: 5, objective: throughput}\nregions:"
    config.write_text(CONFIG.replace("regions:", said))
    declared = plan(config, capsys)
    assert declared["budget_usd_per_h"] == 5.0
    assert declared["combos"] == plan(config, capsys, "--budget", "5")["combos"]
    assert plan(config, capsys, "--budget", "9")["budget_usd_per_h"] == 9.0
