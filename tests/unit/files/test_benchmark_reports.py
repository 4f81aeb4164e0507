"""Printed tables of `vllm bench serve`, and reports of llm-d, inference-perf and InferenceX."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.malformed_seeds import INFERENCE_PERF, INFERENCEX, LLMD_1, LLMD_2, PRINTED
from streams.cli.main import main
from streams.files.benchmark_results import Results, read_results
from streams.files.user_errors import UserError


def read(folder: Path, value: Any) -> Results:
    path = folder / "result"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return read_results(path)


def changed(value: Any, *keys: str | int, to: Any) -> Any:
    """A copy of `value` with another value at `keys`."""
    made = copy.deepcopy(value)
    inside = made
    for key in keys[:-1]:
        inside = inside[key]
    inside[keys[-1]] = to
    return made


@pytest.mark.parametrize(
    ("value", "model", "gpus"),
    [
        (PRINTED, "", 0),
        (LLMD_1, "Qwen/Qwen3-8B", 1),
        (LLMD_2, "Qwen/Qwen3-8B", 1),
        (json.dumps(INFERENCE_PERF), "", 0),
        (json.dumps(INFERENCEX), "Qwen/Qwen3-8B", 1),
    ],
    ids=["printed", "llm-d 0.1", "llm-d 0.2", "inference-perf", "InferenceX"],
)
def test_every_form_gives_the_same_run(value: str, model: str, gpus: int, tmp_path: Path) -> None:
    """640 requests of 1024 and 256 tokens, 63 or 64 at once, TTFT 600 ms, TPOT 47 ms."""
    (run,) = read(tmp_path, value).runs
    assert (run.input_tokens, run.output_tokens) == (1024.0, 256.0)
    assert (run.ttft_ms, run.tpot_ms) == (600.0, 47.0)
    assert run.load == pytest.approx(63.5, rel=0.01)
    assert (run.model, run.gpus) == (model, gpus)


def test_a_log_with_the_command_and_several_tables_gives_each_run(tmp_path: Path) -> None:
    told = "Namespace(backend='vllm', model='Qwen/Qwen3-8B', request_rate=inf, max_concurrency=64)"
    table = "\n".join(line for line in PRINTED.splitlines() if "concurrency" not in line)
    found = read(tmp_path, f"{told}\n{table}\n{PRINTED}\n{table}\n{PRINTED[:200]}")
    assert [run.load for run in found.runs] == [64.0, 64.0]
    assert found.runs[0].model == "Qwen/Qwen3-8B"
    assert "sent at once" in found.skipped[0]
    assert "cut off" in found.skipped[1]


LLMD_JSON = {
    "version": "0.2",
    "results": {"request_performance": {"aggregate": {
        "requests": {"total": 640, "failures": 0, "input_length": {"mean": 1024},
                     "output_length": {"mean": 256}},
        "latency": {"time_to_first_token": {"units": "s", "mean": 0.6},
                    "inter_token_latency": {"units": "s/token", "mean": 0.047}},
        "throughput": {"request_rate": {"units": "queries/s", "mean": 5.0}},
    }}},
    "scenario": {
        "load": {"standardized": {"rate_qps": 5.0}},
        "stack": [{"standardized": {"kind": "inference_engine", "role": "replica", "replicas": 1,
                                    "accelerator": {"model": "H100", "parallelism": {"tp": 2}},
                                    "model": {"name": "m"}}}],
    },
}  # fmt: skip
_AGGREGATE = ("results", "request_performance", "aggregate")
_ENGINE = ("scenario", "stack", 0, "standardized")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (changed(LLMD_JSON, "scenario", "load", "standardized", "rate_qps", to=50.0),
         "asked for 50 req/s and got 5.55"),
        (changed(LLMD_JSON, *_AGGREGATE, "requests", "failures", to=100), "100 of 640 requests"),
        (changed(changed(LLMD_JSON, *_AGGREGATE, "throughput", "request_rate", "mean", to=30.0),
                 "scenario", "load", "standardized", "rate_qps", to=30.0),
         "sent 640 requests in 21.3 s"),
        (changed(LLMD_JSON, *_ENGINE, "role", to="prefill"), "prefill and decode"),
        (changed(LLMD_JSON, *_ENGINE, "replicas", to=4), "several engines"),
        (changed(INFERENCE_PERF, "load_summary", "requested_rate", to=50.0), "asked for 50 req/s"),
        (changed(INFERENCE_PERF, "successes", "latency", "time_to_first_token", to=None),
         "not streamed"),
        (changed(INFERENCE_PERF, "successes", "throughput", "requests_per_sec", to=25.0),
         "lasted 25.6 s, and a request took 12.6 s"),
        ({**INFERENCEX, "disagg": True}, "prefill and decode"),
        ({**INFERENCEX, "spec_decoding": "mtp"}, "speculative decoding"),
        ({**INFERENCEX, "dp_attention": "true"}, "data-parallel"),
    ],
)  # fmt: skip
def test_a_report_that_is_no_steady_run_of_one_engine_is_left_out(
    value: Any, said: str, tmp_path: Path
) -> None:
    found = read(tmp_path, value)
    assert found.runs == ()
    assert said in found.skipped[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (changed(LLMD_JSON, *_AGGREGATE, "latency", "time_to_first_token", "units", to="min"),
         "time_to_first_token.units: 'min' is not allowed; allowed: s or"),
        (changed(INFERENCE_PERF, "successes", "prompt_len", to=None), "prompt_len: 'missing'"),
        ({**INFERENCEX, "isl": "long"}, "isl: 'long'"),
        (LLMD_1 + "\n  - [", "not YAML"),
    ],
)  # fmt: skip
def test_a_broken_report_is_refused_by_name(value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, value)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_runs_of_other_gpus_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps([INFERENCEX, {**INFERENCEX, "tp": 4}, {**INFERENCEX, "hw": "l4"}]))
    into = ["--into", str(tmp_path / "m.json")]
    assert main(["profile", "import", str(path), "--gpu", "H100", *into]) == 0
    said = capsys.readouterr().out
    assert "left out: it used 4 GPUs, and --gpus is 1" in said
    assert "left out: it ran on l4, and --gpu is H100" in said
    assert "1 points" in said
