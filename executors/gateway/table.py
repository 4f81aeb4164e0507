"""The routes of all models: applied, told to those who watch, kept across restarts.

Owns the routers and the file with the last routes. A gateway that starts without a broker serves
by that file; a folder that cannot be written is reported and serving goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from autoscaler.serving.routing import Applied, Router
from executors.gateway.metrics import Metrics
from topics.checks import InvalidRecord
from topics.codec import decode, encode
from topics.records import Routes

log = logging.getLogger(__name__)


class RouteTable:
    """Routers by model. settle_real_s: after the first routes, those of other models may still be
    on their way, so for so long an unknown model is waited for and not refused."""

    def __init__(self, metrics: Metrics, state_dir: Path | None, settle_real_s: float) -> None:
        self.routers: dict[str, Router] = {}
        self._metrics = metrics
        self._file = state_dir / "routes.jsonl" if state_dir else None
        self._settle_real_s = settle_real_s
        self._settled_at: float | None = None
        self._watchers: list[Callable[[str], None]] = []
        self._changed = asyncio.Event()
        self._unsaved = asyncio.Event()

    def apply(self, routes: Routes) -> Applied:
        """Go by `routes`, tell those who watch; stale ones are refused and counted."""
        router = self.routers.get(routes.model)
        if router is None:
            router = self.routers[routes.model] = Router(routes.model)
            if self._settled_at is None:
                self._settled_at = time.monotonic() + self._settle_real_s
        applied = router.apply(routes)
        if applied is Applied.STALE:
            self._metrics.stale.inc()
        elif applied is Applied.CHANGED:
            log.info("routes of %s: generation %d", routes.model, routes.generation)
            self._unsaved.set()
            self._changed.set()
            self._changed = asyncio.Event()
            self.wake(routes.model)
        return applied

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a model's name whenever instances may have come to it."""
        self._watchers.append(changed)

    def wake(self, model: str) -> None:
        """Instances may have come to `model`."""
        for changed in self._watchers:
            changed(model)

    async def known(self, model: str, until: float) -> bool | None:
        """Whether `model` has routes; None if no model had any until `until` (monotonic s)."""
        while model not in self.routers:
            limit = until if self._settled_at is None else min(until, self._settled_at)
            if not await self._wait(limit):
                return None if self._settled_at is None else model in self.routers
        return True

    async def _wait(self, until: float) -> bool:
        left = until - time.monotonic()
        if left <= 0.0:
            return False
        try:
            async with asyncio.timeout(left):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def load(self) -> int:
        """Apply the routes of the last run; how many there were."""
        if self._file is None or not self._file.exists():
            return 0
        count = 0
        try:
            for line in self._file.read_bytes().splitlines():
                self.apply(decode("routes", line))
                count += 1
        except (OSError, InvalidRecord) as error:
            self._metrics.state_errors.inc()
            log.warning("%s: cannot be used: %s", self._file, error)
        return count

    async def keep_saved(self) -> None:
        """Write the routes whenever they changed, for ever, off the event loop.

        What could not be written is written as soon as the folder takes it.
        """
        pause_s = 0.2
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            if self._file is None:
                continue
            known = [router.routes for router in self.routers.values() if router.routes]
            data = b"".join(encode(routes) + b"\n" for routes in known)
            try:
                await asyncio.to_thread(_replace, self._file, data)
                pause_s = 0.2
            except OSError as error:
                self._metrics.state_errors.inc()
                log.warning("%s: the routes are not saved: %s", self._file, error)
                self._unsaved.set()
                pause_s = min(60.0, 2 * pause_s)
            await asyncio.sleep(pause_s)


def _replace(path: Path, data: bytes) -> None:
    """Write a whole new file and put it in the place of the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
