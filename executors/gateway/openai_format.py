"""OpenAI's wire format: parse requests, and write bodies for engines and errors for clients.

Bodies for engines are written from the checked values, never copied from the client's bytes.
Gateway and engine therefore cannot read a body differently.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from executors.gateway.allowed_fields import BadRequest, check_fields
from executors.gateway.api_paths import (
    API_PATHS,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Answers,
    answers_of,
)
from executors.gateway.media_content import check_urls, media_of
from executors.gateway.structured_output_limits import check_structured
from executors.gateway.wire.body_blocks import Blocks

DONE = b"data: [DONE]\n\n"
# Parsed objects take up to 60 times the memory of their text, so the number of values is limited to
# that of a prompt of a million token ids. The check runs before parsing, so it counts characters in
# strings too; real text stays far below the limits.
MAX_VALUES = 1_100_000
MAX_CONTAINERS = 100_000
MAX_STRINGS = 150_000
_SMALL_BYTES = 64 * 1024
_MEDIUM_BYTES = 512 * 1024
_EASY_MARKS = 10_000
_PROMPT_END_CHARS, _PROMPT_END_PARTS = 16_000, 100
# Fields that differ between the two requests of a prefill-decode hand-over; all others are equal.
_VARYING_FIELDS = ("stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens")


@dataclass(slots=True)
class ApiCall:
    """One request as received and checked.

    body_core: the body for engines without `model` and `varying_fields`, as an open JSON object;
    emptied when the response begins, because the request cannot be sent again after that.
    is_single_sequence: whether the request has one prompt and one sequence. Only such a request can
    be handed over between instances, because `kv_transfer_params` describes the KV of one prompt.
    usage_requested: whether the client requested a usage chunk. prompt_tokens_estimate: estimate
    from the text, without a tokenizer. max_output_tokens: 0 if the request sets no limit.
    media: see `gateway.media_content`.
    prompt_end: the end of the prompt's text, only for names that stand for several models. adapter:
    the LoRA adapter of `model` that the client asks for, "" = none.
    """

    path: str
    model: str
    body_core: Blocks
    varying_fields: dict[str, Any]
    stream: bool
    is_single_sequence: bool
    usage_requested: bool
    prompt_tokens_estimate: int
    max_output_tokens: int = 0
    media: tuple[str, ...] = ()
    prompt_end: str = ""
    adapter: str = ""

    @property
    def served_name(self) -> str:
        """The name under which engines serve the request."""
        return self.adapter or self.model


def parse_call(
    path: str,
    raw: bytes,
    names: Mapping[str, str] | None = None,
    scored: Container[str] = (),
    domains: Collection[str] = (),
) -> ApiCall:
    """Parse and check the request in `raw`. Raises BadRequest. names: model by alias. scored:
    services that route to several models; only their calls keep `prompt_end`. domains: hosts from
    which engines may fetch media.
    """
    body = _parse_object(raw)
    model = body.get("model")
    if type(model) is not str or not model:
        raise BadRequest("model: a non-empty string is required", "model")
    asked = API_PATHS[path]
    check_fields(asked.fields, body)
    check_structured(body)
    check_urls(body, domains)
    if names and model in names:
        model = names[model]
    del body["model"]
    if path == RESPONSES:
        # later requests could reach another engine, which has no stored response
        body["store"] = False
    prompt = asked.prompt(body)
    count = _prompt_count(prompt) if path in (COMPLETIONS, EMBEDDINGS) else 1
    stream = body.get("stream") is True
    usage_requested = stream and (body.get("stream_options") or {}).get("include_usage") is True
    single = count == 1 and (body.get("n") or 1) == 1 and body.get("use_beam_search") is not True
    limits = (body.get(name) for name in asked.output_limits)
    output_tokens = next(filter(None, limits), asked.output_tokens)
    varying = {name: body.pop(name) for name in _VARYING_FIELDS if name in body}
    return ApiCall(
        path,
        model,
        (orjson.dumps(body)[:-1],),
        varying,
        stream,
        single and asked.hand_over,
        usage_requested,
        _pair_tokens(asked.sides(body)) if asked.sides else _estimate_tokens(prompt),
        min(output_tokens, 1_000_000),
        media_of(body),
        _prompt_end(prompt) if model in scored else "",
    )


def is_heavy(raw: Blocks) -> bool:
    """Whether parsing `raw` would block an event loop for more than about a millisecond."""
    size = sum(map(len, raw))
    if size <= _SMALL_BYTES:
        return False
    return size > _MEDIUM_BYTES or sum(map(_syntax_marks, raw)) > _EASY_MARKS


def _syntax_marks(block: bytes) -> int:
    return block.count(b'"') + block.count(b",") + block.count(b"[") + block.count(b"{")


def _parse_object(raw: bytes) -> dict[str, Any]:
    if len(raw) > _SMALL_BYTES:
        containers = raw.count(b"[") + raw.count(b"{")
        strings = raw.count(b'"') // 2
        if containers > MAX_CONTAINERS or strings > MAX_STRINGS:
            raise BadRequest(
                f"the body holds more than {MAX_CONTAINERS} objects and arrays, "
                f"or {MAX_STRINGS} strings"
            )
        if raw.count(b",") + containers > MAX_VALUES:
            raise BadRequest(f"the body holds more than {MAX_VALUES} values")
    collecting = gc.isenabled()
    gc.disable()  # a collection during parsing would cost more than the parsing
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    finally:
        if collecting:
            gc.enable()
    if type(body) is not dict:
        raise BadRequest("the body must be a JSON object")
    return body


def engine_body(call: ApiCall, **extra: Any) -> Blocks:
    """The body for the instance that answers. It always requests usage. extra: further fields that
    the gateway sets, such as the KV to receive."""
    varying = call.varying_fields
    if call.stream and not call.usage_requested and answers_of(call.path) is Answers.OPENAI:
        # The gateway counts tokens from the usage chunk. Continuous usage would add usage to every
        # chunk, which this client did not request.
        options = {**(varying.get("stream_options") or {}), "include_usage": True}
        options.pop("continuous_usage_stats", None)
        varying = {**varying, "stream_options": options}
    return with_fields(call, {**varying, **extra})


def prefill_body(call: ApiCall) -> Blocks:
    """The body for the prefill instance: the prompt, a limit of one token, and a request to keep
    the KV for a decode instance."""
    max_tokens = (
        "max_completion_tokens" if "max_completion_tokens" in call.varying_fields else "max_tokens"
    )
    return with_fields(
        call, {"stream": False, max_tokens: 1, "kv_transfer_params": _KV_FOR_DECODER}
    )


_KV_FOR_DECODER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def with_fields(call: ApiCall, fields: Mapping[str, Any]) -> Blocks:
    """The whole body for an engine: the core of `call`, the model's name, and `fields`."""
    *core, last = call.body_core
    comma = b"," if core or len(last) > 1 else b""
    return (*core, last + comma + orjson.dumps({"model": call.served_name, **fields})[1:])


def kv_transfer_params_of(raw: bytes) -> dict[str, Any] | None:
    """The kv_transfer_params in the response of a prefill instance; None if the response has
    none."""
    try:
        params = orjson.loads(raw).get("kv_transfer_params")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return params if isinstance(params, dict) else None


class Usage(NamedTuple):
    """Tokens of one answer. cached_tokens: the part of the prompt that came from a prefix cache, 0
    if the engine states none."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


def usage_of(raw: bytes) -> Usage | None:
    """The usage of a response or an event; None without valid usage."""
    try:
        return token_counts(orjson.loads(raw)["usage"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def token_counts(usage: object) -> Usage | None:
    """The tokens in a usage object; None if it has none."""
    if not isinstance(usage, dict):
        return None
    if "prompt_tokens" in usage:
        counts = (usage["prompt_tokens"], usage.get("completion_tokens", 0))
        parts: tuple[object, ...] = ()
        cached = _detail(usage, "prompt_tokens_details")
    else:
        counts = (usage.get("input_tokens"), usage.get("output_tokens", 0))
        # In the Messages API, cached tokens are not part of the input tokens.
        parts = tuple(usage.get(name) or 0 for name in _CACHED)
        cached = _detail(usage, "input_tokens_details") or parts[1]
    if not all(type(count) is int and 0 <= count <= 10**9 for count in (*counts, *parts)):
        return None
    prompt: int = counts[0] + sum(parts)  # type: ignore[arg-type]
    valid = type(cached) is int and 0 <= cached <= prompt
    return Usage(prompt, counts[1], cached if valid else 0)  # type: ignore[arg-type]


def _detail(usage: dict[str, Any], name: str) -> object:
    details = usage.get(name)
    return details.get("cached_tokens") if isinstance(details, dict) else 0


_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")


def error_body(
    message: str, kind: str, status: int, param: str | None = None, path: str = ""
) -> bytes:
    """An error object in OpenAI's format. On paths of the Messages API, the object also has the
    keys of Anthropic's format."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    outer = {"type": "error"} if answers_of(path) is Answers.MESSAGES else {}
    return orjson.dumps({**outer, "error": error})


def error_events(message: str, kind: str, status: int, path: str = "") -> bytes:
    """The end of a stream that failed after the stream began: an error event, and [DONE] if streams
    of `path` end with it."""
    answers = answers_of(path)
    if answers is Answers.OPENAI:
        return b"data: " + error_body(message, kind, status) + b"\n\n" + DONE
    body = error_body(message, kind, status, path=path)
    if answers is Answers.RESPONSES:
        body = orjson.dumps({"type": "error", "code": kind, "message": message, "param": None})
    return b"event: error\ndata: " + body + b"\n\n"


def _prompt_count(prompt: object) -> int:
    """Number of prompts in a checked `prompt` or `input`."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _estimate_tokens(prompt: object) -> int:
    """Estimated tokens of a prompt: one per word, and at least one per four characters."""
    if isinstance(prompt, str):
        return max(1, prompt.count(" ") + 1, len(prompt) // 4)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list):
        return sum(_estimate_tokens(item) for item in prompt)
    if isinstance(prompt, dict):
        return _estimate_tokens(_content_of(prompt))
    return 0


def _pair_tokens(sides: Sequence[Sequence[object]]) -> int:
    """Estimated tokens of all pairs: a side is read again for each text of a longer side."""
    longest = max(map(len, sides), default=0)
    totals = (_estimate_tokens(list(side)) * longest // len(side) for side in sides if side)
    return sum(totals)


def _content_of(part: Mapping[str, object]) -> object:
    """The text of a message or of one part of its content: its first field that holds text."""
    return next((part[name] for name in _TEXT_FIELDS if name in part), "")


_TEXT_FIELDS = ("content", "text", "output", "arguments", "thinking")


def _prompt_end(prompt: object) -> str:
    """The end of the prompt's text, because the question usually comes after instructions and
    documents."""
    return "\n".join(_text_parts(prompt))[-_PROMPT_END_CHARS:]


def _text_parts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        for item in prompt[-_PROMPT_END_PARTS:]:
            yield from _text_parts(item)
    elif isinstance(prompt, dict):
        yield from _text_parts(_content_of(prompt))
