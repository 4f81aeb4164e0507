"""Asking engines how they are, as seldom as that takes.

Holds what counts as a sign of life and when the costly question is asked. An engine whose tokens
grow is alive, however slowly its HTTP side answers; only one that shows no progress is asked to
generate a token, and only that answer, not /health, says that its core works. Knows no assignment
and no process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from executors.engines.engine_protocol import Contact, EngineKind, Load

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Real seconds. ready_s, load_s: for these answers. first_token_s: the first request of an
    engine may compile. quiet_s: without progress for so long, it is asked for a token; hangs_s: a
    token that takes longer counts as a miss, and as a sign of life whenever it comes."""

    ready_s: float = 2.0
    load_s: float = 10.0
    first_token_s: float = 60.0
    quiet_s: float = 5.0
    hangs_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Answered:
    """healthy: it showed that it can serve, or did not; None = nothing is known either way.
    load: None when it was not told. asleep: it was told to sleep, and does."""

    healthy: bool | None
    load: Load | None = None
    asleep: bool = False


class Watch:
    """One process of one engine."""

    def __init__(self, kind: EngineKind, engine: Contact, patience: Patience) -> None:
        self._kind = kind
        self._engine = engine
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._tokens = -1.0
        self._alive_s = self._loop.time()
        self._asked_s = 0.0
        self._asking: asyncio.Task[bool] | None = None

    async def first(self) -> Answered:
        """Of an engine that starts or has changed its role: whether it generates."""
        if not await _within(self._patience.ready_s, self._kind.ready(self._engine)):
            return Answered(None)
        if not await _within(self._patience.first_token_s, self._kind.alive(self._engine)):
            return Answered(None)
        self._alive_s = self._loop.time()
        return Answered(True)

    async def again(self) -> Answered:
        """Of an engine that serves: its load, and whether it shows life."""
        load = await self.load()
        now_s = self._loop.time()
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            if asked.cancelled() or not asked.result():
                return Answered(False, load)
            self._alive_s = now_s
        if now_s - self._alive_s < self._patience.quiet_s:
            return Answered(True, load)
        if self._asking is None:
            self._asked_s = now_s
            self._asking = asyncio.create_task(self._alive())
        hangs = now_s - self._asked_s >= self._patience.hangs_s
        return Answered(False if hangs else None, load)

    async def asleep(self) -> Answered:
        """Of an engine that is to sleep: whether it does."""
        done = await _within(self._patience.first_token_s, self._kind.sleep(self._engine))
        return Answered(None, None if done else await self.load(), bool(done))

    async def woken(self) -> Answered:
        """Of an engine that is to wake: whether it generates again."""
        if not await _within(self._patience.first_token_s, self._kind.wake(self._engine)):
            return Answered(None)
        return await self.first()

    async def load(self) -> Load | None:
        """What it holds; progress that it shows is a sign of life."""
        found = await _within(self._patience.load_s, self._kind.load(self._engine))
        if found is not None and found.tokens != self._tokens:
            self._tokens, self._alive_s = found.tokens, self._loop.time()
        return found

    def close(self) -> None:
        """Ask nothing any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _alive(self) -> bool:
        return await self._kind.alive(self._engine)


async def _within(limit_s: float, question: Coroutine[Any, Any, _T]) -> _T | None:
    try:
        return await asyncio.wait_for(question, limit_s)
    except TimeoutError:
        return None
