"""The request fields of Anthropic's Messages API (`/v1/messages`) that a client may set.

Images must be base64, because engines would fetch URLs. Tools may only be functions of the client.
Fields as of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from executors.gateway.allowed_fields import (
    Check,
    any_json,
    array_of,
    boolean,
    by_type,
    integer,
    map_of,
    number,
    object_with,
    scalar,
    stop_strings,
    string,
    word,
)

_SOURCE = object_with({"type": word("base64"), "media_type": string, "data": string})
_CACHE = object_with({"type": string, "ttl": string})
_RESULT = object_with(
    {"type": word("text", "image"), "text": string, "source": _SOURCE, "cache_control": _CACHE}
)
_BLOCK = object_with(
    {
        "type": word("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"),
        "text": string,
        "source": _SOURCE,
        "id": string,
        "name": string,
        "input": any_json,
        "tool_use_id": string,
        "content": by_type(str, string, array_of(_RESULT)),
        "is_error": boolean,
        "thinking": string,
        "signature": string,
        "data": string,
        "cache_control": _CACHE,
        "citations": array_of(any_json),  # of earlier answers
    }
)
_CONTENT = by_type(str, string, array_of(_BLOCK))
_TOOL = object_with(
    {
        "type": word("custom"),
        "name": string,
        "description": string,
        "input_schema": any_json,
        "strict": boolean,
        "cache_control": _CACHE,
    }
)
_COUNTED: Mapping[str, Check] = {
    "model": string,
    "messages": array_of(object_with({"role": string, "content": _CONTENT})),
    "system": _CONTENT,
    "tools": array_of(_TOOL),
    "tool_choice": object_with(
        {"type": string, "name": string, "disable_parallel_tool_use": boolean}
    ),
    "thinking": object_with({"type": string, "budget_tokens": integer(1), "display": string}),
    "output_config": object_with(
        {"effort": string, "format": object_with({"type": string, "schema": any_json})}
    ),
    "chat_template_kwargs": map_of(scalar),
}
COUNT_TOKENS_FIELDS: Mapping[str, Check] = _COUNTED
MESSAGES_FIELDS: Mapping[str, Check] = {
    **_COUNTED,
    "max_tokens": integer(1),
    "stop_sequences": stop_strings,
    "stream": boolean,
    "temperature": number,
    "top_k": integer(-1),
    "top_p": number,
    "cache_salt": string,
    # Accepted because official clients send these fields, but ignored.
    "metadata": map_of(string),
    "service_tier": string,
}
