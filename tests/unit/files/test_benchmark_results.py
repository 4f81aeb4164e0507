"""Results of benchmark tools, in the formats of these tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.files.benchmark_results import read_results
from streams.files.benchmark_values import Result
from streams.files.user_errors import UserError

VLLM: dict[str, Any] = {
    "date": "20261120-101530", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "x", "num_prompts": 100,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 50.0,
    "completed": 100, "failed": 0, "total_input_tokens": 102_400, "total_output_tokens": 12_800,
    "request_throughput": 2.0, "mean_ttft_ms": 150.0, "median_ttft_ms": 140.0,
    "mean_tpot_ms": 12.0, "median_tpot_ms": 11.9,
}  # fmt: skip
GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 1},
    "args": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}},
            "start_time": 1_795_169_730.0,
            "metrics": {
                "prompt_token_count": {"successful": {"mean": 1024.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
                "request_concurrency": {"successful": {"mean": 7.9}},
                "time_to_first_token_ms": {"successful": {"mean": 150.0}},
                "inter_token_latency_ms": {"successful": {"mean": 12.0}},
                "time_per_output_token_ms": {"successful": {"mean": 13.1}},
            },
        },
        {
            "config": {"strategy": {"type_": "throughput"}},
            "metrics": {"output_token_count": {"successful": {"mean": 128.0}}},
        },
    ],
}
AIPERF: dict[str, Any] = {
    "schema_version": "1.0",
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "time_to_first_token": {"unit": "ms", "avg": 150.0, "p50": 140.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"]},
        "loadgen": {"concurrency": 8},
    },
    "start_time": "2026-11-20T10:15:30.000000",
}


def written(folder: Path, value: Any) -> Path:
    path = folder / "result.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("value", "load"),
    [(VLLM, 8.0), (GUIDELLM, 7.9), (AIPERF, 8.0)],
    ids=["vllm bench serve", "GuideLLM", "aiperf"],
)
def test_every_format_gives_the_same_run(
    value: dict[str, Any], load: float, tmp_path: Path
) -> None:
    found = read_results(written(tmp_path, value)).runs
    model = "meta-llama/Llama-3.1-8B-Instruct"
    assert found == (Result(model, "2026-11-20", 1024.0, 128.0, load, 150.0, 12.0),)


def test_the_load_of_a_run_at_a_rate_follows_littles_law(tmp_path: Path) -> None:
    """2 requests/s that take 150 + 128 x 12 ms each give 3.4 requests in flight."""
    rated = {**VLLM, "request_rate": 2.0, "max_concurrency": None}
    found = read_results(written(tmp_path, rated)).runs
    assert found[0].load == pytest.approx(2.0 * (0.150 + 128 * 0.012))


def test_appended_results_are_read_line_by_line(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({**VLLM, "max_concurrency": load}) for load in (4, 8))
    assert [run.load for run in read_results(written(tmp_path, lines)).runs] == [4.0, 8.0]


def test_metrics_can_be_nested_under_records(tmp_path: Path) -> None:
    keys = ("time_to_first_token", "inter_token_latency", "input_sequence_length",
            "output_sequence_length")  # fmt: skip
    rest = {key: value for key, value in AIPERF.items() if key not in keys}
    nested = {**rest, "records": {key: AIPERF[key] for key in keys}}
    for value in (nested, {**AIPERF, "records": None}):
        assert [run.load for run in read_results(written(tmp_path, value)).runs] == [8.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_concurrency": None}, "sent at once"),
        ({"max_concurrency": None, "request_rate": float("inf")}, "sent at once"),
        ({"completed": 0}, "no request was completed"),
        ({"mean_ttft_ms": 0.0}, "not streamed"),
        ({"total_output_tokens": 100}, "one token"),
        ({"request_throughput": 60.0}, "the figures contradict each other"),
    ],
)
def test_a_run_without_a_steady_load_is_skipped_with_its_reason(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    found = read_results(written(tmp_path, {**VLLM, **change}))
    assert found.runs == ()
    assert said in found.skipped[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "holds no run"),
        ("x", "not JSON, nor a CSV of GuideLLM or vllm bench sweep"),
        ("[1, 2]", "an object"),
        ("{}", "a result of vllm bench serve --save-result, GuideLLM, aiperf, llm-d"),
        (json.dumps({**VLLM, "mean_tpot_ms": "fast"}), "mean_tpot_ms"),
        (json.dumps({**VLLM, "mean_ttft_ms": -1}), "mean_ttft_ms"),
        (json.dumps({**VLLM, "max_concurrency": "abc"}), "max_concurrency: 'abc' is not allowed"),
        (json.dumps({**VLLM, "max_concurrency": [8]}), "max_concurrency: [8] is not allowed"),
        (json.dumps({**VLLM, "request_rate": "fast"}), "request_rate: 'fast' is not allowed"),
        (json.dumps({**VLLM, "completed": 10**400}), "completed: '1000"),
        (
            json.dumps({**VLLM, "duration": 0}),
            "duration: 0 is not allowed; allowed: a number above",
        ),
        (json.dumps({"benchmarks": [3]}), "objects with metrics"),
        (json.dumps(GUIDELLM).replace("150.0", '"abc"'), "time_to_first_token_ms.mean: 'abc'"),
        (json.dumps(GUIDELLM).replace("150.0", "[1]"), "time_to_first_token_ms.mean: [1]"),
        (json.dumps({"records": None}), "a result of vllm bench serve"),
        (json.dumps({"records": 3}), "a result of vllm bench serve"),
        (json.dumps(AIPERF).replace("150.0", '"abc"'), "time_to_first_token.avg: 'abc'"),
        (json.dumps(AIPERF).replace('cy": 8', 'cy": {"a": 8}'), "input_config.concurrency: {'a'"),
    ],
)
def test_a_file_without_results_is_refused_in_one_line(
    value: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read_results(written(tmp_path, value))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 40, "failed": 60}, "60 of 100 requests failed"),
        ({"completed": 40}, "60 of 100 requests failed"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1}, "rose during the run (linear)"),
        (
            {"request_rate": 10.0, "max_concurrency": None, "mean_ttft_ms": 20_000.0},
            "asked for 10 req/s and got 3.51: requests queued up",
        ),
        ({"max_concurrency": 64}, "100 requests for 64 at once: fewer than 2 rounds"),
        ({"max_concurrency": 32}, "asked for 32 requests at once and had 3.4 under way"),
        (
            {
                "request_rate": 40.0,
                "max_concurrency": None,
                "duration": 24.0,
                "mean_ttft_ms": 20_000.0,
                "request_throughput": 4.2,
            },
            "sent 100 requests in 2.5 s, and a request took 21.5 s: fewer than 2 rounds",
        ),
        (
            {"request_rate": 40.0, "max_concurrency": 60, "mean_ttft_ms": 20_000.0},
            "100 requests for 60 at once: fewer than 2 rounds",
        ),
    ],
)
def test_a_run_that_missed_its_requested_load_is_skipped_with_the_reason(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """One run lasts 50 s. Without the 21.5 s of its last request, 28.5 s are
    left for 100 requests.
    """
    found = read_results(written(tmp_path, {**VLLM, **change}))
    assert found.runs == ()
    assert said in found.skipped[0]


def test_a_run_with_few_failures_and_a_long_last_answer_counts(tmp_path: Path) -> None:
    few = {**VLLM, "completed": 96, "failed": 4}
    late = {**VLLM, "request_rate": 2.0, "max_concurrency": None, "duration": 51.7}
    assert len(read_results(written(tmp_path, json.dumps([few, late]))).runs) == 2


def test_failures_ramps_and_unmet_rates_are_read_from_guidellm_and_aiperf(tmp_path: Path) -> None:
    one = GUIDELLM["benchmarks"][0]
    totals = {"successful": 30, "errored": 70, "incomplete": 1, "total": 101}
    failed = {**one, "metrics": {**one["metrics"], "request_totals": totals}}
    ramped = {**one, "config": {"strategy": {"type_": "constant", "rate": 2, "rampup_duration": 9}}}
    empty = {**one, "config": {"strategy": {"type_": "concurrent", "streams": 64}}}
    found = read_results(written(tmp_path, {**GUIDELLM, "benchmarks": [failed, ramped, empty]}))
    assert found.runs == ()
    assert "70 of 100 requests failed" in found.skipped[0]
    assert "9 s of ramp" in found.skipped[1]
    assert "asked for 64 requests at once and had 7.9" in found.skipped[2]
    counts = {"request_count": {"avg": 10.0}, "error_request_count": {"avg": 90.0}}
    found = read_results(written(tmp_path, {**AIPERF, **counts}))
    assert "90 of 100 requests failed" in found.skipped[0]


SWEEP = [{**VLLM, "run_number": n, "max_concurrency": n + 4} for n in range(2)]


def test_a_sweep_can_be_read_from_summaries_folder_or_csv(tmp_path: Path) -> None:
    """One combination failed. Its cells are empty, as pandas writes them."""
    folder = tmp_path / "20261120_101530" / "SERVE--BENCH-max_concurrency=4"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SWEEP))
    (folder / "run=0.json").write_text(json.dumps(SWEEP[0]))
    assert [run.load for run in read_results(tmp_path).runs] == [4.0, 5.0]
    keys = [*VLLM, "run_number"]
    rows = [[str(n), *(str(run[key]) for key in keys)] for n, run in enumerate(SWEEP)]
    text = "\n".join(",".join(row) for row in [["", *keys], *rows]).replace("None", "")
    assert [run.load for run in read_results(written(tmp_path, text)).runs] == [4.0, 5.0]
    with pytest.raises(UserError, match=r"a folder without summary\.json"):
        read_results(Path(__file__).parent)


GUIDELLM_CSV = (
    "Run Info,Run Info,Benchmark,Timings,Request Counts,Request Counts,Time to First Token,"
    "Time to First Token,Inter Token Latency,Server Throughput,Token Metrics,Token Metrics\n"
    "Run ID,Backend,Strategy,Start Time,Successful,Errored,Successful ms,Successful ms,"
    "Successful ms,Successful Concurrency,Successful Input Tokens,Successful Output Tokens\n"
    ",,,,,,Mean,Median,Mean,Mean,Mean,Mean\n"
    '"r","{""model"": ""meta-llama/Llama-3.1-8B-Instruct""}",concurrent,2026-11-20 10:15:30,100,0,'
    "150.0,140.0,12.0,7.9,1024.0,128.0\n"
    "r,,concurrent,2026-11-20 10:16:30,10,90,150.0,140.0,12.0,7.9,1024.0,128.0\n"
    "r,,concurrent,2026-11-20 10:17:30,10,90,150.0,140.0,12.0,7.9,1024.0,128.0,1,2\n"
)


def test_the_csv_and_json_of_guidellm_give_the_same_run(tmp_path: Path) -> None:
    """A row whose columns differ from those of the first benchmark is skipped."""
    found = read_results(written(tmp_path, GUIDELLM_CSV))
    assert found.runs == read_results(written(tmp_path, GUIDELLM)).runs
    assert "90 of 100 requests failed" in found.skipped[0]
    assert "do not fit the header" in found.skipped[1]


def test_a_run_at_a_rate_that_its_concurrency_limits_is_a_run_at_that_concurrency(
    tmp_path: Path,
) -> None:
    """640 requests at 64 at once, while 50 req/s were asked for and 5 served."""
    bound = {
        **VLLM, "request_rate": 50.0, "max_concurrency": 64, "num_prompts": 640, "completed": 640,
        "duration": 128.0, "total_input_tokens": 655_360, "total_output_tokens": 163_840,
        "request_throughput": 5.0, "mean_ttft_ms": 600.0, "mean_tpot_ms": 47.0,
    }  # fmt: skip
    (run,) = read_results(written(tmp_path, bound)).runs
    assert run.load == 64.0
    rated = {**bound, "request_rate": 5.0, "max_concurrency": 100}
    (run,) = read_results(written(tmp_path, rated)).runs
    assert run.load == pytest.approx(5.0 * 12.632)
