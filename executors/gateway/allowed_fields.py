"""The request fields that a client may set, at every depth, and their types.

Other fields are rejected. Engine cores trust their API server, so a wrong type deep in a request
can crash them. Some fields are for operators alone: `kv_transfer_params`, `ec_transfer_params` and
`vllm_xargs` name hosts and reach the engine core, `chat_template` is a program, `priority` skips
the queue. This module checks types; engines check the values. Fields as of vLLM 0.32 and the OpenAI
reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MAX_DEPTH = 64  # levels of a JSON value; orjson serialises up to 254
MAX_SEQUENCES = 128  # per prompt, OpenAI's limit
_MAX_STOPS = 64
_INT64 = 2**63


class BadRequest(ValueError):
    """The request body is not acceptable; the message states the reason. field: path of the
    offending field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


Check = Callable[[str, Any], None]


def check_fields(allowed: Mapping[str, Check], body: Mapping[str, Any], path: str = "") -> None:
    """Raise BadRequest unless all fields of `body` are in `allowed` and have the types given there.
    null means "not set"."""
    for name, value in body.items():
        check = allowed.get(name)
        where = f"{path}.{name[:80]}" if path else name[:80]
        if check is None:
            raise BadRequest(f"{where}: this field is not accepted", where)
        if value is not None:
            check(where, value)


def _wrong_type(path: str, required: str) -> BadRequest:
    return BadRequest(f"{path}: {required} is required", path)


def boolean(path: str, value: Any) -> None:
    if value is not True and value is not False:
        raise _wrong_type(path, "true or false")


def number(path: str, value: Any) -> None:
    if type(value) is not float and type(value) is not int:
        raise _wrong_type(path, "a number")


def string(path: str, value: Any) -> None:
    if type(value) is not str:
        raise _wrong_type(path, "a string")


def strings(path: str, value: Any) -> None:
    if type(value) is not list or not all(type(item) is str for item in value):
        raise _wrong_type(path, "an array of strings")


def integers(path: str, value: Any) -> None:
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise _wrong_type(path, "an array of whole numbers")


def integer(low: int, high: int = _INT64 - 1) -> Check:
    def check_value(path: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            top = "" if high == _INT64 - 1 else f" to {high}"
            raise _wrong_type(path, f"a whole number from {low}{top}")

    return check_value


def object_with(allowed: Mapping[str, Check]) -> Check:
    def check_value(path: str, value: Any) -> None:
        if type(value) is not dict:
            raise _wrong_type(path, "an object")
        check_fields(allowed, value, path)

    return check_value


def array_of(item: Check) -> Check:
    def check_value(path: str, value: Any) -> None:
        if type(value) is not list:
            raise _wrong_type(path, "an array")
        for index, entry in enumerate(value):
            item(f"{path}[{index}]", entry)

    return check_value


def by_type(kind: type, first: Check, other: Check) -> Check:
    def check_value(path: str, value: Any) -> None:
        (first if type(value) is kind else other)(path, value)

    return check_value


def map_of(item: Check) -> Check:
    """A check for an object with any keys and with values that pass `item`."""

    def check_value(path: str, value: Any) -> None:
        if type(value) is not dict:
            raise _wrong_type(path, "an object")
        for key, entry in value.items():
            if entry is not None:
                item(f"{path}.{key[:80]}", entry)

    return check_value


def word(*allowed: str) -> Check:
    """A check for one of the strings `allowed`."""

    def check_value(path: str, value: Any) -> None:
        if value not in allowed:
            raise BadRequest(f"{path}: only {' or '.join(allowed)} is accepted", path)

    return check_value


def refused(reason: str) -> Check:
    """A check that refuses every value except null."""

    def check_value(path: str, _value: Any) -> None:
        raise BadRequest(f"{path}: not accepted: {reason}", path)

    return check_value


def scalar(path: str, value: Any) -> None:
    if type(value) not in (str, int, float, bool):
        raise _wrong_type(path, "a string, a number, true or false")


def any_json(path: str, value: Any) -> None:
    """Any JSON value of at most `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                below += item.values()
            elif type(item) is list:
                below += item
        level = below
        if not level:
            return
    raise BadRequest(f"{path}: nested more than {MAX_DEPTH} levels deep", path)


def stop_strings(path: str, value: Any) -> None:
    by_type(str, string, strings)(path, value)
    if len(value) > _MAX_STOPS and type(value) is list:
        raise _wrong_type(path, f"at most {_MAX_STOPS} strings")


def media_url(path: str, value: Any) -> None:
    if type(value) is not str or not value.startswith(("data:", "https://", "http://")):
        raise _wrong_type(path, "a data:, https: or http: URL")


def prompts(path: str, value: Any) -> None:
    """A text, an array of texts, token ids, or an array of token id arrays."""
    if type(value) is str:
        return
    if type(value) is not list or not value:
        raise _wrong_type(path, "a string or a non-empty array")
    kinds = set(map(type, value))
    if kinds == {list}:
        if not set().union(*(map(type, item) for item in value)) <= {int}:
            raise _wrong_type(path, "token ids as whole numbers")
    elif kinds != {str} and kinds != {int}:
        raise _wrong_type(path, "strings, token ids, or arrays of token ids, not mixed")


_URL = by_type(str, media_url, object_with({"url": media_url, "detail": string, "uuid": string}))
PART = object_with(
    {
        "type": string,
        "text": string,
        "refusal": string,
        "image_url": _URL,
        "video_url": _URL,
        "audio_url": _URL,
        "input_audio": object_with({"data": string, "format": string}),
        "uuid": string,
    }
)
CONTENT = by_type(str, string, array_of(by_type(str, string, PART)))
_TOOL_CALL = object_with(
    {
        "id": string,
        "type": string,
        "index": integer(0),
        "function": object_with({"name": string, "arguments": by_type(str, string, any_json)}),
    }
)
MESSAGE = object_with(
    {
        "role": string,
        "content": CONTENT,
        "name": string,
        "refusal": string,
        "reasoning": string,
        "reasoning_content": string,
        "tool_calls": array_of(_TOOL_CALL),
        "tool_call_id": string,
        # Clients send these fields of earlier answers again in the next request.
        "annotations": array_of(any_json),
        "audio": any_json,
    }
)
TOOL = object_with(
    {
        "type": string,
        "function": object_with(
            {"name": string, "description": string, "parameters": any_json, "strict": boolean}
        ),
    }
)
_RESPONSE_FORMAT = object_with(
    {
        "type": string,
        "json_schema": object_with(
            {"name": string, "description": string, "schema": any_json, "strict": boolean}
        ),
        "structures": array_of(object_with({"begin": string, "schema": any_json, "end": string})),
        "triggers": strings,
        "format": any_json,
    }
)
STRUCTURED = object_with(
    {
        "json": any_json,
        "regex": string,
        "choice": strings,
        "grammar": string,
        "json_object": boolean,
        "disable_any_whitespace": boolean,
        "disable_additional_properties": boolean,
        "whitespace_pattern": string,
        "structural_tag": string,
    }
)
_COMMON: dict[str, Check] = {
    "model": string,
    "frequency_penalty": number,
    "presence_penalty": number,
    "repetition_penalty": number,
    "length_penalty": number,
    "temperature": number,
    "top_p": number,
    "top_k": integer(-1),
    "min_p": number,
    "seed": integer(-_INT64),
    "n": integer(1, MAX_SEQUENCES),
    "use_beam_search": boolean,
    "max_tokens": integer(0),
    "min_tokens": integer(0),
    "stop": stop_strings,
    "stop_token_ids": integers,
    "allowed_token_ids": integers,
    "bad_words": strings,
    "logit_bias": map_of(number),
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "add_special_tokens": boolean,
    "truncate_prompt_tokens": integer(-1),
    "prompt_logprobs": integer(-1),
    "stream": boolean,
    "stream_options": object_with(
        {
            "include_usage": boolean,
            "continuous_usage_stats": boolean,
            "include_obfuscation": boolean,
        }
    ),
    "stream_interval": integer(1),
    "response_format": _RESPONSE_FORMAT,
    "structured_outputs": STRUCTURED,
    "return_tokens_as_token_ids": boolean,
    "return_token_ids": boolean,
    "thinking_token_budget": integer(-1),
    "cache_salt": string,
    # Accepted because official clients send these fields, but ignored.
    "user": string,
    "metadata": map_of(string),
    "store": boolean,
    "service_tier": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
}
COMPLETION_FIELDS: Mapping[str, Check] = {
    **_COMMON,
    "prompt": prompts,
    "suffix": string,
    "echo": boolean,
    "logprobs": integer(-1),
}
CHAT_FIELDS: Mapping[str, Check] = {
    **_COMMON,
    "messages": array_of(MESSAGE),
    "max_completion_tokens": integer(0),
    "logprobs": boolean,
    "top_logprobs": integer(-1),
    "tools": array_of(TOOL),
    "tool_choice": by_type(
        str, string, object_with({"type": string, "function": object_with({"name": string})})
    ),
    "parallel_tool_calls": boolean,
    "reasoning_effort": string,
    "include_reasoning": boolean,
    "modalities": strings,
    "echo": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "documents": array_of(map_of(string)),
    "chat_template_kwargs": map_of(scalar),
}
EMBEDDING_FIELDS: Mapping[str, Check] = {
    "model": string,
    "input": prompts,
    "encoding_format": string,
    "dimensions": integer(1),
    "user": string,
    "truncate_prompt_tokens": integer(-1),
    "add_special_tokens": boolean,
}
