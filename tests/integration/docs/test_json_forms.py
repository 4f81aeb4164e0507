"""docs/reference/json.md documents each key that a command prints as JSON, and no other.

Commands run where that is quick. A documented key that these runs do not print must be a key in the
code that makes the output.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streams.cli.main import main
from tests.integration.docs.json_forms import documented, undocumented
from tests.integration.docs.page_commands import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
SOURCES: Mapping[str, tuple[str, ...]] = {
    "shoal plan": (
        "streams/cli/plan_json.py", "streams/cli/plan_quality.py", "streams/cli/plan_stats.py",
        "autoscaler/explain/explanation.py", "autoscaler/planning/capacity_provenance.py",
        "streams/cli/plan_verify.py",
    ),
    "shoal plan in budget mode": ("streams/cli/plan_budget.py", "streams/cli/plan_verify.py"),
    "shoal plan with components": ("streams/cli/plan_components.py", "streams/cli/plan_verify.py"),
    "shoal diff": ("streams/cli/diff.py", "autoscaler/rollout/wave_preview.py"),
    "shoal status": (
        "streams/health/controller_facts.py", "autoscaler/tick/status.py",
        "streams/health/multi_node_status.py", "streams/health/quality_status.py",
        "streams/health/exposure.py", "streams/health/status_server.py",
        "streams/cli/controller_client.py", "streams/decision_log/log_writer.py",
        "autoscaler/tick/rollout_status.py", "autoscaler/tick/account.py",
        "autoscaler/estimate/window_stats.py", "streams/health/launch_waits.py",
    ),
    "shoal rollout": ("streams/cli/rollout.py",),
    "shoal explain": (
        "streams/health/controller_facts.py", "streams/cli/explain.py",
        "autoscaler/explain/explanation.py",
    ),
    "shoal doctor": ("streams/cli/finding.py",),
    "shoal replay": (
        "streams/cli/replay_view.py", "streams/decision_log/log_replay.py",
        "autoscaler/simulation/what_if.py", "streams/decision_log/log_reader.py",
    ),
    "shoal log verify": ("streams/decision_log/log_verify.py",),
    "shoal backtest": (
        "streams/tools/backtest/backtest_report.py", "autoscaler/simulation/policy_score.py",
    ),
    "shoal up": (
        "streams/tools/up/run_summary.py", "streams/tools/replay/replay_report.py",
        "streams/tools/up/counterfactual_cost.py", "streams/tools/up/simulated_policies.py",
    ),
    "shoal config check": ("streams/cli/config.py",),
    "shoal models": ("streams/cli/catalogue.py",),
    "shoal gpus": ("streams/cli/catalogue.py",),
    "shoal library": ("streams/cli/library.py",),
    "shoal library show --file": ("autoscaler/templates/library_codec.py",),
    "shoal profile evaluate": (
        "streams/cli/profile.py", "autoscaler/performance/estimate_errors.py",
        "autoscaler/performance/intervals.py",
    ),
}  # fmt: skip
"""The files that make the JSON of each section."""
RUNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "shoal plan": (
        ("plan", "--config", str(EXAMPLES / "four-models.yaml"), "--json", "--stats",
         "--verify"),
    ),
    "shoal plan in budget mode": (
        ("plan", "--config", str(EXAMPLES / "budget.yaml"), "--json", "--verify"),
    ),
    "shoal plan with components": (
        ("plan", "--config", str(EXAMPLES / "components.yaml"), "--json", "--verify"),
    ),
    "shoal doctor": (
        ("doctor", "--config", str(EXAMPLES / "budget.yaml"), "--json", "--url",
         "http://127.0.0.1:9"),
    ),
    "shoal config check": (
        ("config", "check", str(EXAMPLES / "budget.yaml"), "none.yaml", "--json"),
    ),
    "shoal models": (("models", "Qwen/Qwen3-8B", "--json"),),
    "shoal gpus": (("gpus", "L4", "--json"),),
}  # fmt: skip
COMPOSED = {"req_per_s_per_gpu", "req_per_s_per_usd_per_h"}
"""Keys that the code puts together from parts."""
FORMS = documented()


def _printed(arguments: Iterable[str], capfd: pytest.CaptureFixture[str]) -> Any:
    capfd.readouterr()
    main(list(arguments))
    return json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("section", RUNS)
def test_each_printed_key_is_documented(section: str, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in RUNS[section]:
        assert undocumented(section, _printed(arguments, capfd)) == []


def test_each_key_of_a_diff_is_documented(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("mini:a1@us-east/l40s/on-demand: 2\n")
    arguments = ["diff", "--config", str(EXAMPLES / "four-models.yaml"), "--fleet", str(fleet)]
    assert undocumented("shoal diff", _printed([*arguments, "--json"], capfd)) == []


def test_each_key_of_an_evaluation_is_documented(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header = (
        "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
    )
    rows = [
        f"llama2-70b,{gpu},{n},4,128,{n // 2},60,4"
        for gpu in ("a100-80gb", "h100-80gb")
        for n in range(512, 1024, 32)
    ]
    skipped = "unknown-model,a100-80gb,512,4,128,300,60,4"
    points = tmp_path / "points.csv"
    points.write_text("\n".join([header, *rows, skipped]) + "\n")
    printed = _printed(["profile", "evaluate", "--points", str(points), "--json"], capfd)
    assert printed["intervals"] and printed["skipped"]
    assert undocumented("shoal profile evaluate", printed) == []


def test_each_key_of_a_library_file_is_documented(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build = ["--model", "Qwen/Qwen3-8B", "--gpus", "L4", "--phase", "decode"]
    assert main(["library", "build", *build, "--cache", str(tmp_path)]) == 0
    (made,) = tmp_path.iterdir()
    printed = _printed(["library", "show", "--file", str(made), "--json"], capfd)
    assert undocumented("shoal library show --file", printed) == []


def test_an_undocumented_key_is_found() -> None:
    assert undocumented("shoal doctor", [{"ok": True, "what": "x", "why": "y"}]) == ["[].why"]


@cache
def _keys_of(file: str) -> frozenset[str]:
    """Keys of dictionaries, fields of dataclasses, keyword arguments and properties in a
    Python file."""
    return frozenset(_literals(ast.parse((ROOT / file).read_text(encoding="utf-8"))))


def _literals(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (k.value for k in node.keys if isinstance(k, ast.Constant))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield str(node.slice.value)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            yield node.name


def not_in_code(section: str, keys: Iterable[str]) -> list[str]:
    """The keys whose parts are no keys in the files of the section."""
    known = frozenset[str]().union(*map(_keys_of, SOURCES[section]))
    return [
        key
        for key in keys
        for name in re.findall(r"[a-z0-9_]+", key)
        if name not in known and name not in COMPOSED
    ]


@pytest.mark.parametrize("section", FORMS)
def test_each_documented_key_is_a_key_in_the_code(section: str) -> None:
    assert not_in_code(section, FORMS[section]) == []


def test_a_documented_key_that_is_not_printed_is_found() -> None:
    assert not_in_code("shoal doctor", ["[].ok", "[].severity"]) == ["[].severity"]


def test_each_command_with_json_has_a_section() -> None:
    files = [Path(file) for found in SOURCES.values() for file in found]
    assert set(SOURCES) == set(FORMS)
    assert all((ROOT / file).is_file() for file in files)
    commands = {
        path.stem
        for path in (ROOT / "streams" / "cli").glob("*.py")
        if '"--json"' in path.read_text(encoding="utf-8")
    }
    described = {title.split()[1] for title in FORMS} | {"catalogue"}
    assert commands - described == set()
