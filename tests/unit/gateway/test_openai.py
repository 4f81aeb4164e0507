"""Bodies that go to engines."""

from __future__ import annotations

import orjson
import pytest

from executors.gateway.openai import (
    CHAT,
    COMPLETIONS,
    BadRequest,
    engine_body,
    handed_over,
    parse_call,
    prefill_body,
    usage_of,
)


def call(path: str = COMPLETIONS, **body: object) -> bytes:
    return orjson.dumps({"model": "chat", **body})


def test_a_body_that_asks_for_usage_goes_on_unchanged() -> None:
    raw = b'{"model": "chat",  "stream":true, "stream_options":{"include_usage":true}, "x": 1.0}'
    assert engine_body(parse_call(COMPLETIONS, raw)) is raw
    plain = b'{"model":"chat",  "prompt":"a"}'
    assert engine_body(parse_call(COMPLETIONS, plain)) is plain


def test_usage_is_asked_for_and_other_options_stay() -> None:
    raw = call(stream=True, stream_options={"continuous_usage_stats": False}, temperature=0.5)
    sent = orjson.loads(engine_body(parse_call(COMPLETIONS, raw)))
    assert sent["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}
    assert sent["temperature"] == 0.5


def test_chat_prefill_bounds_the_field_that_the_client_used() -> None:
    raw = call(messages=[], max_completion_tokens=50, stream=True, stream_options={}, min_tokens=9)
    sent = orjson.loads(prefill_body(parse_call(CHAT, raw)))
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
def test_guesses_of_prompt_tokens(path: str, body: dict[str, object], tokens: int) -> None:
    assert parse_call(path, call(**body)).tokens_guess == tokens


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"kv_transfer_params": 3}', b"x"])
def test_an_answer_without_hand_over_is_none(raw: bytes) -> None:
    assert handed_over(raw) is None


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"usage":null}', b'{"usage":{"prompt_tokens":-1}}', b'{"usage":{}}']
)
def test_no_usage_is_none(raw: bytes) -> None:
    assert usage_of(raw) is None


def test_a_prompt_nested_beyond_sense_is_refused_and_not_our_fault() -> None:
    """JSON allows a thousand levels; no prompt has more than messages, contents and parts."""
    deep = b'{"model":"chat","prompt":' + b"[" * 1000 + b"]" * 1000 + b"}"
    with pytest.raises(BadRequest, match="nested"):
        parse_call(COMPLETIONS, deep)
