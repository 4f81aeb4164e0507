"""Parses the bodies of OpenAI's completions and chat completions, and refuses bodies that simulated
engines do not support. Each word counts as one prompt token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.simulated.prefix_blocks import prompt_texts
from executors.engines.simulated.request_parameters import ApiError, check, flag, integer, malformed

_COMPLETION_DEFAULT = 16  # OpenAI's default for completions
_CHAT_DEFAULT = 256  # length of an answer without a limit
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}\Z")
_ID = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_MAX_SAMPLES = 1024


class FatalRequest(Exception):
    """Error for a KV hand-over that crashes vLLM's engine core."""


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """The location of a prompt's KV: another engine holds the KV under the id `request`."""

    request: str
    host: str
    port: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """One parsed request.

    prompts: tokens of each prompt. Each prompt is answered `n` times, so there are `samples`
    choices. hold_kv: whether to keep the KV, because the request is a prefill for another instance.
    running_usage: whether every chunk includes the usage so far. texts: the words or token ids of
    each prompt, only for an engine with a prefix cache.
    """

    chat: bool
    stream: bool
    include_usage: bool
    running_usage: bool
    prompts: tuple[int, ...]
    n: int
    output_tokens: int
    finish_reason: str
    hold_kv: bool = False
    remote: RemoteKv | None = None
    texts: tuple[Sequence[object], ...] = ()

    @property
    def samples(self) -> int:
        """The number of choices of the answer."""
        return len(self.prompts) * self.n


def parse(body: bytes, chat: bool, model: str, max_len: int) -> Job:
    """The request in `body`. Raises ApiError with status 404 for another model, and with 400 for a
    request that vLLM or this engine refuses. Raises FatalRequest for a request that crashes both.
    """
    return job_of(parse_object(body), chat, model, max_len)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError for any other body."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed("", f"JSON decode error: {error}") from None
    if not isinstance(raw, dict):
        raise malformed("", "Input should be a valid dictionary")
    return raw


def prompt_tokens(raw: Mapping[str, Any]) -> int:
    """Tokens of the first prompt, or of the messages, in `raw`."""
    return _chat_tokens(raw) if "messages" in raw else _prompts(raw.get("prompt"))[0]


def check_model(raw: Mapping[str, Any], model: str) -> None:
    """Raise ApiError with status 404 if `raw` names another model than `model`."""
    wanted = model if raw.get("model") is None else raw["model"]
    if not isinstance(wanted, str):
        raise malformed("model", "Input should be a valid string")
    if wanted != model:
        raise ApiError(404, f"The model `{wanted[:200]}` does not exist.", "model")


def job_of(
    raw: Mapping[str, Any],
    chat: bool,
    model: str,
    max_len: int,
    has_tools: bool = False,
    keeps_text: bool = False,
) -> Job:
    """The request in the JSON object `raw`, as for `parse`. has_tools: see `check`. keeps_text:
    whether the job keeps the tokens of its prompts."""
    check_model(raw, model)
    check(raw, chat, has_tools)
    prompts = (_chat_tokens(raw),) if chat else _prompts(raw.get("prompt"))
    n = integer(raw, "n") or 1
    if len(prompts) * n > _MAX_SAMPLES:
        raise ApiError(400, f"n: at most {_MAX_SAMPLES} answers in one request", "n")
    hold_kv, remote = _kv_params(raw)
    output, reason = _output(raw, chat, max_len)
    if max(prompts) + output > max_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_len} tokens. However, you requested "
            f"{max(prompts) + output} tokens ({max(prompts)} in the prompt, {output} in the "
            "completion).",
        )
    if hold_kv and output != 1:
        raise ApiError(400, "max_tokens: the simulated engine prefills for 1 token only")
    stream = flag(raw, "stream")
    options = raw.get("stream_options") or {}
    usage, running = flag(options, "include_usage"), flag(options, "continuous_usage_stats")
    return Job(
        chat, stream, stream and usage, stream and usage and running,
        prompts, n, output, reason, hold_kv, remote,
        prompt_texts(raw, chat) if keeps_text else (),
    )  # fmt: skip


def _output(raw: Mapping[str, Any], chat: bool, max_len: int) -> tuple[int, str]:
    key = "max_completion_tokens" if raw.get("max_completion_tokens") is not None else "max_tokens"
    asked = integer(raw, key)
    if asked is None:
        return (_CHAT_DEFAULT, "stop") if chat else (_COMPLETION_DEFAULT, "length")
    if asked > max_len:
        raise ApiError(400, f"{key}={asked} cannot be greater than max_model_len={max_len}.", key)
    least = integer(raw, "min_tokens") or 0
    if least > asked:
        raise ApiError(400, f"min_tokens must be less than or equal to {key}={asked}, got {least}.")
    return asked, "length"


def _prompts(prompt: Any) -> tuple[int, ...]:
    if prompt is None or prompt == "":
        raise ApiError(
            400, "Either prompt or prompt_embeds must be provided and non-empty.", "prompt"
        )
    if isinstance(prompt, str):
        return (_words(prompt),)
    if not isinstance(prompt, list):
        raise malformed("prompt", "Input should be a text, a list of texts or of token ids")
    if not prompt:
        raise ApiError(400, "You must pass at least one prompt")
    if all(isinstance(item, str) for item in prompt):
        return tuple(_words(text) for text in prompt)
    if all(isinstance(item, list) for item in prompt):
        return tuple(_tokens(item) for item in prompt)
    return (_tokens(prompt),)


def _tokens(ids: list[Any]) -> int:
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise malformed("prompt", "Input should be a valid list of token ids")
    if not ids:
        raise ApiError(400, "The decoder prompt cannot be empty")
    return len(ids)


def _words(text: str) -> int:
    return text.count(" ") + 1


def _chat_tokens(raw: Mapping[str, Any]) -> int:
    messages = raw.get("messages")
    if not isinstance(messages, list):
        raise malformed("messages", "Input should be a valid list")
    if not messages:
        raise ApiError(400, "Cannot apply chat template to an empty conversation.")
    total = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise malformed("messages", "every message is a dictionary with a role")
        content = message.get("content")
        if isinstance(content, str):
            total += _words(content)
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else None
                if not isinstance(text, str):
                    raise ApiError(400, "content parts must be texts", "messages")
                total += _words(text)
        elif content is not None:
            raise malformed("messages", "Input should be a valid string")
    return max(1, total)


def _kv_params(raw: Mapping[str, Any]) -> tuple[bool, RemoteKv | None]:
    """(whether a prefill keeps its KV, location of the KV that a decode fetches). As in vLLM,
    `kv_transfer_params` inside `vllm_xargs` take precedence."""
    smuggled = raw.get("vllm_xargs") or {}
    params = smuggled.get("kv_transfer_params", raw.get("kv_transfer_params")) or {}
    if not isinstance(params, dict) or ("kv_transfer_params" in smuggled and not params):
        raise FatalRequest("kv_transfer_params: not a dictionary")
    if flag(params, "do_remote_decode"):
        return True, None
    if not flag(params, "do_remote_prefill"):
        return False, None
    request, host = params.get("remote_request_id"), params.get("remote_host")
    port, tokens = params.get("remote_port"), params.get("remote_num_tokens")
    if not isinstance(request, str) or not _ID.match(request):
        raise FatalRequest("kv_transfer_params: no remote_request_id")
    if not isinstance(host, str) or not _HOST.match(host):
        raise FatalRequest("kv_transfer_params: no remote_host")
    if type(port) is not int or not 0 < port < 65536:
        raise FatalRequest("kv_transfer_params: no remote_port")
    if type(tokens) is not int or tokens < 1:
        raise FatalRequest("kv_transfer_params: no remote_num_tokens")
    return False, RemoteKv(request, host, port, tokens)
