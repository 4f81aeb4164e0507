"""Which engines hang: requests are there, and for too long nothing came back for any of them.

Owns the attempts under way per engine and when each engine last said something. An overloaded
engine lets single requests wait long and is no hung one: only silence towards all counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topics.records import Endpoint


class Stalls:
    """Times are the event loop's, in real seconds. limit_s: silence that proves a hang."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._said: dict[Endpoint, float] = {}
        self._under_way: dict[Endpoint, dict[asyncio.Timeout, float]] = {}

    @asynccontextmanager
    async def attempt(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """Around one attempt at `endpoint`: TimeoutError comes out of it if the engine hangs."""
        under_way = self._under_way.setdefault(endpoint, {})
        async with asyncio.timeout(None) as scope:
            under_way[scope] = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                del under_way[scope]

    def heard(self, endpoint: Endpoint) -> None:
        """Something came from `endpoint`."""
        self._said[endpoint] = asyncio.get_running_loop().time()

    def hung(self) -> list[Endpoint]:
        """The engines that hang now."""
        now = asyncio.get_running_loop().time()
        found = []
        for endpoint, under_way in self._under_way.items():
            if under_way:
                since = max(self._said.get(endpoint, 0.0), min(under_way.values()))
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
        for endpoint in self._said.keys() - live:
            del self._said[endpoint]
        idle = [at for at, under_way in self._under_way.items() if not under_way]
        for endpoint in idle:
            del self._under_way[endpoint]
