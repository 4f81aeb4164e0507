"""The placement benchmark: its output, its results for known optima, and its errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.placement_bench import main

# Two nodes, four layers: 3 + 1 layers give min(4, 9) = 4; one stage of both gives 2 x 1 = 2.
CASE: dict[str, Any] = {
    "id": "two",
    "layers": 4,
    "nodes": [0, 1],
    "throughput": [[[8, 4, 2, 1], [8, 4, 2, 1]], [[9, 6, 4, 1], [9, 3, 1, 1]]],
    "best": 4.0,
}


def run(tmp_path: Path, case: dict[str, Any], zipped: bool = True) -> tuple[int, Any]:
    source, out = tmp_path / "cases.json", tmp_path / "out.json"
    raw = json.dumps([case]).encode()
    source.write_bytes(gzip.compress(raw) if zipped else raw)
    code = main([str(source), "--out", str(out), "--repeat", "3"])
    return code, json.loads(out.read_bytes()) if out.exists() else None


@pytest.mark.parametrize("zipped", [True, False])
def test_writes_id_best_and_seconds(tmp_path: Path, zipped: bool) -> None:
    code, rows = run(tmp_path, CASE, zipped)
    assert code == 0
    assert [(row["id"], row["best"]) for row in rows] == [("two", 4.0)]
    assert 0 < rows[0]["seconds"] < 1


def test_a_missed_optimum_gives_exit_code_1(tmp_path: Path) -> None:
    assert run(tmp_path, {**CASE, "best": 4.1})[0] == 1


@pytest.mark.parametrize(
    "change",
    [{"layers": 5}, {"nodes": [0, 2]}, {"nodes": []}, {"throughput": [[[1, -1]]], "layers": 2}],
)
def test_bad_cases_give_exit_code_2(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, {**CASE, **change}) == (2, None)
    assert "placement_bench: " in capsys.readouterr().err


def test_a_missing_file_gives_exit_code_2(tmp_path: Path) -> None:
    assert main([str(tmp_path / "absent"), "--out", str(tmp_path / "out.json")]) == 2
