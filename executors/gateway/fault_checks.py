"""Determines whether the engine or the request is at fault if an engine answers 500. Concurrent
requests share equal checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from executors.gateway.engine_exchange import EngineClient
from topics.records import Endpoint

_FAILURES_TO_BLAME = 2


class FaultChecks:
    """Checks engines after errors. verify_real_s: real seconds to wait between an error and the
    check."""

    def __init__(self, engines: EngineClient, verify_real_s: float) -> None:
        self._engines = engines
        self._verify_real_s = verify_real_s
        self._health_checks: dict[Endpoint, asyncio.Task[bool]] = {}
        self._token_probes: dict[Endpoint, asyncio.Task[bool]] = {}

    async def survived_error(self, model: str, endpoint: Endpoint) -> bool:
        """Whether `endpoint` is still healthy after its error."""

        async def check_health() -> bool:
            await asyncio.sleep(self._verify_real_s)
            return await self._engines.is_alive(endpoint, model, generate=False)

        return await _share_check(self._health_checks, endpoint, check_health())

    async def request_is_at_fault(self, model: str, endpoints: Collection[Endpoint]) -> bool:
        """Whether the request is at fault: enough attempts were made, and each of `endpoints`,
        which answered it with 500, can generate a token."""
        if len(endpoints) < _FAILURES_TO_BLAME:
            return False
        probes = [
            _share_check(self._token_probes, at, self._engines.is_alive(at, model, generate=True))
            for at in frozenset(endpoints)
        ]
        return all(await asyncio.gather(*probes))

    def close(self) -> None:
        """Cancel all checks."""
        for task in (*self._health_checks.values(), *self._token_probes.values()):
            task.cancel()


async def _share_check(
    running: dict[Endpoint, asyncio.Task[bool]],
    endpoint: Endpoint,
    check: Coroutine[Any, Any, bool],
) -> bool:
    """The result of `check`, or of the running check of the same endpoint. If one caller is
    cancelled, the check continues for the others."""
    task = running.get(endpoint)
    if task is None:
        task = running[endpoint] = asyncio.create_task(check)
        task.add_done_callback(lambda _: running.pop(endpoint, None))
    else:
        check.close()
    return await asyncio.shield(task)
