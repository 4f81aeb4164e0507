"""The fields and the demand of requests on each path."""

from __future__ import annotations

import orjson
import pytest

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.api_paths import (
    API_PATHS,
    CHAT,
    COUNT_TOKENS,
    DETOKENIZE,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
)
from executors.gateway.openai_format import (
    ApiCall,
    engine_body,
    error_body,
    error_events,
    parse_call,
    usage_of,
)

HELLO = [{"role": "user", "content": "a b c"}]


def parsed(path: str, **body: object) -> ApiCall:
    return parse_call(path, orjson.dumps({"model": "m", **body}))


@pytest.mark.parametrize("path", API_PATHS)
@pytest.mark.parametrize(
    "field",
    ["kv_transfer_params", "ec_transfer_params", "vllm_xargs", "priority", "request_id",
     "chat_template", "mm_processor_kwargs", "media_io_kwargs"],
)  # fmt: skip
def test_no_path_accepts_fields_of_operators(path: str, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parsed(path, **{field: {}})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (RESPONSES, "previous_response_id", "resp_1"),
        (RESPONSES, "conversation", "c"),
        (RESPONSES, "background", True),
        (RESPONSES, "tools[0].type", [{"type": "mcp", "server_url": "http://10.0.0.1"}]),
        (RESPONSES, "tools[0].type", [{"type": "web_search_preview"}]),
        (RESPONSES, "input[0].type", [{"type": "item_reference", "id": "msg_1"}]),
        (
            RESPONSES,
            "input[0].content[0].image_url",
            [{"content": [{"type": "input_image", "image_url": "http://10.0.0.1/a"}]}],
        ),
        (RESPONSES, "max_output_tokens", 0),
        (
            MESSAGES,
            "messages[0].content[0].source.type",
            [{"content": [{"source": {"type": "url", "url": "http://10.0.0.1/a"}}]}],
        ),
        (MESSAGES, "tools[0].type", [{"type": "web_search_20250305"}]),
        (MESSAGES, "system[0].x", [{"x": 1}]),
        (RERANK, "documents[0].content[0].x", [{"content": [{"x": 1}]}]),
        (
            SCORE,
            "queries[0].content[0].image_url",
            [{"content": [{"image_url": {"url": "http://10.0.0.1/a"}}]}],
        ),
        (SCORE, "text_1", 7),
        (TOKENIZE, "prompt", ["a"]),
        (DETOKENIZE, "tokens", ["a"]),
    ],
)
def test_a_refusal_names_the_field(path: str, field: str, value: object) -> None:
    with pytest.raises(BadRequest) as refused:
        parsed(path, **{field.split("[")[0].split(".")[0]: value})
    assert refused.value.field == field


def test_null_is_no_value_of_an_unsupported_field() -> None:
    """Clients that write all fields of the Responses API are served."""
    call = parsed(RESPONSES, input="a", previous_response_id=None, conversation=None, prompt=None)
    assert call.prompt_tokens_estimate == 1


def test_a_response_is_never_stored() -> None:
    """A later request could reach another instance, which would not find the response."""
    for stored in ({}, {"store": True}):
        sent = orjson.loads(b"".join(engine_body(parsed(RESPONSES, input="a", **stored))))
        assert sent["store"] is False


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_usage_is_not_requested_where_answers_always_have_it(path: str) -> None:
    body = {"input": "a"} if path == RESPONSES else {"messages": HELLO, "max_tokens": 3}
    sent = orjson.loads(b"".join(engine_body(parsed(path, stream=True, **body))))
    assert "stream_options" not in sent


@pytest.mark.parametrize(
    ("path", "body", "tokens", "output"),
    [
        (RESPONSES, {"instructions": "a b", "input": "c d e", "max_output_tokens": 9}, 5, 9),
        (RESPONSES, {"input": [{"content": [{"type": "input_text", "text": "a b"}]}]}, 2, 0),
        (RESPONSES, {"input": [{"type": "function_call_output", "output": "a b c"}]}, 3, 0),
        (MESSAGES, {"system": "a b", "messages": HELLO, "max_tokens": 4}, 5, 4),
        (RERANK, {"query": "a b", "documents": ["a", "b c", "d"]}, 10, 1),
        (SCORE, {"text_1": "a b", "text_2": ["a", "b"]}, 6, 1),
        (SCORE, {"queries": ["a", "b"], "documents": ["c", "d"]}, 4, 1),
    ],
)
def test_the_estimate_counts_what_the_engine_reads(
    path: str, body: dict[str, object], tokens: int, output: int
) -> None:
    """A query of a rerank is read once per document."""
    call = parsed(path, **body)
    assert (call.prompt_tokens_estimate, call.max_output_tokens) == (tokens, output)
    assert not call.is_single_sequence  # never handed over


def test_a_long_query_with_many_documents_is_estimated_at_once() -> None:
    """The estimate multiplies. It does not read the query once per document."""
    call = parsed(RERANK, query="a " * 500_000, documents=["b"] * 10_000)
    assert call.prompt_tokens_estimate == 500_001 * 10_000 + 10_000


def test_only_work_of_the_gpus_is_demand() -> None:
    idle = {path for path, about in API_PATHS.items() if not about.is_work}
    assert idle == {TOKENIZE, DETOKENIZE, COUNT_TOKENS}


def test_schemas_of_every_api_are_limited() -> None:
    schema = {"type": "string", "pattern": "a" * 600}
    tools = [{"name": "f", "input_schema": {"properties": {"x": schema}}}]
    for path, body in (
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": schema}}}),
        (RESPONSES, {"tools": [{"type": "function", "name": "f", "parameters": schema}]}),
        (MESSAGES, {"tools": tools}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        (TOKENIZE, {"tools": [{"function": {"name": "f", "parameters": schema}}]}),
    ):
        with pytest.raises(BadRequest, match="pattern"):
            parsed(path, **body)


def test_usage_of_each_api() -> None:
    """Cached tokens of the Messages API are part of the prompt."""
    assert usage_of(b'{"usage": {"prompt_tokens": 3, "total_tokens": 3}}') == (3, 0, 0)
    assert usage_of(b'{"usage": {"input_tokens": 3, "output_tokens": 2}}') == (3, 2, 0)
    cached = b'{"usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 40}}'
    assert usage_of(cached) == (43, 2, 40)
    details = b'{"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": %s}}}'
    assert usage_of(details % b"8") == (9, 0, 8)
    for broken in (b"10", b"-1", b"true", b'"8"', b"null"):
        assert usage_of(details % broken) == (9, 0, 0)
    response = b'{"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}}'
    assert usage_of(response) == (9, 0, 4)
    assert usage_of(b'{"usage": {"input_tokens": -3}}') is None
    assert usage_of(b'{"usage": []}') is None


def test_errors_have_the_form_of_their_api() -> None:
    message = orjson.loads(error_body("no", "overloaded", 429, path=MESSAGES))
    assert (message["type"], message["error"]["type"]) == ("error", "overloaded")
    assert list(orjson.loads(error_body("no", "overloaded", 429, path=CHAT))) == ["error"]
    assert error_events("no", "k", 502, CHAT).endswith(b"data: [DONE]\n\n")
    for path in (MESSAGES, RESPONSES):
        event = error_events("no", "k", 502, path)
        assert event.startswith(b'event: error\ndata: {"type":"error"')
        assert b"[DONE]" not in event
