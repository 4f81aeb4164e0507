"""The bytes of an answer, streamed or whole, in the format of vLLM 0.32.

Every generated token is the word "a". If several tokens are written together, they share one event,
as in vLLM under load.
"""

from __future__ import annotations

from typing import Any

import orjson

from executors.engines.simulated.completions_api import Job
from executors.engines.simulated.request_parameters import ApiError
from executors.engines.simulated.small_http import Responder

_DONE = b"data: [DONE]\n\n"


class Answer:
    """The answer to one job with all its choices. name: the response's id. cached_tokens: prompt
    tokens from the prefix cache, None if the usage does not report them."""

    prefix = ""
    """The start of the response's id, "" = as completions and chat have it."""

    def __init__(self, job: Job, responder: Responder, model: str, name: str, created: int) -> None:
        self.job = job
        self.responder = responder
        self.model = model
        self._frame = {"id": name, "created": created, "model": model}
        self._started = False
        self._tokens = [0] * job.samples
        self._reasons: list[str | None] = [None] * job.samples
        self.cached_tokens: int | None = None

    def write(self, choice: int, tokens: int) -> None:
        """Write further tokens of a choice. `finish` writes its last ones."""
        if self.job.stream and tokens > 0:
            self._start()
        self._tokens[choice] += tokens
        if self.job.stream and tokens > 0:
            self.responder.write(self._chunk(choice, " a" * tokens, None))

    def finish(
        self, choice: int, tokens: int, reason: str, kv: dict[str, Any] | None = None
    ) -> None:
        """Write the last `tokens` tokens of a choice. After the last choice the answer ends."""
        if self.job.stream:
            self._start()
        self._tokens[choice] += tokens
        self._reasons[choice] = reason
        if self.job.stream:
            self.responder.write(self._chunk(choice, " a" * tokens, reason))
        if None not in self._reasons:
            self._end(kv)

    def fail(self, error: ApiError) -> None:
        """End the answer with an error: an error response, or an error event if the stream has
        begun."""
        if self._started:
            self.responder.write(b"data: " + error.body() + b"\n\n" + _DONE)
            self.responder.end()
        else:
            self.responder.respond(error.status, error.body())

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        self.responder.start()
        if self.job.chat:
            for choice in range(self.job.samples):
                self.responder.write(self._chunk(choice, None, None))

    def _end(self, kv: dict[str, Any] | None) -> None:
        if not self.job.stream:
            self.responder.respond(200, self._whole(kv))
            return
        last = b""
        if self.job.include_usage:
            frame = {**self._frame, "object": self._object(True), "choices": []}
            last = _sse({**frame, "usage": self._usage()})
        self.responder.write(last + _DONE)
        self.responder.end()

    def _usage(self) -> dict[str, Any]:
        prompt, tokens = sum(self.job.prompts), sum(self._tokens)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + tokens,
            "completion_tokens": tokens,
        }
        if self.cached_tokens:  # as vLLM, which leaves out 0
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    def _object(self, chunk: bool) -> str:
        if not self.job.chat:
            return "text_completion"
        return "chat.completion.chunk" if chunk else "chat.completion"

    def _chunk(self, choice: int, text: str | None, finish: str | None) -> bytes:
        """One event. text: None for the first chunk of a chat, which names the role."""
        item: dict[str, Any] = {"index": choice}
        if self.job.chat:
            first = {"role": "assistant", "content": ""}
            item["delta"] = first if text is None else {"content": text}
        else:
            item["text"] = text
        item["finish_reason"] = finish
        chunk = {**self._frame, "object": self._object(True), "choices": [item]}
        if self.job.running_usage:
            chunk["usage"] = self._usage()
        return _sse(chunk)

    def _whole(self, kv: dict[str, Any] | None) -> bytes:
        choices = []
        for index, (tokens, reason) in enumerate(zip(self._tokens, self._reasons, strict=True)):
            item: dict[str, Any] = {"index": index, "finish_reason": reason}
            if self.job.chat:
                item["message"] = {"role": "assistant", "content": " a" * tokens}
            else:
                item["text"] = " a" * tokens
            choices.append(item)
        body = {
            **self._frame,
            "object": self._object(False),
            "choices": choices,
            "usage": self._usage(),
            "kv_transfer_params": kv,
        }
        return orjson.dumps(body)


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
