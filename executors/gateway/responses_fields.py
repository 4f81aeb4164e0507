"""The request fields of OpenAI's Responses API (`/v1/responses`) that a client may set.

The gateway stores no conversation, so each request must contain its whole input. Tools may only be
functions, because other tools name servers that the engine would call. Fields as of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executors.gateway.allowed_fields import (
    STRUCTURED,
    BadRequest,
    Check,
    any_json,
    array_of,
    boolean,
    by_type,
    integer,
    integers,
    map_of,
    media_url,
    number,
    object_with,
    refused,
    scalar,
    stop_strings,
    string,
    strings,
    word,
)

_NOT_STORED = "the gateway stores no responses; send the whole input"


def _false(path: str, value: Any) -> None:
    if value is not False:
        raise BadRequest(f"{path}: only false is accepted", path)


_PART = object_with(
    {
        "type": word("input_text", "output_text", "refusal", "input_image", "reasoning_text"),
        "text": string,
        "refusal": string,
        "image_url": media_url,
        "detail": string,
        # Fields of earlier answers, which clients send again in the next request.
        "annotations": array_of(any_json),
        "logprobs": array_of(any_json),
    }
)
_ITEM = object_with(
    {
        "type": word("message", "function_call", "function_call_output", "reasoning"),
        "role": string,
        "content": by_type(str, string, array_of(_PART)),
        "id": string,
        "status": string,
        "phase": string,
        "call_id": string,
        "name": string,
        "arguments": string,
        "output": by_type(str, string, array_of(_PART)),
        "summary": array_of(object_with({"type": string, "text": string})),
        "encrypted_content": string,
    }
)
_TOOL = object_with(
    {
        "type": word("function"),
        "name": string,
        "description": string,
        "parameters": any_json,
        "strict": boolean,
    }
)
_FORMAT = object_with(
    {
        "type": string,
        "name": string,
        "description": string,
        "schema": any_json,
        "strict": boolean,
    }
)
RESPONSES_FIELDS: Mapping[str, Check] = {
    "model": string,
    "input": by_type(str, string, array_of(_ITEM)),
    "instructions": string,
    "max_output_tokens": integer(1),
    "max_tool_calls": integer(0),
    "tools": array_of(_TOOL),
    "tool_choice": by_type(str, string, object_with({"type": word("function"), "name": string})),
    "parallel_tool_calls": boolean,
    "text": object_with({"format": _FORMAT, "verbosity": string}),
    "reasoning": object_with({"effort": string, "summary": string, "generate_summary": string}),
    "include_reasoning": boolean,
    "include": strings,
    "stream": boolean,
    "stream_options": object_with({"include_obfuscation": boolean}),
    "temperature": number,
    "top_p": number,
    "top_k": integer(-1),
    "min_p": number,
    "top_logprobs": integer(0),
    "logit_bias": map_of(number),
    "presence_penalty": number,
    "frequency_penalty": number,
    "repetition_penalty": number,
    "seed": integer(-(2**63)),
    "stop": stop_strings,
    "stop_token_ids": integers,
    "ignore_eos": boolean,
    "skip_special_tokens": boolean,
    "include_stop_str_in_output": boolean,
    "structured_outputs": STRUCTURED,
    "truncation": word("auto", "disabled"),
    "cache_salt": string,
    "chat_template_kwargs": map_of(scalar),
    "background": _false,
    "store": boolean,
    "previous_response_id": refused(_NOT_STORED),
    "conversation": refused(_NOT_STORED),
    "prompt": refused("the gateway stores no prompt templates"),
    # Accepted because official clients send these fields, but ignored.
    "user": string,
    "metadata": map_of(string),
    "service_tier": string,
    "safety_identifier": string,
    "prompt_cache_key": string,
    "prompt_cache_retention": string,
}
