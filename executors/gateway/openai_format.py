"""The OpenAI wire form as far as a gateway must understand it: requests, errors, hand-over bodies.

Owns what is read from and written into request and error bodies. Knows nothing of sockets, routes
or telemetry. What an engine gets is written from what was checked here, never the client's bytes,
so the two cannot be read differently.
"""

from __future__ import annotations

import gc
import zlib
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from executors.gateway.allowed_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    BadRequest,
    Check,
    check,
)
from executors.gateway.media_content import check_urls, media_of
from executors.gateway.structured import check_structured
from executors.gateway.wire.body_blocks import Blocks

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
DONE = b"data: [DONE]\n\n"
FIELDS: Mapping[str, Mapping[str, Check]] = {
    COMPLETIONS: COMPLETION_FIELDS,
    CHAT: CHAT_FIELDS,
    EMBEDDINGS: EMBEDDING_FIELDS,
}
# A million-token prompt as token ids has a million commas; more than that is an attack on the
# parser, whose objects take up to 60 times the room of their text. Both bounds are counted before
# anything is parsed, inside of strings too, where real text stays far below them.
MOST_VALUES = 1_100_000
MOST_CONTAINERS = 100_000
MOST_STRINGS = 150_000
_SMALL = 64 * 1024
_MEDIUM = 512 * 1024
_EASY = 10_000
_PREFIX_CHARS = 512
_TEXT_CHARS, _TEXT_PARTS = 16_000, 100
# Differs between the two halves of a prefill-decode hand-over; all else is written once.
_VARYING = ("stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens")


@dataclass(slots=True)
class Call:
    """One request as received and checked.

    core: its body as engines get it, without `model` and `varying`, an open JSON object; emptied
    once an answer has begun, because nothing is sent again from then on. single: one prompt,
    one sequence; only such a request can be handed over between instances, because one
    `kv_transfer_params` describes one prompt's KV. usage_wanted: the client asked for a usage
    chunk, so it must see it. tokens_guess: of its prompt, before anyone has counted them.
    output_most: tokens it may make at most, 0 where it does not say. prefix: the same for prompts
    that begin alike. media: see `gateway.media`. text: the end of its prompt, where somebody has
    to look at it.
    """

    path: str
    model: str
    core: Blocks
    varying: dict[str, Any]
    stream: bool
    single: bool
    usage_wanted: bool
    tokens_guess: int
    output_most: int = 0
    prefix: int = 0
    media: tuple[str, ...] = ()
    text: str = ""


def parse_call(
    path: str,
    raw: bytes,
    names: Mapping[str, str] | None = None,
    scored: Container[str] = (),
    domains: Collection[str] = (),
) -> Call:
    """The request in `raw`; BadRequest if it is not JSON or asks for what it may not.

    names: other names of models, and the names engines know. scored: names that stand for several
    models; of these the prompt's text is kept. domains: from which engines may fetch media.
    """
    body = _json(raw)
    model = body.get("model")
    if type(model) is not str or not model:
        raise BadRequest("model: a non-empty string is required", "model")
    check(FIELDS[path], body)
    check_structured(body)
    check_urls(body, domains)
    if names and model in names:
        model = names[model]
    del body["model"]
    prompt = body.get("messages" if path == CHAT else "input" if path == EMBEDDINGS else "prompt")
    count = _prompts(prompt) if path != CHAT else 1
    stream = body.get("stream") is True
    wanted = stream and (body.get("stream_options") or {}).get("include_usage") is True
    single = count == 1 and (body.get("n") or 1) == 1 and body.get("use_beam_search") is not True
    varying = {name: body.pop(name) for name in _VARYING if name in body}
    most = varying.get("max_completion_tokens") or varying.get("max_tokens") or 0
    return Call(
        path,
        model,
        (orjson.dumps(body)[:-1],),
        varying,
        stream,
        single,
        wanted,
        _tokens_guess(prompt),
        1 if path == EMBEDDINGS else min(most, 1_000_000),
        zlib.crc32(repr(_beginning(prompt)).encode()),
        media_of(body) if path == CHAT else (),
        _text(prompt) if model in scored else "",
    )


def is_heavy(raw: Blocks) -> bool:
    """Whether parsing `raw` would hold up an event loop for more than about a millisecond."""
    size = sum(map(len, raw))
    if size <= _SMALL:
        return False
    return size > _MEDIUM or sum(map(_marks, raw)) > _EASY


def _marks(block: bytes) -> int:
    return block.count(b'"') + block.count(b",") + block.count(b"[") + block.count(b"{")


def _json(raw: bytes) -> dict[str, Any]:
    if len(raw) > _SMALL:
        containers = raw.count(b"[") + raw.count(b"{")
        strings = raw.count(b'"') // 2
        if containers > MOST_CONTAINERS or strings > MOST_STRINGS:
            raise BadRequest(
                f"the body holds more than {MOST_CONTAINERS} objects and arrays, "
                f"or {MOST_STRINGS} strings"
            )
        if raw.count(b",") + containers > MOST_VALUES:
            raise BadRequest(f"the body holds more than {MOST_VALUES} values")
    collecting = gc.isenabled()
    gc.disable()  # a collection amid 100,000 new objects costs more than the parsing
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


def engine_body(call: Call, **extra: Any) -> Blocks:
    """What the answering instance gets: usage is always asked for. extra: fields of ours beside,
    such as the KV to take over."""
    varying = call.varying
    if call.stream and not call.usage_wanted:
        # For our own counting. Without a usage chunk, continuous usage means nothing; with the one
        # we add, it would put usage into every chunk of a client that gets none today.
        options = {**(varying.get("stream_options") or {}), "include_usage": True}
        options.pop("continuous_usage_stats", None)
        varying = {**varying, "stream_options": options}
    return with_fields(call, {**varying, **extra})


def prefill_body(call: Call) -> Blocks:
    """What the prefill instance gets: the same prompt, one token, its KV kept for a decoder."""
    most = "max_completion_tokens" if "max_completion_tokens" in call.varying else "max_tokens"
    return with_fields(call, {"stream": False, most: 1, "kv_transfer_params": _FOR_A_DECODER})


_FOR_A_DECODER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def with_fields(call: Call, fields: Mapping[str, Any]) -> Blocks:
    """A whole body from what never varies, the name of the model, and `fields`."""
    *core, last = call.core
    comma = b"," if core or len(last) > 1 else b""
    return (*core, last + comma + orjson.dumps({"model": call.model, **fields})[1:])


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


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """An OpenAI error object."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return orjson.dumps({"error": error})


def error_events(message: str, kind: str, status: int) -> bytes:
    """How a stream that began ends visibly: an error event, then the end."""
    return b"data: " + error_body(message, kind, status) + b"\n\n" + DONE


def _prompts(prompt: object) -> int:
    """How many prompts a checked `prompt` or `input` holds."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _tokens_guess(prompt: object) -> int:
    """Tokens in a prompt: one per word, but at least one per four characters."""
    if isinstance(prompt, str):
        return max(1, prompt.count(" ") + 1, len(prompt) // 4)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list):
        return sum(_tokens_guess(item) for item in prompt)
    if isinstance(prompt, dict):  # a chat message, or one part of its content
        return _tokens_guess(prompt.get("content", prompt.get("text", "")))
    return 0


def _text(prompt: object) -> str:
    """The end of a prompt: what is asked stands there, after instructions and documents."""
    return "\n".join(_texts(prompt))[-_TEXT_CHARS:]


def _texts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        for item in prompt[-_TEXT_PARTS:]:
            yield from _texts(item)
    elif isinstance(prompt, dict):
        yield from _texts(prompt.get("content", prompt.get("text", "")))


def _beginning(prompt: object) -> object:
    """What prompts with a common beginning share: their first characters or tokens."""
    if isinstance(prompt, list):
        if prompt and isinstance(prompt[0], int):
            return tuple(prompt[:64])
        return _beginning(prompt[0]) if prompt else ""
    if isinstance(prompt, dict):
        return _beginning(prompt.get("content", prompt.get("text", "")))
    return prompt[:_PREFIX_CHARS] if isinstance(prompt, str) else ""
