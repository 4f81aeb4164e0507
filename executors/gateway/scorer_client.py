"""A user's scorer over HTTP: asked with a time limit, believed only where its answer makes sense.

Owns the exchange, and leaving alone a scorer that fails: after a few failures in a row nobody waits
for it, and one request at a time finds out whether it is back. Whatever goes wrong, a request has
no score then, and goes on.

    POST {"service": "auto", "prompt": "...", "tokens": 120}  ->  {"score": 0.37}
"""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import urlsplit

import orjson

from autoscaler.serving.score_routing import valid_score
from executors.gateway.wire.engine_pool import (
    EnginePool,
    EngineResponse,
    NoFileDescriptors,
    TransportError,
)
from topics.records import ScoreSource

_MOST_ANSWER_BYTES = 64 * 1024
_KEEP_ALIVE_S = 3.0
_MOST_AT_ONCE = 64
_FAILURES = 5
_REST_S = 2.0


class Scorer:
    """Asks scorers. failures: how often it got no score, by the reason; counts since the start."""

    def __init__(self, connect_s: float) -> None:
        self._pool = EnginePool(connect_s, _KEEP_ALIVE_S, _MOST_ANSWER_BYTES)
        self._asking = 0
        self._in_a_row = 0
        self._again_at_s = 0.0
        self.failures: Counter[str] = Counter()

    def close(self) -> None:
        """End every connection."""
        self._pool.close()

    async def score(
        self, source: ScoreSource, service: str, prompt: str, tokens: int
    ) -> float | None:
        """The score that the scorer of `source` gives; None where it gives none that makes sense,
        in time."""
        now_s = asyncio.get_running_loop().time()
        if self._in_a_row >= _FAILURES and now_s < self._again_at_s:
            self.failures["resting"] += 1
            return None
        if self._asking >= _MOST_AT_ONCE:
            self.failures["busy"] += 1
            return None
        if self._in_a_row >= _FAILURES:
            self._again_at_s = now_s + _REST_S  # this one finds out; nobody else waits meanwhile
        self._pool.close_idle()
        self._asking += 1
        try:
            async with asyncio.timeout(source.limit_ms / 1000.0):
                status, raw = await self._asked(source.url, service, prompt, tokens)
        except TimeoutError:
            self._failed("timeout")
            return None
        except (TransportError, NoFileDescriptors):
            self._failed("connection")
            return None
        finally:
            self._asking -= 1
        if status != 200:
            self._failed("status")
            return None
        try:
            found = valid_score(source, orjson.loads(raw)["score"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            found = None
        if found is None:
            self._failed("invalid")
            return None
        self._in_a_row = 0
        return found

    def _failed(self, why: str) -> None:
        self.failures[why] += 1
        self._in_a_row += 1
        if self._in_a_row == _FAILURES:
            self._again_at_s = asyncio.get_running_loop().time() + _REST_S

    async def _asked(self, url: str, service: str, prompt: str, tokens: int) -> tuple[int, bytes]:
        parts = urlsplit(url)
        address = parts.netloc if ":" in parts.netloc.rsplit("]", 1)[-1] else f"{parts.netloc}:80"
        body = orjson.dumps({"service": service, "prompt": prompt, "tokens": tokens})
        path = parts.path or "/"
        head = (
            f"POST {path}{'?' + parts.query if parts.query else ''} HTTP/1.1\r\n"
            f"Host: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        answer: EngineResponse | None = None
        try:
            try:
                answer = await self._pool.send(address, head, body)
            except TransportError as error:
                if not error.stale:
                    raise
                answer = await self._pool.send(address, head, body, new_connection=True)
            return answer.status, await answer.read()
        finally:
            if answer is not None:
                answer.close()
