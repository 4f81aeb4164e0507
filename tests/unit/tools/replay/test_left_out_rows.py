"""Rows that are no finished request are left out and counted; access logs; usage exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.malformed_seeds import ENVOY, NGINX, USAGE
from streams.files.user_errors import UserError
from streams.tools.replay.traces import Trace, load_trace, parse_columns


def read(folder: Path, text: str, columns: str = "") -> Trace:
    path = folder / "trace.dat"
    path.write_text(text)
    return load_trace(path, parse_columns(columns))


def rows(trace: Trace) -> list[tuple[float, int, int]]:
    return list(zip(trace.arrivals_ms, trace.input_tokens, trace.output_tokens, strict=True))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"ts": 1.5, "prompt_tokens": None, "completion_tokens": None}, "without token counts"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": None}, "without token counts"),
        ({"ts": 1.5, "prompt_tokens": 5}, "without token counts"),
        ({"ts": 1.5, "prompt_tokens": 0, "completion_tokens": 0}, "with 0 tokens (failed calls)"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": 0, "status_code": 500},
         "of failed calls"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": 3, "status": "error"},
         "of failed calls"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": 3, "status": "503 Busy"},
         "of failed calls"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": 3, "success": False},
         "of failed calls"),
        ({"ts": 1.5, "prompt_tokens": 5, "completion_tokens": 3, "error": "timed out"},
         "of failed calls"),
        ({"ts": None, "prompt_tokens": 5, "completion_tokens": 3}, "without a time"),
    ],
)  # fmt: skip
def test_a_failed_call_is_left_out_and_counted(
    row: dict[str, object], said: str, tmp_path: Path
) -> None:
    fine = {"status": 200, "success": True, "error": None}
    good = [{"ts": ts, "prompt_tokens": 9, "completion_tokens": 4, **fine} for ts in (1, 2)]
    text = "".join(json.dumps(one) + "\n" for one in (good[0], row, row, good[1]))
    trace = read(tmp_path, text, "time=ts:s")
    assert rows(trace) == [(1000.0, 9, 4), (2000.0, 9, 4)]
    assert trace.clock.endswith(f"; rows left out: 2 {said}")


@pytest.mark.parametrize("empty", ["", "NULL", "NaN", "N/A", "-", "\\N", "None"])
def test_an_empty_cell_of_a_csv_is_left_out_too(empty: str, tmp_path: Path) -> None:
    cells = f"1,9,4\n2,{empty},{empty}\n3,0,0\n4,9,0\n"
    trace = read(tmp_path, f"time,input_tokens,output_tokens\n{cells}")
    assert rows(trace) == [(1000.0, 9, 4), (4000.0, 9, 0)]
    assert "1 without token counts, 1 with 0 tokens" in trace.clock


def test_a_trace_of_failed_calls_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no requests after the header; rows left out: 1 with 0"):
        read(tmp_path, "time,input_tokens,output_tokens\n3,0,0\n")


@pytest.mark.parametrize(("text", "seconds"), [(NGINX, (0.0, 3.0)), (ENVOY, (0.0, 3.0))])
def test_an_access_log_gives_arrivals_with_the_declared_tokens(
    text: str, seconds: tuple[float, ...], tmp_path: Path
) -> None:
    trace = read(tmp_path, text, "input=900,output=150")
    assert rows(trace) == [(1000.0 * at_s, 900, 150) for at_s in seconds]
    assert "1 of other requests" in trace.clock and "1 of failed calls" in trace.clock


def test_an_access_log_of_a_load_balancer_is_read(tmp_path: Path) -> None:
    line = (
        "https 2026-11-20T10:15:3{}.0Z app/lb/5 10.0.0.1:2817 10.0.0.2:8000 0.0 0.5 0.0 {} 200 34 "
        '366 "POST https://x:443/v1/{} HTTP/1.1" "curl" - - arn "Root=1"\n'
    )
    calls = [(0, 200, "completions"), (1, "-", "completions"), (2, 200, "files"),
             (3, 200, "messages")]  # fmt: skip
    trace = read(tmp_path, "".join(line.format(*one) for one in calls), "input=9,output=4")
    assert [at for at, *_ in rows(trace)] == [0.0, 3000.0]


@pytest.mark.parametrize(
    "row",
    [
        {"request": "GET /health HTTP/1.1"},
        {"request": {"method": "GET", "uri": "/health"}},
        {"http.request.method": "GET", "url.path": "/health"},
    ],
)
def test_a_json_log_of_any_proxy_is_filtered(row: dict[str, object], tmp_path: Path) -> None:
    asked = json.loads(json.dumps(row).replace("GET", "POST").replace("health", "v1/responses"))
    lines = [{"ts": n, **one} for n, one in enumerate((asked, row, asked), 1767607200)]
    text = "".join(json.dumps(one) + "\n" for one in lines)
    assert [at for at, *_ in rows(read(tmp_path, text, "input=9,output=4"))] == [0.0, 2000.0]


def test_an_access_log_in_json_is_filtered_too(tmp_path: Path) -> None:
    lines = [
        {"time_iso8601": f"2026-11-20T10:15:3{n}Z", "request_method": method, "request_uri": uri,
         "status": "200"}
        for n, (method, uri) in enumerate([("POST", "/v1/chat/completions?x=1"), ("GET", "/"),
                                           ("POST", "/login"), ("POST", "/v1/responses")])
    ]  # fmt: skip
    text = "".join(json.dumps(one) + "\n" for one in lines)
    assert [at for at, *_ in rows(read(tmp_path, text, "input=9,output=4"))] == [0.0, 3000.0]


@pytest.mark.parametrize("text", [NGINX, ENVOY, '{"time": 1, "prompt": 3}\n', "time,prompt\n1,2\n"])
def test_a_trace_without_tokens_is_refused_with_the_way_out(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--columns input=COLUMN of .*, or a number"):
        read(tmp_path, text)


def test_a_usage_export_is_spread_over_its_buckets(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps(USAGE))
    assert trace.form == "openai-usage" and trace.models == ("gpt-4o",) * 5
    first = trace.arrivals_ms[0]
    assert [at - first for at in trace.arrivals_ms] == [12_000.0 * n for n in range(5)]
    assert sum(trace.input_tokens) == 1001 and set(trace.input_tokens) == {200, 201}
    assert trace.sessions.tolist() == []
    csv = "start_time,end_time,num_model_requests,input_tokens,output_tokens\n{},{},2,10,4\n"
    assert rows(read(tmp_path, csv.format(1767607200, 1767607260))) == [
        (0.0, 5, 2), (30_000.0, 5, 2)
    ]  # fmt: skip
    dated = csv.format("2026-01-05T10:00:00Z", "2026-01-05T10:01:00Z")
    assert rows(read(tmp_path, dated)) == [(0.0, 5, 2), (30_000.0, 5, 2)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("1767607200,1767607200,2,10,4", "end_time: '1767607200' is not after the start"),
        ("1767607200,1767607260,many,10,4", "num_model_requests: 'many' is not allowed"),
        ("1767607200,1767607260,9000000,10,4", "num_model_requests: '9000000' is not allowed"),
    ],
)
def test_a_broken_bucket_is_refused(cells: str, said: str, tmp_path: Path) -> None:
    head = "start_time,end_time,num_model_requests,input_tokens,output_tokens\n"
    with pytest.raises(UserError, match=said):
        read(tmp_path, head + cells + "\n")
