"""`shoal profile import --log`: the KV cache of a start changes the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main
from tests.unit.cli.test_measuring_command import CONFIG, planned
from tests.unit.performance.test_start_log import FEW, V0, V1

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LOG = (
    "vLLM API server version 0.13.0\nnon-default args: {'max_model_len': 8192, "
    "'enable_prefix_caching': True, 'model': 'meta-llama/Llama-3.1-8B-Instruct'}\n"
    "Initializing a V1 LLM engine (v0.13.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', "
    "max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1\n"
    "GPU KV cache size: 20,000 tokens\nMaximum concurrency for 8,192 tokens per request: 2.44x\n"
)


def imported(tmp_path: Path, text: str, *more: str) -> int:
    log = tmp_path / "start.log"
    log.write_text(text)
    into = ["--into", str(tmp_path / "measurements.json")]
    return main(["profile", "import", "--log", str(log), "--gpu", "L4", *into, *more])


def test_the_plan_uses_an_imported_start_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG.replace("SOURCE", MODEL).replace("measurements: measurements.json", ""))
    (before,) = planned(path, capsys)["kv_cache"]  # type: ignore[misc]
    assert before["source"] == "predicted" and before["tokens"] > 22_000
    assert imported(tmp_path, LOG) == 0
    assert "on 1xL4: 20000 tokens of KV cache at a start, " in capsys.readouterr().out
    path.write_text(CONFIG.replace("SOURCE", MODEL))
    (after,) = planned(path, capsys)["kv_cache"]  # type: ignore[misc]
    assert (after["source"], after["tokens"]) == ("measured", 20_000)
    # A second start of the same engine replaces the first.
    again = LOG.replace("20,000", "19,000")
    assert imported(tmp_path, again) == 0
    kept = json.loads((tmp_path / "measurements.json").read_text())
    assert [one["kv_tokens"] for one in kept] == [19_000]


def test_an_engine_with_other_arguments_says_nothing_about_the_planned_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG.replace("SOURCE", MODEL))
    other = LOG.replace("'enable_prefix_caching': True", "'gpu_memory_utilization': 0.95")
    assert imported(tmp_path, other) == 0
    capsys.readouterr()
    (cache,) = planned(path, capsys)["kv_cache"]  # type: ignore[misc]
    assert cache["source"] == "predicted"


@pytest.mark.parametrize(
    ("text", "more", "problem"),
    [
        (LOG, ["--model", "Qwen/Qwen3-8B"], "allowed: meta-llama/Llama-3.1-8B-Instruct, as in the"),
        (LOG, ["--gpus", "2"], "--gpus: 2 is not allowed; allowed: 1, as in the log"),
        (LOG[: LOG.index("GPU KV")], [], "allowed: a whole log of a start of vLLM"),
        (LOG.replace("20,000", "9" * 18), [], "log: kv_tokens"),
        (LOG.replace("20,000", "900,000"), [], "KV cache: '118 GB per GPU' is not allowed"),
        (LOG.replace("20,000", "2,000"), [], "allowed: at least 8192, as it started"),
        (V0, [], "--engine-args: 'nothing' is not allowed"),
        (V1, ["--gpus", "2"], "org/big"),
        (FEW, [], "--model: 'nothing' is not allowed"),
    ],
)
def test_a_log_that_cannot_count_is_refused_with_field_value_and_allowed_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], problem: str
) -> None:
    assert imported(tmp_path, text, *more) == 2
    said = capsys.readouterr().err
    assert problem in said.replace("\n", " ") and "Traceback" not in said
    assert not (tmp_path / "measurements.json").exists()


def test_a_refused_start_forbids_the_slice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FEW.replace("32768", "8192").replace("7344", "5000")
    assert imported(tmp_path, text, "--model", MODEL, "--engine-args", "") == 0
    assert "refused requests of 8192 tokens" in capsys.readouterr().out
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG.replace("SOURCE", MODEL))
    assert main(["plan", "--config", str(path), "--no-explain"]) != 0
