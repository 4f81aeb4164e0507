"""OpenAI's completions and chat completions, as far as a simulated engine understands them.

Owns reading and refusing request bodies and the bytes of answers. Knows nothing of time or of
batching. Prompt tokens are counted as words; every generated token is the word "a".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.simulated.http import Responder

_COMPLETION_DEFAULT = 16  # OpenAI's default for completions
_CHAT_DEFAULT = 256  # a simulated model ends its own answer here when nobody bounds it
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}\Z")
_ID = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


class ApiError(Exception):
    """A refusal in OpenAI's form."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> bytes:
        """The JSON object that says it."""
        kinds = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowed"}
        return orjson.dumps(
            {
                "error": {
                    "message": str(self),
                    "type": kinds.get(self.status, "InternalServerError"),
                    "param": self.param,
                    "code": self.status,
                }
            }
        )


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """Where the KV of a prompt lies: held by another engine under `request`."""

    request: str
    host: str
    port: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Job:
    """One understood request. hold_kv: it is a prefill for another instance."""

    chat: bool
    stream: bool
    include_usage: bool
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    hold_kv: bool = False
    remote: RemoteKv | None = None


def parse(body: bytes, chat: bool, model: str, max_len: int) -> Job:
    """The request in `body`; ApiError 404 for another model, 400 for what is not understood."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ApiError(400, "The body must be a JSON object")
    wanted = raw.get("model", model)
    if wanted != model:
        raise ApiError(404, f"The model `{str(wanted)[:200]}` does not exist.", "model")
    if raw.get("n", 1) != 1:
        raise ApiError(400, "n: only 1 is served", "n")
    prompt = _chat_tokens(raw) if chat else _prompt_tokens(raw.get("prompt"))
    hold_kv, remote = _kv_params(raw.get("kv_transfer_params"))
    output, reason = _output(raw, chat, hold_kv)
    if prompt + output > max_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_len} tokens. However, you requested "
            f"{prompt + output} tokens ({prompt} in the prompt, {output} in the completion).",
            "max_tokens",
        )
    stream = _flag(raw, "stream")
    options = raw.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", "stream_options")
    usage = stream and _flag(options, "include_usage")
    return Job(chat, stream, usage, prompt, output, reason, hold_kv, remote)


def _flag(raw: dict[str, Any], key: str) -> bool:
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{key} must be true or false", key)
    return bool(value)


def _output(raw: dict[str, Any], chat: bool, hold_kv: bool) -> tuple[int, str]:
    key = "max_completion_tokens" if raw.get("max_completion_tokens") is not None else "max_tokens"
    asked = raw.get(key)
    if asked is None:
        return (_CHAT_DEFAULT, "stop") if chat else (_COMPLETION_DEFAULT, "length")
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ApiError(400, f"{key} must be at least 1, got {str(asked)[:40]}", key)
    if hold_kv and asked != 1:
        raise ApiError(400, f"{key} must be 1 with do_remote_decode", key)
    return asked, "length"


def _prompt_tokens(prompt: Any) -> int:
    if isinstance(prompt, str):
        return prompt.count(" ") + 1
    if isinstance(prompt, list) and prompt:
        if len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            return _prompt_tokens(prompt[0])
        if all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
            return len(prompt)
    raise ApiError(400, "prompt must be one text or one array of token ids", "prompt")


def _chat_tokens(raw: dict[str, Any]) -> int:
    messages = raw.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be an array with at least one message", "messages")
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            total += content.count(" ") + 1
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else None
                if not isinstance(text, str):
                    raise ApiError(400, "content parts must be texts", "messages")
                total += text.count(" ") + 1
        else:
            raise ApiError(400, "every message needs a content", "messages")
    return max(1, total)


def _kv_params(raw: Any) -> tuple[bool, RemoteKv | None]:
    if raw is None:
        return False, None
    where = "kv_transfer_params"
    if not isinstance(raw, dict):
        raise ApiError(400, f"{where} must be an object", where)
    if _flag(raw, "do_remote_decode"):
        return True, None
    if not _flag(raw, "do_remote_prefill"):
        return False, None
    request, host = raw.get("remote_request_id"), raw.get("remote_host")
    port, tokens = raw.get("remote_port"), raw.get("remote_num_tokens")
    if not isinstance(request, str) or not _ID.match(request):
        raise ApiError(400, f"{where}: remote_request_id is missing", where)
    if not isinstance(host, str) or not _HOST.match(host):
        raise ApiError(400, f"{where}: remote_host is missing", where)
    if type(port) is not int or not 0 < port < 65536:
        raise ApiError(400, f"{where}: remote_port is missing", where)
    if type(tokens) is not int or tokens < 1:
        raise ApiError(400, f"{where}: remote_num_tokens is missing", where)
    return False, RemoteKv(request, host, port, tokens)


class Answer:
    """The answer to one job, streamed or whole. name: the response's id."""

    def __init__(self, job: Job, responder: Responder, model: str, name: str, created: int) -> None:
        self.job = job
        self.responder = responder
        self._frame = {"id": name, "created": created, "model": model}
        self._started = False
        self._tokens = 0
        self._event = b""

    def write(self, tokens: int) -> None:
        """Further tokens, in one write; before the last one comes `finish`."""
        self._tokens += tokens
        if not self.job.stream or tokens <= 0:
            return
        if not self._started:
            self._started = True
            self.responder.start()
            first = self._chunk("", None, role=True) if self.job.chat else b""
            self._event = self._chunk(" a", None)
            self.responder.write(first + self._event * tokens)
        else:
            self.responder.write(self._event * tokens)

    def finish(self, tokens: int, kv: dict[str, Any] | None = None) -> None:
        """The last `tokens` tokens (at least one) and the end."""
        if not self.job.stream:
            self._tokens += tokens
            self.responder.respond(200, self._whole(kv))
            return
        self.write(tokens - 1)
        self._tokens += 1
        parts = []
        if not self._started:
            self.responder.start()
            if self.job.chat:
                parts.append(self._chunk("", None, role=True))
        parts.append(self._chunk(" a", self.job.finish_reason))
        if self.job.include_usage:
            last = {**self._frame, "object": self._object(True), "choices": []}
            parts.append(_sse({**last, "usage": self._usage()}))
        parts.append(b"data: [DONE]\n\n")
        self.responder.write(b"".join(parts))
        self.responder.end()

    def fail(self, error: ApiError) -> None:
        """Break off: an error response, or an error event when the stream has begun."""
        if self._started:
            self.responder.write(b"data: " + error.body() + b"\n\ndata: [DONE]\n\n")
            self.responder.end()
        else:
            self.responder.respond(error.status, error.body())

    def _usage(self) -> dict[str, int]:
        prompt = self.job.prompt_tokens
        total = prompt + self._tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": total,
        }

    def _object(self, chunk: bool) -> str:
        if not self.job.chat:
            return "text_completion"
        return "chat.completion.chunk" if chunk else "chat.completion"

    def _chunk(self, text: str, finish: str | None, role: bool = False) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if self.job.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if role else {"content": text}
        else:
            choice["text"] = text
        choice["finish_reason"] = finish
        return _sse({**self._frame, "object": self._object(True), "choices": [choice]})

    def _whole(self, kv: dict[str, Any] | None) -> bytes:
        text = " a" * self._tokens
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.job.finish_reason}
        if self.job.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        body = {
            **self._frame,
            "object": self._object(False),
            "choices": [choice],
            "usage": self._usage(),
        }
        if kv is not None:
            body["kv_transfer_params"] = kv
        return orjson.dumps(body)


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
