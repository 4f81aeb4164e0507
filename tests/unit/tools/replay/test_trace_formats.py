"""The columns of a trace identify its format, and each format has its time unit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.traces import NO_COLUMNS, load_trace, parse_columns

BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45.5,GPT-4,1087,0,1087,API log\n"
)
BURSTGPT_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.0,101,2.5,ChatGPT,472,18,490,Conversation log\n"
    "45.0,101,4.0,ChatGPT,1087,230,1317,Conversation log\n"
    "50.0,102,1.0,ChatGPT,7,8,15,Conversation log\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.500000+00:00,2162,5\n"
    "2024-05-10 00:00:02+00:00,76,15\n"
)
AZURE_IMAGES = (
    "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    "2024-10-15 00:00:00,2,2162,5\n"
    "2024-10-15 00:00:01.5,0,76,15\n"
)
SGLANG_JSON = (
    '{"timestamp": "2026-01-05T10:00:01", "event": "request.received", "rid": "a", "obj": {}}\n'
    '{"timestamp": "2026-01-05T10:00:04", "event": "request.finished", "rid": "a", "obj": {}, '
    '"out": {"meta_info": {"prompt_tokens": 12, "completion_tokens": 30, "e2e_latency": 3.0}}}\n'
    '{"timestamp": "2026-01-05T10:00:05", "event": "request.finished", "rid": "b", "obj": {}, '
    '"out": {"meta_info": {"prompt_tokens": 5, "completion_tokens": 6, "e2e_latency": 0.5}}}\n'
)
SGLANG_TEXT = (
    "[2026-01-05 10:00:00] The server is fired up and ready to roll!\n"
    "[2026-01-05 10:00:04] Finish: obj=GenerateReqInput(rid='a'), out={'text': 'x', 'meta_info': "
    "{'id': 'a', 'prompt_tokens': 12, 'completion_tokens': 30, 'e2e_latency': 3.0}}\n"
    "[2026-01-05 10:00:05] Finish: obj=GenerateReqInput(rid='b'), out={'meta_info': "
    "{'prompt_tokens': 5, 'completion_tokens': 6, 'e2e_latency': 0.5}}\n"
)
VLLM_TEXT = (
    "INFO 12-31 23:59:59 [logger.py:39] Received request cmpl-a: prompt: 'x', params: "
    "SamplingParams(n=1), prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.\n"
    "INFO 12-31 23:59:59 [logger.py:80] Generated response cmpl-a: output: 'y', "
    "output_token_ids: [4, 5], finish_reason: stop\n"
    "INFO 01-01 00:00:01 [logger.py:39] Received request cmpl-b: prompt: 'x', params: "
    "SamplingParams(n=1), prompt_token_ids: [1], prompt_embeds shape: None.\n"
    "INFO 01-01 00:00:02 [logger.py:80] Generated response cmpl-b (streaming complete): output: "
    "'y', output_token_ids: [4, 5, 6], finish_reason: stop\n"
)
AIBRIX_JSONL = (
    '{"timestamp": 0, "requests": [{"prompt_length": 120, "output_length": 40}]}\n'
    '{"timestamp": 1000, "requests": [{"prompt_length": 220, "output_length": 60}, '
    '{"prompt_length": 20, "output_length": 16}]}\n'
)
BAILIAN = (
    '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61, "input_length": 521, '
    '"output_length": 132, "type": "text", "turn": 1, "hash_ids": [1]}\n'
    '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 3661, "input_length": 700, '
    '"output_length": 12, "type": "text", "turn": 2, "hash_ids": [1, 2]}\n'
)
VLLM_BENCH = json.dumps(
    {
        "backend": "vllm", "completed": 2, "input_lens": [10, 20], "output_lens": [3, 4],
        "ttfts": [0.1, 0.2], "start_times": [5000.25, 5001.75], "errors": ["", ""],
    }
)  # fmt: skip
AIPERF_RECORDS = (
    '{"metadata": {"session_num": 0, "request_start_ns": 1767607200000000000}, "metrics": '
    '{"input_sequence_length": {"value": 550, "unit": "tokens"}, "output_sequence_length": '
    '{"value": 20, "unit": "tokens"}}}\n'
    '{"metadata": {"session_num": 1, "request_start_ns": 1767607201500000000}, "metrics": '
    '{"input_sequence_length": {"value": 51, "unit": "tokens"}, "output_sequence_length": '
    '{"value": 2, "unit": "tokens"}}}\n'
)
OPENAI_LOG = (
    '{"created": 1767607200, "model": "a/b", "usage": {"prompt_tokens": 9, '
    '"completion_tokens": 8, "total_tokens": 17}}\n'
    '{"created": 1767607203, "model": "a/b", "usage": {"prompt_tokens": 7, '
    '"completion_tokens": 6, "total_tokens": 13}}\n'
)
COPILOT = json.dumps(
    {
        "session_id": "s",
        "turns": [
            {"llm_calls": [
                {"timestamp": "2026-06-01T00:00:00Z", "model": "Model A",
                 "tokens": {"prompt": 100, "completion": 10, "cached": 0}},
                {"timestamp": "2026-06-01T00:00:09Z", "model": "Model A",
                 "tokens": {"prompt": 200, "completion": 20, "cached": 90}},
            ]}
        ],
    }
)  # fmt: skip
SERVEGEN = (
    '{"request_id": 0, "timestamp": 0.25, "data": {"input_tokens": 10, "output_tokens": 3}}\n'
    '{"request_id": 1, "timestamp": 1.5, "data": {"input_tokens": 20, "output_tokens": 4}}\n'
)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.dat"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "form", "arrivals_s", "tokens", "clock"),
    [
        (BURSTGPT, "burstgpt", [5.0, 45.5], [(472, 18), (1087, 0)], "timestamp: seconds"),
        (AZURE_2024, "azure", [0.0, 1.5], [(2162, 5), (76, 15)], "timestamp: dates"),
        (AZURE_IMAGES, "azure", [0.0, 1.5], [(2162, 5), (76, 15)], "timestamp: dates"),
        (SGLANG_JSON, "sglang", [0.0, 3.5], [(12, 30), (5, 6)], "timestamp: dates"),
        (SGLANG_TEXT, "sglang", [0.0, 3.5], [(12, 30), (5, 6)], "timestamp: dates"),
        (VLLM_TEXT, "plain", [0.0, 2.0], [(3, 2), (1, 3)], "time: dates"),
        (
            AIBRIX_JSONL,
            "aibrix",
            [0.0, 1.0, 1.0],
            [(120, 40), (220, 60), (20, 16)],
            "timestamp: milliseconds",
        ),
        (BAILIAN, "bailian", [61.0, 3661.0], [(521, 132), (700, 12)], "timestamp: seconds"),
        (
            VLLM_BENCH,
            "vllm-bench",
            [5000.25, 5001.75],
            [(10, 3), (20, 4)],
            "start_times: seconds",
        ),
        (
            AIPERF_RECORDS,
            "columns",
            [0.0, 1.5],
            [(550, 20), (51, 2)],
            "metadata.request_start_ns: nanoseconds since 1970",
        ),
        (OPENAI_LOG, "columns", [0.0, 3.0], [(9, 8), (7, 6)], "created: seconds since 1970"),
        (COPILOT, "columns", [0.0, 9.0], [(100, 10), (200, 20)], "timestamp: dates"),
        (SERVEGEN, "columns", [0.25, 1.5], [(10, 3), (20, 4)], "timestamp: seconds"),
        (
            "ts;prompt_tokens;completion_tokens;user\n1767607200123;472.0;18.0;u\n"
            "1767607201123;1;2;v\n",
            "columns",
            [0.0, 1.0],
            [(472, 18), (1, 2)],
            "ts: milliseconds since 1970",
        ),
        (
            '[{"time": 0.5, "input_tokens": 1, "output_tokens": 2},\n'
            ' {"time": 1, "input_tokens": 3, "output_tokens": 4}]',
            "plain",
            [0.5, 1.0],
            [(1, 2), (3, 4)],
            "time: seconds",
        ),
    ],
)
def test_a_format_is_read_with_its_unit(
    tmp_path: Path,
    text: str,
    form: str,
    arrivals_s: list[float],
    tokens: list[tuple[int, int]],
    clock: str,
) -> None:
    trace = load_trace(write(tmp_path, text))
    assert trace.form == form
    assert [at / 1000.0 for at in trace.arrivals_ms] == pytest.approx(arrivals_s, abs=1e-3)
    assert list(zip(trace.input_tokens, trace.output_tokens, strict=True)) == tokens
    assert trace.clock == clock


def test_turns_wait_for_the_recorded_pause(tmp_path: Path) -> None:
    """In BurstGPT, the pause lasts from the end of an answer (5 s + 2.5 s) to the next turn (45 s).
    bailian records no ends, so a turn comes at its time or after the answer. One turn alone is no
    session.
    """
    trace = load_trace(write(tmp_path, BURSTGPT_SESSIONS))
    assert list(trace.sessions) == [0, 0, -1]
    assert list(trace.delays_ms) == [-1.0, 37_500.0, -1.0]
    trace = load_trace(write(tmp_path, BAILIAN))
    assert list(trace.sessions) == [0, 0]
    assert list(trace.delays_ms) == [-1.0, -1.0]


def test_a_turn_without_a_time_comes_after_an_answer_of_usual_length(tmp_path: Path) -> None:
    """The answer has 20 tokens: the first after 0.5 s, the others 30 ms apart. The delay of 4 s
    follows.
    """
    trace = load_trace(
        write(
            tmp_path,
            '{"session_id": "s", "timestamp": 100, "input_length": 500, "output_length": 20}\n'
            '{"session_id": "s", "delay": 4000, "input_length": 900, "output_length": 30}\n'
            '{"session_id": "t", "timestamp": 200, "input_length": 1, "output_length": 1}\n',
        )
    )
    assert list(trace.arrivals_ms) == [100.0, 200.0, 5200.0]
    assert list(trace.sessions) == [0, -1, 0]
    assert list(trace.delays_ms) == [-1.0, -1.0, 4000.0]


def test_a_second_branch_of_a_chat_does_not_wait_for_the_first(tmp_path: Path) -> None:
    row = (
        '{{"chat_id": {}, "parent_chat_id": {}, "timestamp": {}, "input_length": 5, '
        '"output_length": 6}}\n'
    )
    text = row.format(1, -1, 0) + row.format(2, 1, 5) + row.format(3, 1, 6) + row.format(4, 2, 9)
    assert list(load_trace(write(tmp_path, text)).sessions) == [0, 0, -1, 0]


@pytest.mark.parametrize("step", [1, 40])
def test_times_that_are_plausible_in_two_units_need_an_option(tmp_path: Path, step: int) -> None:
    """Requests are 20 units apart. In milliseconds that is 50 req/s, in seconds one request every
    20 s.
    """
    rows = "".join(f"{20 * i},1,2\n" for i in range(0, 16_000, step))
    path = write(tmp_path, "timestamp,input_tokens,output_tokens\n" + rows)
    if step == 40:  # 800 s apart: one request in 13 minutes is implausible.
        assert load_trace(path).clock == "timestamp: milliseconds"
        return
    with pytest.raises(UserError, match="seconds or milliseconds") as caught:
        load_trace(path)
    assert "--columns time=timestamp:s or --columns time=timestamp:ms" in str(caught.value)
    assert load_trace(path, parse_columns("time=timestamp:s")).duration_s == 20.0 * 15_999
    assert load_trace(path, parse_columns("time=timestamp:ms")).duration_s == 0.02 * 15_999


def test_an_implausible_time_unit_needs_an_option(tmp_path: Path) -> None:
    """The values are in seconds, but the format uses milliseconds. 6,000 req/s would be
    implausible.
    """
    row = '{{"timestamp": {}, "input_length": 5, "output_length": 6}}\n'
    path = write(tmp_path, "".join(row.format(i / 6.0) for i in range(1000)))
    with pytest.raises(UserError, match="--columns time=timestamp:s"):
        load_trace(path)


def test_unknown_columns_can_be_named_by_the_user(tmp_path: Path) -> None:
    path = write(tmp_path, "when,Prompt Toks,gen,who,llm\n3,10,20,x,m\n5,30,40,y,m\n")
    with pytest.raises(UserError, match="begins no trace"):
        load_trace(path)
    given = parse_columns("time=when:s,input=Prompt Toks,output=gen,model=llm")
    trace = load_trace(path, given)
    assert list(trace.arrivals_ms) == [3000.0, 5000.0]
    assert list(trace.input_tokens) == [10, 30]
    assert trace.models == ("m", "m")
    with pytest.raises(UserError, match=r"--columns output=nope: no such column; columns are when"):
        load_trace(path, parse_columns("time=when:s,input=Prompt Toks,output=nope"))


@pytest.mark.parametrize("text", ["time", "size=a", "time=a:h", "input=a:ms", "time=", "time=:ms"])
def test_columns_are_fields_and_names(text: str) -> None:
    with pytest.raises(UserError, match=r"--columns: .* is not allowed; allowed: FIELD=COLUMN"):
        parse_columns(text)
    assert parse_columns(None) == NO_COLUMNS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BURSTGPT + "x,ChatGPT,1,2,3,API log\n", ":4: timestamp: 'x'"),
        (BURSTGPT + "9,,1,2,3,API log\n", ":4: model: is empty"),
        (BURSTGPT + "9,ChatGPT,1.5,2,3,API log\n", ":4: request_tokens: '1.5'"),
        (
            '{"session_id": "s", "delay": 5, "input_length": 1, "output_length": 1}\n',
            ":1: time is missing; expected a time, or a delay after an earlier turn",
        ),
        (
            '{"session_id": "s", "timestamp": 5, "input_length": 1, "output_length": 1}\n'
            '{"session_id": "t", "delay": 5, "input_length": 1, "output_length": 1}\n',
            ":2: time is missing; expected a time, or a delay after an earlier turn",
        ),
        ('{"timestamp": 1, "requests": [7]}\n', ":1: requests: expected a list of objects"),
        (
            '{"timestamp": 1, "requests": [{"prompt_length": 3, "output_length": null}]}\n',
            "the column output_tokens is missing; name it with --columns output=",
        ),
        (SGLANG_JSON.replace('"e2e_latency": 0.5', '"x": 1'), ":3: out.meta_info.e2e_latency is"),
        (VLLM_TEXT.replace("prompt_token_ids", "ids"), "--enable-log-outputs"),
        ("timestamp,input_tokens,output_tokens\n2024-01-01,1,2\n5,1,2\n", ":3: timestamp: '5'"),
        ("timestamp_s,input_tokens,output_tokens\n0,1,2\n99999999,1,2\n", "allowed: 366 days"),
        ('{"a": {"b": [1, 2', "not JSON"),
        ("[1, 2]", "row 1: expected an object"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_trace(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_without_pyarrow_a_parquet_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading is tested in tests/integration/replay/test_parquet.py, with pyarrow."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserError, match=r"a Parquet file, which needs pyarrow: make parquet"
    ) as said:
        load_trace(write(tmp_path, b"PAR1...."))
    assert "\n" not in str(said.value)
