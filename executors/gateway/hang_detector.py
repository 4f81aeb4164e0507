"""Detects engines that may hang: engines with requests that sent no output for any of them for too
long. An overloaded engine makes only some requests wait, so an engine is a suspect only if it is
silent for all its requests. Long responses without streaming are silent too, so callers check a
suspect before they eject it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topics.records import Endpoint


class EngineActivity:
    """The time of an engine's last output, in monotonic real seconds."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0


class HangDetector:
    """Finds suspects. Times are monotonic real seconds. limit_s: silence that makes an engine a
    suspect."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._activity: dict[Endpoint, EngineActivity] = {}
        self._attempts: dict[Endpoint, dict[asyncio.Timeout, float]] = {}

    @asynccontextmanager
    async def attempt(self, endpoint: Endpoint) -> AsyncIterator[asyncio.Timeout]:
        """Context manager of one attempt at `endpoint`; raises TimeoutError if the engine hangs."""
        async with asyncio.timeout(None) as scope:
            self.resume_attempt(endpoint, scope)
            try:
                yield scope
            finally:
                self.pause_attempt(endpoint, scope)

    def pause_attempt(self, endpoint: Endpoint, scope: asyncio.Timeout) -> None:
        """Ignore the engine's silence while the gateway does not read from the engine, for example
        because the client reads slowly."""
        self._attempts.get(endpoint, {}).pop(scope, None)

    def resume_attempt(self, endpoint: Endpoint, scope: asyncio.Timeout) -> None:
        """Count the engine's silence again from now on."""
        attempts = self._attempts.setdefault(endpoint, {})
        attempts[scope] = time.monotonic()

    def record_activity(self, endpoint: Endpoint) -> None:
        """Record that `endpoint` sent data now."""
        self.activity(endpoint).last_s = time.monotonic()

    def activity(self, endpoint: Endpoint) -> EngineActivity:
        """The activity record of `endpoint`. Callers that get many blocks update the record
        directly."""
        return self._activity.setdefault(endpoint, EngineActivity())

    def suspects(self) -> list[Endpoint]:
        """Engines that may hang now."""
        now = time.monotonic()
        suspects = []
        for endpoint, attempts in self._attempts.items():
            if attempts:
                since = max(self.activity(endpoint).last_s, min(attempts.values()))
                if now - since >= self._limit_s:
                    suspects.append(endpoint)
        return suspects

    def cancel_attempts(self, endpoint: Endpoint) -> None:
        """End all attempts at `endpoint` with TimeoutError."""
        now = asyncio.get_running_loop().time()
        for scope in list(self._attempts.get(endpoint, ())):
            if not scope.expired():
                scope.reschedule(now)

    def forget(self, live: frozenset[Endpoint]) -> None:
        """Forget engines that are not in `live` and have no attempts."""
        for endpoint in self._activity.keys() - live - self._attempts.keys():
            del self._activity[endpoint]
        idle = [at for at, attempts in self._attempts.items() if not attempts]
        for endpoint in idle:
            del self._attempts[endpoint]
