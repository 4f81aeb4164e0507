"""HTTP client for a user's scorer, with a time limit per request.

If the scorer fails, the request continues without a score. After several consecutive failures, only
one request at a time queries the scorer, to check whether it has recovered; all others skip it.

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

_MAX_RESPONSE_BYTES = 64 * 1024
_KEEP_ALIVE_S = 3.0
_MAX_CONCURRENT = 64
_FAILURES_TO_PAUSE = 5
_PAUSE_S = 2.0


class ScorerClient:
    """Requests scores. failures: requests without a score since the start, by reason."""

    def __init__(self, connect_s: float) -> None:
        self._pool = EnginePool(connect_s, _KEEP_ALIVE_S, _MAX_RESPONSE_BYTES)
        self._in_flight = 0
        self._consecutive_failures = 0
        self._retry_at_s = 0.0
        self.failures: Counter[str] = Counter()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def score(
        self, source: ScoreSource, service: str, prompt: str, tokens: int
    ) -> float | None:
        """The score from the scorer of `source`; None without a valid score in time."""
        now_s = asyncio.get_running_loop().time()
        if self._consecutive_failures >= _FAILURES_TO_PAUSE and now_s < self._retry_at_s:
            self.failures["resting"] += 1
            return None
        if self._in_flight >= _MAX_CONCURRENT:
            self.failures["busy"] += 1
            return None
        if self._consecutive_failures >= _FAILURES_TO_PAUSE:
            self._retry_at_s = now_s + _PAUSE_S  # only this request checks the scorer
        self._pool.close_idle()
        self._in_flight += 1
        try:
            async with asyncio.timeout(source.limit_ms / 1000.0):
                status, raw = await self._post(source.url, service, prompt, tokens)
        except TimeoutError:
            self._count_failure("timeout")
            return None
        except (TransportError, NoFileDescriptors):
            self._count_failure("connection")
            return None
        finally:
            self._in_flight -= 1
        if status != 200:
            self._count_failure("status")
            return None
        try:
            score = valid_score(source, orjson.loads(raw)["score"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            score = None
        if score is None:
            self._count_failure("invalid")
            return None
        self._consecutive_failures = 0
        return score

    def _count_failure(self, why: str) -> None:
        self.failures[why] += 1
        self._consecutive_failures += 1
        if self._consecutive_failures == _FAILURES_TO_PAUSE:
            self._retry_at_s = asyncio.get_running_loop().time() + _PAUSE_S

    async def _post(self, url: str, service: str, prompt: str, tokens: int) -> tuple[int, bytes]:
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
