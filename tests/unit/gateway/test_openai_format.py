"""Request bodies that the gateway accepts, and the bodies that it writes for engines."""

from __future__ import annotations

import re
import time

import orjson
import pytest

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.api_paths import CHAT, COMPLETIONS, EMBEDDINGS
from executors.gateway.openai_format import (
    engine_body,
    is_heavy,
    kv_transfer_params_of,
    parse_call,
    prefill_body,
    usage_of,
)


def call(path: str = COMPLETIONS, **body: object) -> bytes:
    return orjson.dumps({"model": "chat", **body})


def test_an_engine_body_equals_the_client_body() -> None:
    """The engine body is written from the checked values."""
    body = {"model": "chat", "stream": True, "stream_options": {"include_usage": True}, "n": 1}
    assert orjson.loads(b"".join(engine_body(parse_call(COMPLETIONS, orjson.dumps(body))))) == body
    plain = {"model": "chat", "prompt": "a", "max_tokens": 7}
    assert (
        orjson.loads(b"".join(engine_body(parse_call(COMPLETIONS, orjson.dumps(plain))))) == plain
    )


def test_usage_is_requested_and_other_options_stay() -> None:
    raw = call(stream=True, stream_options={"include_obfuscation": False}, temperature=0.5)
    sent = orjson.loads(b"".join(engine_body(parse_call(COMPLETIONS, raw))))
    assert sent["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert sent["temperature"] == 0.5


def test_continuous_usage_alone_adds_no_usage_to_chunks() -> None:
    """Engines ignore continuous usage without include_usage, which the gateway adds for its own
    use."""
    raw = call(stream=True, stream_options={"continuous_usage_stats": True})
    sent = orjson.loads(b"".join(engine_body(parse_call(COMPLETIONS, raw))))
    assert sent["stream_options"] == {"include_usage": True}
    both = {"continuous_usage_stats": True, "include_usage": True}
    raw = call(stream=True, stream_options=both)
    assert (
        orjson.loads(b"".join(engine_body(parse_call(COMPLETIONS, raw))))["stream_options"] == both
    )


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (COMPLETIONS, "vllm_xargs", {"kv_transfer_params": []}),
        (CHAT, "vllm_xargs", {"kv_transfer_params": []}),
        (COMPLETIONS, "ec_transfer_params", []),
        (CHAT, "ec_transfer_params", {}),
        (COMPLETIONS, "kv_transfer_params", {"remote_host": "h"}),
        (CHAT, "kv_transfer_params", None),
        (COMPLETIONS, "prompt_embeds", "AAAA"),
        (CHAT, "chat_template", "{% for a in range(10**9) %}{% endfor %}"),
        (CHAT, "mm_processor_kwargs", {"a": 1}),
        (COMPLETIONS, "priority", -5),
        (COMPLETIONS, "request_id", "somebody-elses"),
        (COMPLETIONS, "best_of", 3),
        (EMBEDDINGS, "kv_transfer_params", {}),
        (EMBEDDINGS, "messages", []),
        (COMPLETIONS, "stream_options.kv_transfer_params", {"kv_transfer_params": {}}),
        (COMPLETIONS, "logit_bias.7", {"7": []}),
        (COMPLETIONS, "response_format.json_schema.x", {"type": "text", "json_schema": {"x": 1}}),
        (COMPLETIONS, "n", 129),
        (COMPLETIONS, "n", True),
        (COMPLETIONS, "prompt", [1, "a"]),
        (COMPLETIONS, "prompt", [[1, "a"]]),
        (COMPLETIONS, "prompt", [1.5]),
        (COMPLETIONS, "stop", ["a"] * 65),
        (CHAT, "messages[0].kv", [{"role": "user", "kv": 1}]),
        (CHAT, "messages[0].content[0].x", [{"role": "user", "content": [{"x": 1}]}]),
        (CHAT, "messages[0].content[0].image_url.url",
         [{"content": [{"image_url": {"url": "file:///etc/passwd"}}]}]),
        (CHAT, "tools[0].function.code", [{"function": {"code": "x"}}]),
        (CHAT, "chat_template_kwargs.a", {"a": {"b": 1}}),
    ],
)  # fmt: skip
def test_a_field_outside_of_the_allow_list_is_refused_by_name(
    path: str, field: str, value: object
) -> None:
    """Only fields known to be harmless reach an engine, at every depth of the body."""
    top = field.partition(".")[0].partition("[")[0]
    with pytest.raises(BadRequest, match=r"\A" + re.escape(field)) as refused:
        parse_call(path, call(**{top: value}))
    assert refused.value.field is not None
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("body", "single"),
    [
        ({"prompt": "a"}, True),
        ({"prompt": ["a"]}, True),
        ({"prompt": [1, 2]}, True),
        ({"prompt": [[1, 2]], "n": 1}, True),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"prompt": "a", "n": 2}, False),
        ({"prompt": "a", "use_beam_search": True}, False),
    ],
)
def test_only_one_prompt_with_one_answer_is_a_single_sequence(
    body: dict[str, object], single: bool
) -> None:
    assert parse_call(COMPLETIONS, call(**body)).is_single_sequence is single


def test_all_fields_of_official_clients_are_accepted() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"},
             {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ],
        "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "temperature": 0, "top_p": 1.0, "stop": ["a"], "logit_bias": {"5": -100}, "user": "u",
        "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True, "seed": 3,
        "logprobs": True, "top_logprobs": 5, "reasoning_effort": "low", "max_tokens": None,
    }  # fmt: skip
    assert parse_call(CHAT, call(**body)).is_single_sequence


def test_an_alias_becomes_the_name_that_engines_know() -> None:
    made = parse_call(
        COMPLETIONS, b'{"model":"org/Full-Name","prompt":"a"}', {"org/Full-Name": "m"}
    )
    assert made.model == "m"
    assert orjson.loads(b"".join(engine_body(made)))["model"] == "m"


def test_chat_prefill_limits_the_field_that_the_client_used() -> None:
    raw = call(messages=[], max_completion_tokens=50, stream=True, stream_options={}, min_tokens=9)
    sent = orjson.loads(b"".join(prefill_body(parse_call(CHAT, raw))))
    assert sent["max_completion_tokens"] == 1
    assert "max_tokens" not in sent
    assert sent["stream"] is False
    assert not {"stream_options", "min_tokens"} & sent.keys()


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": "a a a"}, 3),
        (COMPLETIONS, {"prompt": "x" * 400}, 100),
        (COMPLETIONS, {"prompt": [5, 6, 7]}, 3),
        (COMPLETIONS, {"prompt": ["a a", "b"]}, 3),
        (COMPLETIONS, {}, 0),
        (CHAT, {"messages": [{"content": "a a"}, {"content": [{"text": "b b b"}]}]}, 5),
        (CHAT, {"messages": [{"content": None}]}, 0),
    ],
)
def test_estimates_of_prompt_tokens(path: str, body: dict[str, object], tokens: int) -> None:
    assert parse_call(path, call(**body)).prompt_tokens_estimate == tokens


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"kv_transfer_params": 3}', b"x"])
def test_an_answer_without_kv_transfer_params_gives_none(raw: bytes) -> None:
    assert kv_transfer_params_of(raw) is None


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"usage":null}', b'{"usage":{"prompt_tokens":-1}}', b'{"usage":{}}']
)
def test_an_answer_without_usage_gives_none(raw: bytes) -> None:
    assert usage_of(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"chat","prompt":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"model":"chat","response_format":{"format":' + b'{"a":' * 900 + b"1" + b"}" * 902,
        b"[" * 100_000,
        b'{"model":"chat","structured_outputs":{"json":' + b"[" * 300 + b"]" * 300 + b"}}",
    ],
)  # fmt: skip
def test_deeply_nested_json_is_a_bad_request(raw: bytes) -> None:
    """An internal error would count as an SLO miss of the model."""
    with pytest.raises(BadRequest):
        parse_call(COMPLETIONS, raw)


@pytest.mark.parametrize(
    "piece", [b"0", b"{}", b"[]", b'"a"'], ids=["numbers", "objects", "arrays", "strings"]
)
def test_a_body_of_millions_of_small_values_is_refused_before_it_is_parsed(piece: bytes) -> None:
    raw = b'{"model":"chat","prompt":[' + b",".join([piece] * 1_200_000) + b"]}"
    began = time.process_time()
    with pytest.raises(BadRequest, match="more than"):
        parse_call(COMPLETIONS, raw)
    assert time.process_time() - began < 0.1  # parsing takes several times as long


def test_a_prompt_of_a_million_token_ids_is_accepted() -> None:
    raw = b'{"model":"chat","prompt":[' + b",".join([b"151643"] * 1_000_000) + b"]}"
    assert is_heavy((raw,))
    assert parse_call(COMPLETIONS, raw).prompt_tokens_estimate == 1_000_000


@pytest.mark.parametrize(
    ("prompt", "heavy"),
    [
        (b'"' + b"word, and " * 6_900 + b'"', False),
        (b"[" + b",".join([b"0"] * 33_000) + b"]", True),
        (b"[" + b",".join([b'"a"'] * 17_000) + b"]", True),
        (b'"' + b"word " * 110_000 + b'"', True),
    ],
)
def test_a_body_that_takes_longer_than_a_millisecond_to_parse_is_heavy(
    prompt: bytes, heavy: bool
) -> None:
    """Long arrays of token ids can be heavy, too."""
    assert is_heavy((b'{"model":"chat","prompt":', prompt, b"}")) is heavy
