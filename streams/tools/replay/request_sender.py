"""Sends jobs at their times, each in a task of its own, and reads the streamed answers.

Only the turns of a session wait for each other's answers. Each request records by how much it was
sent late, because latencies are invalid if the generator is late.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence

import aiohttp
import orjson

from streams.tools.replay.media_requests import around
from streams.tools.replay.replay_report import Record
from streams.tools.replay.request_schedule import Job
from topics.time_base import TimeBase

log = logging.getLogger(__name__)

_COUNTS = {
    kind: re.compile(b'"' + kind + rb'":\s*(\d{1,9})')
    for kind in (b"prompt_tokens", b"completion_tokens")
}
_WORDS = {
    "no_instance": "no instance yet",
    "overloaded": "no room in time",
    "engine_lost": "the engine was lost",
}
MODEL_HEADER = "X-Shoal-Model"
"""Header of an answer that names the model that gave it."""
_TAIL_BYTES = 4096  # The end of a stream has usage, an error event and [DONE].


class BrokenAnswer(Exception):
    """The answer ended with an error, or without its last event."""


class Sender:
    """One replay against one OpenAI-compatible server.

    Times: job.at_ms after `start_ms` (domain ms since the epoch) on `base`. headers: by model, the
    name of the header for a job's score.
    """

    def __init__(
        self,
        url: str,
        base: TimeBase,
        start_ms: float,
        record: Record,
        request_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url.rstrip("/") + "/v1/completions"
        self._chat_url = url.rstrip("/") + "/v1/chat/completions"
        self._base = base
        self._start_ms = start_ms
        self._record = record
        self._request_real_s = max(1.0, base.real_s(request_s))
        self._words = b""
        self._score_headers = headers or {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._end = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None

    async def run(self, jobs: Sequence[Job], end: asyncio.Event, drain_real_s: float) -> None:
        """Send all jobs, or those before `end` is set, then wait for answers up to `drain_real_s`.

        After `end` the wait is at most 2 s. Requests without an answer then count as dropped.
        """
        self._end = end
        longest = max((job.input_tokens for job in jobs), default=1)
        self._words = (b"a " * longest)[:-1]
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=10.0)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._request_real_s, sock_connect=5.0),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as self._session:
            sending = asyncio.create_task(self._send_all(jobs))
            ending = asyncio.create_task(end.wait())
            await asyncio.wait({sending, ending}, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await self._drain(ending, drain_real_s)
            ending.cancel()
            if not sending.cancelled():
                sending.result()  # This raises the error of a failed generator.

    async def _drain(self, ending: asyncio.Task[bool], drain_real_s: float) -> None:
        if self._tasks and not ending.done():
            answers = asyncio.ensure_future(asyncio.wait(set(self._tasks)))
            await asyncio.wait(
                {answers, ending}, timeout=drain_real_s, return_when=asyncio.FIRST_COMPLETED
            )
            answers.cancel()
        if self._tasks and ending.done():
            await asyncio.wait(set(self._tasks), timeout=2.0)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _send_all(self, jobs: Sequence[Job]) -> None:
        turns: dict[int, list[Job]] = {}
        for job in jobs:
            if job.session is not None:
                turns.setdefault(job.session, []).append(job)
        for job in jobs:
            due_ns = self._due_ns(job)
            # Sleep even if the request is late, so that the event loop sends the earlier requests.
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            if job.session is None:
                task = asyncio.create_task(self._one(job, due_ns))
            elif turns[job.session][0] is job:
                task = asyncio.create_task(self._converse(turns[job.session], due_ns))
            else:
                continue  # This is a later turn. The task of its session sends it.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _due_ns(self, job: Job) -> int:
        return self._base.mono_ns_at(self._start_ms + job.at_ms)

    async def _converse(self, turns: Sequence[Job], due_ns: int) -> None:
        """Send the turns of one session, each after the answer to the turn before."""
        for index, job in enumerate(turns):
            if index:
                ended_ns = time.monotonic_ns()
                due_ns = max(ended_ns, self._due_ns(job))
                if job.delay_ms is not None:
                    due_ns = ended_ns + int(1e9 * self._base.real_s(job.delay_ms / 1000.0))
                await asyncio.sleep((due_ns - ended_ns) / 1e9)
            if self._end.is_set():
                return
            await self._one(job, due_ns)

    async def _one(self, job: Job, due_ns: int) -> None:
        self._record.models[job.model].sent += 1
        try:
            await self._exchange(job, due_ns)
        except BrokenAnswer as error:
            self._record.fail(job.model, str(error))
        except TimeoutError:
            self._record.fail(job.model, "timeout")
        except (aiohttp.ClientError, OSError) as error:
            self._record.fail(job.model, f"connection: {connection_words(error)}")
        except Exception as error:
            # A bug here or in the HTTP client fails one request visibly. The load continues.
            self._record.fail(job.model, type(error).__name__)
            log.exception("unhandled error in a request")

    async def _exchange(self, job: Job, due_ns: int) -> None:
        assert self._session is not None  # noqa: S101 - run() opened it
        words = memoryview(self._words)[: 2 * job.input_tokens - 1]
        before, after = (b'"prompt":"', b'"}') if job.media is None else around(job.media)
        body = b"".join(
            (
                b'{"model":"%s","max_tokens":%d,' % (job.model.encode(), job.output_tokens),
                b'"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},',
                before,
                words,
                after,
            )
        )
        url = self._url if job.media is None else self._chat_url
        self._record.late_ms.append((time.monotonic_ns() - due_ns) / 1e6)
        first_ns = 0
        tail = b""
        headers = {"Content-Type": "application/json"}
        if job.score is not None:
            headers[self._score_headers[job.model]] = f"{job.score:.9g}"
        async with self._session.post(url, data=body, headers=headers) as answer:
            if answer.status != 200:
                raise BrokenAnswer(f"{answer.status}, {_why(await answer.read())}")
            by = answer.headers.get(MODEL_HEADER, "")
            while block := await answer.content.readany():
                last_ns = time.monotonic_ns()
                first_ns = first_ns or last_ns
                tail = (tail + block)[-_TAIL_BYTES:]
        if b"data: [DONE]" not in tail or not first_ns:
            raise BrokenAnswer("the answer broke off")
        if b'data: {"error"' in tail:
            event = tail[tail.rindex(b'data: {"error"') + len(b"data: ") :].split(b"\n", 1)[0]
            raise BrokenAnswer(f"broken off, {_why(event)}")
        scale = self._base.speed / 1e6
        self._record.models[job.model].serve(
            (first_ns - due_ns) * scale,
            (last_ns - due_ns) * scale,
            _count(b"prompt_tokens", tail, job.input_tokens),
            _count(b"completion_tokens", tail, job.output_tokens),
            by,
        )


def connection_words(error: Exception) -> str:
    """Text on why a connection could not be opened or used."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host is not known"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError)):
        return "closed before the end of the answer"
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number and number > 0 else type(error).__name__


def _why(body: bytes) -> str:
    """A fixed text for a known kind of OpenAI error, else at most 100 characters of its message."""
    try:
        error = orjson.loads(body)["error"]
        kind, message = error.get("type"), error.get("message")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "no reason given"
    return _WORDS.get(str(kind)) or str(message or kind or "no reason given")[:100]


def _count(kind: bytes, tail: bytes, otherwise: int) -> int:
    """Tokens of the last usage chunk, or the requested number if the engine
    does not report usage.
    """
    found = _COUNTS[kind].findall(tail)
    return int(found[-1]) if found else otherwise
