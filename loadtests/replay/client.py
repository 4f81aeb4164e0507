"""One streamed completion from an OpenAI-compatible server, timed from the moment at which it was
due.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import orjson
from geventhttpclient import HTTPClient

_WORD = b"a "


class BrokenAnswer(Exception):
    """The answer was refused, ended with an error, or is incomplete. status: of the response; 200
    if it broke after its head."""

    def __init__(self, why: str, status: int = 200) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in ms after the request was due. Token counts come from the server's usage (0: no
    usage).
    """

    first_ms: float
    last_ms: float
    input_tokens: int
    output_tokens: int


class Client:
    """Client of one host. base: http://host:port, with or without a path before /v1. keep_alive:
    False gives each request its own connection, because geventhttpclient does not notice that a
    killed server closed an idle one."""

    def __init__(
        self, base: str, timeout_s: float, api_key: str = "", keep_alive: bool = True
    ) -> None:
        self._http = HTTPClient.from_url(
            base, concurrency=100_000, connection_timeout=10.0, network_timeout=timeout_s
        )
        path = "/" + base.split("//", 1)[-1].partition("/")[2].strip("/")
        self._path = path.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._headers = {"Content-Type": "application/json"}
        if not keep_alive:
            self._headers["Connection"] = "close"
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def complete(self, model: str, inputs: int, outputs: int, due_s: float) -> Answer:
        """`ask` with a prompt of about `inputs` tokens."""
        return self.ask(model, (_WORD * inputs)[:-1].decode(), outputs, due_s)

    def ask(self, model: str, prompt: str, outputs: int, due_s: float) -> Answer:
        """Request a completion of `outputs` tokens.

        due_s: monotonic time at which the request is due. Raises BrokenAnswer.
        """
        body = orjson.dumps(
            {
                "model": model,
                "max_tokens": outputs,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "prompt": prompt,
            }
        )
        response = self._http.post(self._path, body, self._headers)
        try:
            if response.status_code != 200:
                raise BrokenAnswer(f"status {response.status_code}", response.status_code)
            return self._read(response, due_s)
        finally:
            response.release()

    def _read(self, response: object, due_s: float) -> Answer:
        first_s = last_s = 0.0
        usage: dict[str, int] = {}
        ended = False
        while line := response.readline(b"\n"):  # type: ignore[attr-defined]
            if not line.startswith(b"data:"):
                continue
            data = bytes(line[5:].strip())
            if data == b"[DONE]":
                ended = True
                continue
            if b'"error"' in data[:12]:
                raise BrokenAnswer("error event")
            if b'"usage":{' in data.replace(b" ", b""):
                usage = orjson.loads(data)["usage"] or {}
            if b'"text":""' not in data and b'"choices":[]' not in data:
                last_s = time.monotonic()
                first_s = first_s or last_s
        if not ended or not first_s:
            raise BrokenAnswer("no end")
        return Answer(
            1000.0 * (first_s - due_s),
            1000.0 * (last_s - due_s),
            int(usage.get("prompt_tokens", 0)),
            int(usage.get("completion_tokens", 0)),
        )
