"""The OpenAI wire form as far as a gateway must understand it: requests, errors, hand-over bodies.

Owns what is read from and written into request and error bodies. Knows nothing of sockets, routes
or telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
_DEEPEST = 8  # messages, a message, its contents, a part, its text: five


class BadRequest(ValueError):
    """The client's body is not a request we pass on; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as received. tokens_guess: of its prompt, before anyone has counted them.

    usage_wanted: the client asked for a usage chunk, so it must see it. body is read only.
    """

    path: str
    model: str
    body: dict[str, Any]
    raw: bytes
    stream: bool
    usage_wanted: bool
    tokens_guess: int


def parse_call(path: str, raw: bytes) -> Call:
    """The request in `raw`; BadRequest if it is not JSON, has no model or asks for what is ours."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("model: a non-empty string is required")
    if "kv_transfer_params" in body:
        # It names hosts that engines connect to: only the gateway may set it.
        raise BadRequest("kv_transfer_params: not allowed in a client's request")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise BadRequest("stream: true or false is required")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options: an object is required")
    wanted = stream and options.get("include_usage") is True
    guess = _tokens_guess(body.get("messages") if path == CHAT else body.get("prompt"))
    return Call(path, model, body, raw, stream, wanted, guess)


def engine_body(call: Call, kv_transfer_params: dict[str, Any] | None = None) -> bytes:
    """What the answering instance gets: usage is always asked for, the KV to take over is named."""
    if kv_transfer_params is None and (call.usage_wanted or not call.stream):
        return call.raw
    body = dict(call.body)
    if call.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    if kv_transfer_params is not None:
        body["kv_transfer_params"] = kv_transfer_params
    return orjson.dumps(body)


def prefill_body(call: Call) -> bytes:
    """What the prefill instance gets: the same prompt, one token, its KV kept for a decoder."""
    body = {key: value for key, value in call.body.items() if key not in _NOT_FOR_PREFILL}
    body["stream"] = False
    body["max_completion_tokens" if "max_completion_tokens" in call.body else "max_tokens"] = 1
    body["kv_transfer_params"] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    return orjson.dumps(body)


_NOT_FOR_PREFILL = frozenset(
    {"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens"}
)


def handed_over(raw: bytes) -> dict[str, Any] | None:
    """The kv_transfer_params of a prefill instance's answer, None where it gave none."""
    try:
        params = orjson.loads(raw).get("kv_transfer_params")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return params if isinstance(params, dict) else None


def usage_of(raw: bytes) -> tuple[int, int] | None:
    """(prompt tokens, completion tokens) of an answer or of one event, None where not stated."""
    try:
        usage = orjson.loads(raw)["usage"]
        counts = usage["prompt_tokens"], usage.get("completion_tokens", 0)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    good = all(type(count) is int and 0 <= count <= 10**9 for count in counts)
    return counts if good else None


def error_body(message: str, kind: str, status: int) -> bytes:
    """An OpenAI error object."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return orjson.dumps({"error": error})


def error_events(message: str, kind: str, status: int) -> bytes:
    """How a stream that began ends visibly: an error event, then the end."""
    return b"data: " + error_body(message, kind, status) + b"\n\n" + DONE


def _tokens_guess(prompt: object, depth: int = 0) -> int:
    """Tokens in a prompt: one per word, but at least one per four characters."""
    if depth > _DEEPEST:
        raise BadRequest(f"prompt: nested more than {_DEEPEST} levels deep")
    if isinstance(prompt, str):
        return max(1, prompt.count(" ") + 1, len(prompt) // 4)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list):
        return sum(_tokens_guess(item, depth + 1) for item in prompt)
    if isinstance(prompt, dict):  # a chat message, or one part of its content
        return _tokens_guess(prompt.get("content", prompt.get("text", "")), depth + 1)
    return 0
