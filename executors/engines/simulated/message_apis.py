"""The Responses API and the Messages API, as far as simulated engines support them.

As in vLLM 0.32, a request becomes a chat request, and the answer is written in the form of its API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from executors.engines.simulated.answer_stream import Answer
from executors.engines.simulated.request_parameters import ApiError, malformed

_RENAMED = {"max_output_tokens": "max_tokens", "stop_sequences": "stop"}
_TAKEN = ("input", "instructions", "system", "messages", "text", "store", "output_config")


def chat_of_responses(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that corresponds to a request of `/v1/responses`. Raises ApiError."""
    given = raw.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise malformed("input", "Input should be a valid string or list")
    form = (raw.get("text") or {}).get("format") or {}
    extra = {} if form.get("type", "text") == "text" else {"response_format": form}
    return {**_shared(raw), **extra, "messages": [*_system(raw.get("instructions")), *given]}


def chat_of_messages(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that corresponds to a request of `/v1/messages`. Raises ApiError."""
    given = raw.get("messages")
    if not isinstance(given, list):
        raise malformed("messages", "Input should be a valid list")
    return {**_shared(raw), "messages": [*_system(raw.get("system")), *given]}


def _shared(raw: Mapping[str, Any]) -> dict[str, Any]:
    kept = {_RENAMED.get(key, key): value for key, value in raw.items() if key not in _TAKEN}
    return {key: value for key, value in kept.items() if value is not None and value != []}


def _system(text: object) -> list[dict[str, Any]]:
    return [] if text is None else [{"role": "system", "content": text}]


class ResponsesAnswer(Answer):
    """An answer of `/v1/responses`."""

    prefix = "resp"

    def fail(self, error: ApiError) -> None:
        """End the answer with an error response, or with an error event in a stream."""
        if self._started:
            self._event("error", message=str(error), code="server_error", param=None)
            self.responder.end()
        else:
            self.responder.respond(error.status, error.body())

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self.responder.start()
        for name in ("response.created", "response.in_progress"):
            self._event(name, response=self._response("in_progress", []))
        item = {**self._item(), "status": "in_progress", "content": []}
        self._event("response.output_item.added", output_index=0, item=item)
        self._event("response.content_part.added", output_index=0, part=self._part(""))

    def _chunk(self, choice: int, text: str | None, finish: str | None) -> bytes:
        if not text:
            return b""
        return _named("response.output_text.delta", {"output_index": choice, "delta": text})

    def _end(self, kv: dict[str, Any] | None) -> None:
        if not self.job.stream:
            self.responder.respond(200, orjson.dumps(self._whole_response()))
            return
        self._event("response.output_text.done", output_index=0, text=self._text())
        self._event("response.output_item.done", output_index=0, item=self._item())
        self._event("response.completed", response=self._whole_response())
        self.responder.end()

    def _event(self, name: str, **data: Any) -> None:
        self.responder.write(_named(name, data))

    def _text(self) -> str:
        return " a" * self._tokens[0]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": []}

    def _item(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._frame['id']}", "type": "message", "role": "assistant",
            "status": "completed", "content": [self._part(self._text())],
        }  # fmt: skip

    def _whole_response(self) -> dict[str, Any]:
        ends = {"length": "incomplete", "abort": "cancelled"}
        status = ends.get(self._reasons[0] or "", "completed")
        return {**self._response(status, [self._item()]), "usage": self._counts()}

    def _counts(self) -> dict[str, int]:
        usage = self._usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._frame["id"], "object": "response", "created_at": self._frame["created"],
            "model": self._frame["model"], "status": status, "output": output,
        }  # fmt: skip


class MessagesAnswer(Answer):
    """An answer of `/v1/messages`."""

    prefix = "msg"

    def fail(self, error: ApiError) -> None:
        """End the answer with an error response, or with an error event in a stream."""
        if self._started:
            self.responder.write(b"event: error\ndata: " + error_of_messages(error) + b"\n\n")
            self.responder.end()
        else:
            self.responder.respond(error.status, error_of_messages(error))

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self.responder.start()
        usage = {"input_tokens": sum(self.job.prompts), "output_tokens": 0}
        message = {**self._message(), "content": [], "stop_reason": None, "usage": usage}
        self._event("message_start", message=message)
        self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def _chunk(self, choice: int, text: str | None, finish: str | None) -> bytes:
        if not text:
            return b""
        delta = {"type": "text_delta", "text": text}
        return _named("content_block_delta", {"index": choice, "delta": delta})

    def _end(self, kv: dict[str, Any] | None) -> None:
        stop = {"stop": "end_turn", "length": "max_tokens"}.get(self._reasons[0] or "")
        if not self.job.stream:
            content = [{"type": "text", "text": " a" * self._tokens[0]}]
            ended = {"stop_reason": stop} if stop else {}
            body = {**self._message(), "content": content, **ended, "usage": self._counts()}
            self.responder.respond(200, orjson.dumps(body))
            return
        self._event("content_block_stop", index=0)
        self._event("message_delta", delta={"stop_reason": stop}, usage=self._counts())
        self._event("message_stop")
        self.responder.end()

    def _event(self, name: str, **data: Any) -> None:
        self.responder.write(_named(name, data))

    def _counts(self) -> dict[str, int]:
        return {"input_tokens": sum(self.job.prompts), "output_tokens": sum(self._tokens)}

    def _message(self) -> dict[str, Any]:
        model = self._frame["model"]
        return {"id": self._frame["id"], "type": "message", "role": "assistant", "model": model}


def error_of_messages(error: ApiError) -> bytes:
    """`error` in Anthropic's format."""
    given = orjson.loads(error.body())["error"]
    inner = {"type": given["type"], "message": given["message"]}
    return orjson.dumps({"type": "error", "error": inner})


def _named(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\n".encode() + b"data: " + orjson.dumps({"type": name, **data}) + b"\n\n"
