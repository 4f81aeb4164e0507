"""Probes of one engine: readiness, liveness and load, with few costly requests. Growing token
counters prove that an engine is alive, however slowly it answers HTTP. Only an engine without
progress is probed with a request for one token, because that proves that the core works, while
/health does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from executors.engines.engine_protocol import Contact, EngineKind, Load

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProbeTimeouts:
    """Timeouts in real seconds.

    ready_timeout_s, load_timeout_s: limits of the readiness and load requests.
    first_token_timeout_s: limit of the first token request, during which an engine may compile.
    no_progress_s: time without progress after which the probe requests a token. token_timeout_s: if
    the token takes longer, the probe fails; the token is still a sign of life when it arrives.
    """

    ready_timeout_s: float = 2.0
    load_timeout_s: float = 10.0
    first_token_timeout_s: float = 60.0
    no_progress_s: float = 5.0
    token_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one probe.

    healthy: whether the engine can serve; None = unknown. load: None if the engine did not report
    it. asleep: whether the engine confirmed that it sleeps.
    """

    healthy: bool | None
    load: Load | None = None
    asleep: bool = False


class EngineProbe:
    """The probe of one engine process."""

    def __init__(self, kind: EngineKind, engine: Contact, timeouts: ProbeTimeouts) -> None:
        self._kind = kind
        self._engine = engine
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._tokens = -1.0
        self._alive_s = self._loop.time()
        self._token_asked_s = 0.0
        self._token_task: asyncio.Task[bool] | None = None

    async def check_ready(self) -> ProbeResult:
        """Probe an engine that starts or has changed its role. The engine is healthy if it
        generates a token."""
        if not await _within(self._timeouts.ready_timeout_s, self._kind.ready(self._engine)):
            return ProbeResult(None)
        if not await _within(self._timeouts.first_token_timeout_s, self._kind.alive(self._engine)):
            return ProbeResult(None)
        self._alive_s = self._loop.time()
        return ProbeResult(True)

    async def check_live(self) -> ProbeResult:
        """Probe a serving engine: its load, and whether it makes progress."""
        load = await self.load()
        now_s = self._loop.time()
        if self._token_task is not None and self._token_task.done():
            asked, self._token_task = self._token_task, None
            if asked.cancelled() or not asked.result():
                return ProbeResult(False, load)
            self._alive_s = now_s
        if now_s - self._alive_s < self._timeouts.no_progress_s:
            return ProbeResult(True, load)
        if self._token_task is None:
            self._token_asked_s = now_s
            self._token_task = asyncio.create_task(self._alive())
        hangs = now_s - self._token_asked_s >= self._timeouts.token_timeout_s
        return ProbeResult(False if hangs else None, load)

    async def put_to_sleep(self) -> ProbeResult:
        """Put the engine to sleep; the result states whether the engine sleeps."""
        done = await _within(self._timeouts.first_token_timeout_s, self._kind.sleep(self._engine))
        return ProbeResult(None, None if done else await self.load(), bool(done))

    async def wake_up(self) -> ProbeResult:
        """Wake the engine. The engine is healthy if it then generates a token."""
        if not await _within(self._timeouts.first_token_timeout_s, self._kind.wake(self._engine)):
            return ProbeResult(None)
        return await self.check_ready()

    async def load(self) -> Load | None:
        """The engine's load. Progress in the engine's token counters counts as a sign of life."""
        found = await _within(self._timeouts.load_timeout_s, self._kind.load(self._engine))
        if found is not None and found.tokens != self._tokens:
            self._tokens, self._alive_s = found.tokens, self._loop.time()
        return found

    def close(self) -> None:
        """Cancel a pending token request."""
        if self._token_task is not None:
            self._token_task.cancel()

    async def _alive(self) -> bool:
        return await self._kind.alive(self._engine)


async def _within(limit_s: float, question: Coroutine[Any, Any, _T]) -> _T | None:
    try:
        return await asyncio.wait_for(question, limit_s)
    except TimeoutError:
        return None
