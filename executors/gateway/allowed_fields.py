"""Which fields a client may set, at every depth: what is not listed here reaches no engine.

Owns the lists and their types. A wrong type deep in a request has killed engines (the core trusts
what the API server lets through), and some fields are an operator's alone: `kv_transfer_params`,
`ec_transfer_params` and `vllm_xargs` name hosts and reach the engine core, `chat_template` is a
program, `priority` jumps the queue. Values within their type are the engine's to judge.
Fields as of vLLM 0.32 and the OpenAI reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 64  # levels of a JSON schema; orjson writes 254
MOST_SEQUENCES = 128  # per prompt, as OpenAI has it
_MOST_STOPS = 64
_INT64 = 2**63


class BadRequest(ValueError):
    """The client's body is not a request we pass on; the message says why. field: its path."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


Check = Callable[[str, Any], None]


def check(allowed: Mapping[str, Check], body: Mapping[str, Any], path: str = "") -> None:
    """BadRequest unless all fields of `body` are in `allowed`, of their type; null is "not set"."""
    for name, value in body.items():
        known = allowed.get(name)
        where = f"{path}.{name[:80]}" if path else name[:80]
        if known is None:
            raise BadRequest(f"{where}: this field is not accepted", where)
        if value is not None:
            known(where, value)


def _wrong(path: str, wanted: str) -> BadRequest:
    return BadRequest(f"{path}: {wanted} is required", path)


def flag(path: str, value: Any) -> None:
    if value is not True and value is not False:
        raise _wrong(path, "true or false")


def number(path: str, value: Any) -> None:
    if type(value) is not float and type(value) is not int:
        raise _wrong(path, "a number")


def text(path: str, value: Any) -> None:
    if type(value) is not str:
        raise _wrong(path, "a string")


def texts(path: str, value: Any) -> None:
    if type(value) is not list or not all(type(item) is str for item in value):
        raise _wrong(path, "an array of strings")


def wholes(path: str, value: Any) -> None:
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise _wrong(path, "an array of whole numbers")


def whole(low: int, high: int = _INT64 - 1) -> Check:
    def look(path: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            top = "" if high == _INT64 - 1 else f" to {high}"
            raise _wrong(path, f"a whole number from {low}{top}")

    return look


def fields(allowed: Mapping[str, Check]) -> Check:
    def look(path: str, value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(path, "an object")
        check(allowed, value, path)

    return look


def many(item: Check) -> Check:
    def look(path: str, value: Any) -> None:
        if type(value) is not list:
            raise _wrong(path, "an array")
        for index, entry in enumerate(value):
            item(f"{path}[{index}]", entry)

    return look


def either(kind: type, first: Check, other: Check) -> Check:
    def look(path: str, value: Any) -> None:
        (first if type(value) is kind else other)(path, value)

    return look


def values(item: Check) -> Check:
    """An object with any keys."""

    def look(path: str, value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(path, "an object")
        for key, entry in value.items():
            if entry is not None:
                item(f"{path}.{key[:80]}", entry)

    return look


def scalar(path: str, value: Any) -> None:
    if type(value) not in (str, int, float, bool):
        raise _wrong(path, "a string, a number, true or false")


def schema(path: str, value: Any) -> None:
    """Any JSON, not too deep."""
    level = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below += item.values()
            elif type(item) is list:
                below += item
        level = below
        if not level:
            return
    raise BadRequest(f"{path}: nested more than {DEEPEST} levels deep", path)


def stops(path: str, value: Any) -> None:
    either(str, text, texts)(path, value)
    if len(value) > _MOST_STOPS and type(value) is list:
        raise _wrong(path, f"at most {_MOST_STOPS} strings")


def media(path: str, value: Any) -> None:
    if type(value) is not str or not value.startswith(("data:", "https://", "http://")):
        raise _wrong(path, "a data:, https: or http: URL")


def prompts(path: str, value: Any) -> None:
    """A text, an array of texts, token ids, or an array of them."""
    if type(value) is str:
        return
    if type(value) is not list or not value:
        raise _wrong(path, "a string or a non-empty array")
    kinds = set(map(type, value))
    if kinds == {list}:
        if not set().union(*(map(type, item) for item in value)) <= {int}:
            raise _wrong(path, "token ids as whole numbers")
    elif kinds != {str} and kinds != {int}:
        raise _wrong(path, "strings, token ids, or arrays of token ids, not mixed")


_URL = either(str, media, fields({"url": media, "detail": text, "uuid": text}))
_PART = fields(
    {
        "type": text,
        "text": text,
        "refusal": text,
        "image_url": _URL,
        "video_url": _URL,
        "audio_url": _URL,
        "input_audio": fields({"data": text, "format": text}),
        "uuid": text,
    }
)
_CONTENT = either(str, text, many(either(str, text, _PART)))
_TOOL_CALL = fields(
    {
        "id": text,
        "type": text,
        "index": whole(0),
        "function": fields({"name": text, "arguments": either(str, text, schema)}),
    }
)
_MESSAGE = fields(
    {
        "role": text,
        "content": _CONTENT,
        "name": text,
        "refusal": text,
        "reasoning": text,
        "reasoning_content": text,
        "tool_calls": many(_TOOL_CALL),
        "tool_call_id": text,
        # What clients send back of our own answers.
        "annotations": many(schema),
        "audio": schema,
    }
)
_TOOL = fields(
    {
        "type": text,
        "function": fields(
            {"name": text, "description": text, "parameters": schema, "strict": flag}
        ),
    }
)
_RESPONSE_FORMAT = fields(
    {
        "type": text,
        "json_schema": fields(
            {"name": text, "description": text, "schema": schema, "strict": flag}
        ),
        "structures": many(fields({"begin": text, "schema": schema, "end": text})),
        "triggers": texts,
        "format": schema,
    }
)
_STRUCTURED = fields(
    {
        "json": schema,
        "regex": text,
        "choice": texts,
        "grammar": text,
        "json_object": flag,
        "disable_any_whitespace": flag,
        "disable_additional_properties": flag,
        "whitespace_pattern": text,
        "structural_tag": text,
    }
)
_COMMON: dict[str, Check] = {
    "model": text,
    "frequency_penalty": number,
    "presence_penalty": number,
    "repetition_penalty": number,
    "length_penalty": number,
    "temperature": number,
    "top_p": number,
    "top_k": whole(-1),
    "min_p": number,
    "seed": whole(-_INT64),
    "n": whole(1, MOST_SEQUENCES),
    "use_beam_search": flag,
    "max_tokens": whole(0),
    "min_tokens": whole(0),
    "stop": stops,
    "stop_token_ids": wholes,
    "allowed_token_ids": wholes,
    "bad_words": texts,
    "logit_bias": values(number),
    "include_stop_str_in_output": flag,
    "ignore_eos": flag,
    "skip_special_tokens": flag,
    "spaces_between_special_tokens": flag,
    "add_special_tokens": flag,
    "truncate_prompt_tokens": whole(-1),
    "prompt_logprobs": whole(-1),
    "stream": flag,
    "stream_options": fields(
        {"include_usage": flag, "continuous_usage_stats": flag, "include_obfuscation": flag}
    ),
    "stream_interval": whole(1),
    "response_format": _RESPONSE_FORMAT,
    "structured_outputs": _STRUCTURED,
    "return_tokens_as_token_ids": flag,
    "return_token_ids": flag,
    "thinking_token_budget": whole(-1),
    "cache_salt": text,
    # Read by nobody here; official clients send them.
    "user": text,
    "metadata": values(text),
    "store": flag,
    "service_tier": text,
    "safety_identifier": text,
    "prompt_cache_key": text,
}
COMPLETION_FIELDS: Mapping[str, Check] = {
    **_COMMON,
    "prompt": prompts,
    "suffix": text,
    "echo": flag,
    "logprobs": whole(-1),
}
CHAT_FIELDS: Mapping[str, Check] = {
    **_COMMON,
    "messages": many(_MESSAGE),
    "max_completion_tokens": whole(0),
    "logprobs": flag,
    "top_logprobs": whole(-1),
    "tools": many(_TOOL),
    "tool_choice": either(str, text, fields({"type": text, "function": fields({"name": text})})),
    "parallel_tool_calls": flag,
    "reasoning_effort": text,
    "include_reasoning": flag,
    "modalities": texts,
    "echo": flag,
    "add_generation_prompt": flag,
    "continue_final_message": flag,
    "documents": many(values(text)),
    "chat_template_kwargs": values(scalar),
}
EMBEDDING_FIELDS: Mapping[str, Check] = {
    "model": text,
    "input": prompts,
    "encoding_format": text,
    "dimensions": whole(1),
    "user": text,
    "truncate_prompt_tokens": whole(-1),
    "add_special_tokens": flag,
}
