"""`python -m executors.engines.simulated.stage`: one simulated stage of a model of components.

A stage simulates any components with declared times: an encoder, an LLM, a talker, or several. It
serves one request at a time, each for its declared time, so its capacity is exactly the declared
one. The last stage of a path answers the client in OpenAI's format; the other stages answer with
`stage_outputs` that hold no data. A request is dropped as soon as its client disconnects.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.simulated.answer_stream import Answer
from executors.engines.simulated.completions_api import parse
from executors.engines.simulated.engine_server import first_of, watch_end
from executors.engines.simulated.request_parameters import ApiError, malformed
from executors.engines.simulated.small_http import Connection, Request, Responder
from topics.checks import InvalidValue, number
from topics.time_base import TimeBase

_POSTS = ("/v1/completions", "/v1/chat/completions")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_LIVENESS_S = 1e-4  # domain s of a liveness probe
_STOP_REAL_S = 10.0


@dataclass(slots=True)
class _Job:
    """One queued or running request. tokens: number of output tokens; real_s: its service time."""

    responder: Responder
    real_s: float
    tokens: int
    runs: tuple[str, ...]
    answer: Answer | None


class Stage:
    """One instance. seconds: domain s of a request, by the components that the request runs here,
    with names sorted and joined by commas."""

    def __init__(self, model: str, max_len: int, seconds: Mapping[str, float], base: TimeBase):
        self._model = model
        self._max_len = max_len
        self._seconds = seconds
        self._base = base
        self._queue: deque[_Job] = deque()
        self._running: _Job | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._free_s = 0.0  # scheduled end of the previous request, on the loop's clock
        self._name = uuid.uuid4().hex[:12]
        self._count = 0
        self._tokens = 0
        self._ending = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.connections: set[Connection] = set()

    def handle(self, request: Request, responder: Responder) -> None:
        """Answer or queue one request."""
        try:
            self._route(request, responder)
        except ApiError as error:
            responder.respond(error.status, error.body())

    def end(self) -> None:
        """Refuse new requests."""
        self._ending = True

    def _route(self, request: Request, responder: Responder) -> None:
        if request.path in _POSTS and request.method == "POST":
            self._enqueue(request, responder)
        elif request.path == "/health":
            responder.respond(200, b"")
        elif request.path == "/metrics":
            responder.respond(200, self._metrics(), _TEXT)
        elif request.path == "/v1/models":
            card = {"id": self._model, "object": "model", "owned_by": "shoal"}
            responder.respond(200, orjson.dumps({"object": "list", "data": [card]}))
        else:
            responder.respond(404, b'{"detail":"Not Found"}')

    def _enqueue(self, request: Request, responder: Responder) -> None:
        if self._ending:
            raise ApiError(500, "the engine is shutting down")
        raw, stage = _parse_stage_request(request.body)
        chat = request.path == _POSTS[1]
        job = parse(orjson.dumps(raw), chat, self._model, self._max_len)
        self._count += 1
        tokens = job.output_tokens * job.samples
        runs, last = stage or ((), True)
        seconds = _LIVENESS_S  # a request without `stage` is a liveness probe
        if stage is not None:
            seconds = self._seconds.get(",".join(runs), -1.0)
            if seconds < 0.0:
                raise ApiError(
                    400, f"stage.runs: {','.join(runs)[:200]!r} is not declared here", "stage"
                )
        answer = None
        if last:
            kind = "chatcmpl" if chat else "cmpl"
            name = f"{kind}-{self._name}-{self._count}"
            created = self._base.now_ms(time.monotonic_ns()) // 1000
            answer = Answer(job, responder, self._model, name, created)
        queued = _Job(responder, self._base.real_s(seconds), tokens, runs, answer)
        responder.on_disconnect = lambda: self._drop(queued)
        self._queue.append(queued)
        self.idle.clear()
        self._next()

    def _next(self) -> None:
        if self._running is not None:
            return
        if not self._queue:
            self.idle.set()
            return
        loop = asyncio.get_running_loop()
        self._running = self._queue.popleft()
        # The job starts at the scheduled end of the previous one, so that a late timer costs no
        # capacity.
        start_s = max(self._free_s, loop.time() - 0.05)
        self._free_s = start_s + self._running.real_s
        self._timer = loop.call_at(self._free_s, self._complete)

    def _complete(self) -> None:
        job, self._running = self._running, None
        if job is not None:
            self._tokens += job.tokens
            self._answer(job)
        self._next()

    def _answer(self, job: _Job) -> None:
        if job.answer is None:
            made = {one: {"by": self._name, "tokens": job.tokens} for one in job.runs}
            body = {"object": "stage", "model": self._model, "stage_outputs": made}
            job.responder.respond(200, orjson.dumps(body))
            return
        of = job.answer.job
        for choice in range(of.samples):
            job.answer.finish(choice, of.output_tokens, of.finish_reason)

    def _drop(self, job: _Job) -> None:
        if job is self._running and self._timer is not None:
            self._timer.cancel()
            self._running = None
            self._free_s = asyncio.get_running_loop().time()
        elif job in self._queue:
            self._queue.remove(job)
        self._next()

    def _metrics(self) -> bytes:
        label = f'{{model_name="{self._model}"}}'
        lines = (
            f"vllm:num_requests_running{label} {int(self._running is not None)}",
            f"vllm:num_requests_waiting{label} {len(self._queue)}",
            f"vllm:kv_cache_usage_perc{label} 0.0",
            f"vllm:generation_tokens_total{label} {self._tokens}",
        )
        return ("\n".join(lines) + "\n").encode()


def _parse_stage_request(body: bytes) -> tuple[dict[str, Any], tuple[tuple[str, ...], bool] | None]:
    """(request without media and stage, stage); the stage is (components, whether it is the last
    one), or None for a request without `stage`."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed("", f"JSON decode error: {error}") from None
    if not isinstance(raw, dict):
        raise malformed("", "Input should be a valid dictionary")
    for message in raw.get("messages") or ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            message["content"] = [p for p in content if isinstance(p, dict) and "text" in p]
    stage = raw.pop("stage", None)
    if stage is None:
        return raw, None
    runs = stage.get("runs") if isinstance(stage, dict) else None
    if not isinstance(runs, list) or not runs or not all(isinstance(one, str) for one in runs):
        raise malformed("stage.runs", "Input should be a list of components")
    return raw, (tuple(sorted(runs)), stage.get("last") is True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m executors.engines.simulated.stage")
    add = parser.add_argument
    add("--model", required=True, help="name under which it is served")
    add("--seconds", required=True, help='domain s by components: {"image": 0.06, "image,llm": 1}')
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--max-len", type=int, required=True, help="tokens of prompt and answer together")
    add("--time-base", default="1.0,0,0", help="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    add("--startup-s", type=float, default=0.0, help="domain s until it serves")
    add("--launched-ms", type=int, default=None, help="domain time from which start-up counts")
    return parser.parse_args(argv)


def _seconds(text: str) -> dict[str, float]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidValue("--seconds", text, "a JSON object of seconds by components")
    for runs, seconds in found.items():
        number(f"--seconds: {runs}", seconds, 0.0, 86_400.0)
    return {",".join(sorted(runs.split(","))): float(s) for runs, s in found.items()}


async def _serve(arguments: argparse.Namespace, stage: Stage, base: TimeBase) -> None:
    loop = asyncio.get_running_loop()
    stop, gone = watch_end(loop)
    now_ms = base.now_ms(time.monotonic_ns())
    launched_ms = now_ms if arguments.launched_ms is None else arguments.launched_ms
    wait_s = base.real_s(arguments.startup_s - (now_ms - launched_ms) / 1e3)
    if wait_s > 0:
        try:
            await asyncio.wait_for(first_of(stop, gone), wait_s)
            return
        except TimeoutError:
            pass
    listener = await loop.create_server(
        lambda: Connection(stage.handle, stage.connections),
        arguments.host,
        arguments.port,
        backlog=512,
    )
    try:
        await first_of(stop, gone)
        if not gone.is_set():
            stage.end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(first_of(stage.idle, gone), _STOP_REAL_S)
    finally:
        listener.close()
        for connection in list(stage.connections):
            connection.close()
        await asyncio.sleep(0)  # let the loop send the bytes above


def main(argv: list[str] | None = None) -> int:
    """Run one stage. Returns 0 after a stop, 1 if it cannot listen, 2 for bad arguments."""
    arguments = _arguments(argv)
    try:
        base = TimeBase.parse(arguments.time_base)
        seconds = _seconds(arguments.seconds)
    except InvalidValue as error:
        print(f"simulated stage: {error}", file=sys.stderr)
        return 2

    async def run() -> None:
        await _serve(arguments, Stage(arguments.model, arguments.max_len, seconds, base), base)

    try:
        asyncio.run(run())
        return 0
    except OSError as error:
        where = f"{arguments.host}:{arguments.port}"
        print(f"simulated stage: cannot listen on {where}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
