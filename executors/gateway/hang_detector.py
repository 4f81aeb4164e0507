"""Which engines may hang: requests are there, and for too long nothing came back for any of them.

Owns the attempts under way per engine and when each engine last said something. An overloaded
engine lets single requests wait long and is no hung one: only silence towards all counts. Silence
is a suspicion and no proof, because long answers that are not streamed are silent too; whoever
asks here looks closer before an engine is taken out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topics.records import Endpoint


class Voice:
    """When an engine last said something: monotonic real seconds."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0


class HangDetector:
    """Times are monotonic, in real seconds. limit_s: silence that makes a suspect."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._said: dict[Endpoint, Voice] = {}
        self._under_way: dict[Endpoint, dict[asyncio.Timeout, float]] = {}

    @asynccontextmanager
    async def attempt(self, endpoint: Endpoint) -> AsyncIterator[asyncio.Timeout]:
        """Around one attempt at `endpoint`: TimeoutError comes out of it if the engine hangs."""
        async with asyncio.timeout(None) as scope:
            self.listen(endpoint, scope)
            try:
                yield scope
            finally:
                self.ignore(endpoint, scope)

    def ignore(self, endpoint: Endpoint, scope: asyncio.Timeout) -> None:
        """The attempt waits for somebody else: the engine's silence proves nothing while nobody
        listens (a client that reads slowly is no engine that hangs)."""
        self._under_way.get(endpoint, {}).pop(scope, None)

    def listen(self, endpoint: Endpoint, scope: asyncio.Timeout) -> None:
        """The attempt waits for the engine from now on."""
        under_way = self._under_way.setdefault(endpoint, {})
        under_way[scope] = time.monotonic()

    def heard(self, endpoint: Endpoint) -> None:
        """Something came from `endpoint`."""
        self.voice(endpoint).last_s = time.monotonic()

    def voice(self, endpoint: Endpoint) -> Voice:
        """Where to note that something came, for those who hear a lot of `endpoint`."""
        return self._said.setdefault(endpoint, Voice())

    def suspects(self) -> list[Endpoint]:
        """The engines that may hang now."""
        now = time.monotonic()
        found = []
        for endpoint, under_way in self._under_way.items():
            if under_way:
                since = max(self.voice(endpoint).last_s, min(under_way.values()))
                if now - since >= self._limit_s:
                    found.append(endpoint)
        return found

    def give_up(self, endpoint: Endpoint) -> None:
        """End every attempt at `endpoint`."""
        now = asyncio.get_running_loop().time()
        for scope in list(self._under_way.get(endpoint, ())):
            if not scope.expired():
                scope.reschedule(now)

    def forget(self, live: frozenset[Endpoint]) -> None:
        """Drop what is known of engines that are in no routes and have nothing under way."""
        for endpoint in self._said.keys() - live - self._under_way.keys():
            del self._said[endpoint]
        idle = [at for at, under_way in self._under_way.items() if not under_way]
        for endpoint in idle:
            del self._under_way[endpoint]
