"""`shoal library`: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

MODEL = ["--model", "microsoft/phi-4", "--gpus", "L4,L40S", "--engine", "coral"]


def test_build_then_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", str(tmp_path)]
    assert main(["library", "build", *MODEL, *cache]) == 0
    assert "2 built, 0 loaded" in capsys.readouterr().out
    assert main(["library", "show", *MODEL, *cache, "--top", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["phase"] for row in rows] == ["prefill", "decode"]
    for row in rows:
        assert len(row["best"]) == 2
        assert row["best"][0]["req_per_s_per_gpu"] >= row["best"][1]["req_per_s_per_gpu"]
        assert sum(stage["layers"] for stage in row["best"][0]["stages"]) == 40
    (path, _) = sorted(tmp_path.iterdir())
    assert main(["library", "show", "--file", str(path)]) == 0
    assert "microsoft/phi-4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "either --config FILE or --model NAME"),
        (["show", "--model", "phi-5"], "--model"),
        (["build", "--model", "microsoft/phi-4", "--gpus", "L4,L5"], "--gpus"),
        (["build", "--model", "microsoft/phi-4", "--ttft-ms", "nan"], "ttft_ms"),
        (["build", "--model", "microsoft/phi-4", "--gpus", "L4,l4"], "each node slice once"),
        (["build", *MODEL, "--phase", "aggregated"], "single-node"),
        (["show", "--file", "absent.npz"], "absent.npz: cannot be read"),
        (["show", *MODEL, "--top", "-1"], "--top"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["library", *arguments, "--cache", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
