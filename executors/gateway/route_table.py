"""The routes of all models: applied, told to those who watch, kept across restarts.

Owns the routers and the file with the last routes. A gateway that starts without a broker serves
by that file; a folder that cannot be written is reported and serving goes on.

No record is believed above what the leadership topic vouches for: one with a leader token that no
claim gave is set aside, so a forged one cannot outrank every later leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from autoscaler.serving.routing import Router, RouteUpdate
from autoscaler.serving.routing_policies import DEFAULT, RoutingPolicy
from executors.gateway.gateway_metrics import Metrics
from executors.private_files import private_folder, write_private
from topics.checks import InvalidRecord
from topics.codec import decode, encode
from topics.records import Routes

log = logging.getLogger(__name__)
_MOST_ASIDE = 8  # routes per model whose leader is not known yet


class RouteTable:
    """Routers by model. settle_real_s: after the first routes, those of other models may still be
    on their way, so for so long an unknown model is waited for and not refused."""

    def __init__(
        self,
        metrics: Metrics,
        state_dir: Path | None,
        settle_real_s: float,
        policy: RoutingPolicy = DEFAULT,
    ) -> None:
        self.routers: dict[str, Router] = {}
        self.names: dict[str, str] = {}  # other names of models, and the models
        self.scored: frozenset[str] = frozenset()  # names that stand for several models
        self._highest: int | None = None
        self._aside: dict[str, list[Routes]] = {}
        self._leavers: list[Callable[[str], None]] = []
        self._metrics = metrics
        self._policy = policy
        self._file = state_dir / "routes.jsonl" if state_dir else None
        self._settle_real_s = settle_real_s
        self._settled_at: float | None = None
        self._watchers: list[Callable[[str], None]] = []
        self._changed = asyncio.Event()
        self._unsaved = asyncio.Event()

    def offer(self, routes: Routes) -> None:
        """Routes from the topic: applied once their leader token is vouched for."""
        if self._highest is not None and routes.leader_token <= self._highest:
            self.apply(routes)
            return
        if self._highest is not None:
            self._metrics.unbacked.inc()
        aside = self._aside.setdefault(routes.model, [])
        aside.append(routes)
        del aside[:-_MOST_ASIDE]

    def vouch(self, highest: int) -> None:
        """No leader has a token above `highest`: what claims one is not gone by any more."""
        self._highest = highest
        for router in self.routers.values():
            if router.routes is not None and router.routes.leader_token > highest:
                log.warning("routes of %s: leader %d is not known", router.model, highest)
                router.distrust()
        aside, self._aside = self._aside, {}
        for offers in aside.values():
            for routes in offers:
                if routes.leader_token <= highest:
                    self.apply(routes)
                else:
                    self._aside.setdefault(routes.model, []).append(routes)

    def withdraw(self, model: str) -> None:
        """`model` is served no longer: its routes are gone."""
        self._aside.pop(model, None)
        if self.routers.pop(model, None) is None:
            return
        log.info("routes of %s: withdrawn", model)
        self._name_all()
        self._unsaved.set()
        for left in self._leavers:
            left(model)

    def apply(self, routes: Routes) -> RouteUpdate:
        """Go by `routes`, tell those who watch; stale ones are refused and counted."""
        router = self.routers.get(routes.model)
        if router is None:
            router = self.routers[routes.model] = Router(routes.model, policy=self._policy)
            if self._settled_at is None:
                self._settled_at = time.monotonic() + self._settle_real_s
        applied = router.apply(routes)
        if applied is RouteUpdate.STALE:
            self._metrics.stale.inc()
        elif applied is RouteUpdate.CHANGED:
            log.info("routes of %s: generation %d", routes.model, routes.generation)
            self._name_all()
            self._unsaved.set()
            self._changed.set()
            self._changed = asyncio.Event()
            self.wake(routes.model)
        return applied

    def watch(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a model's name whenever instances may have come to it."""
        self._watchers.append(changed)

    def watch_leavers(self, left: Callable[[str], None]) -> None:
        """Call `left` with the name of a model whose routes were withdrawn."""
        self._leavers.append(left)

    def _name_all(self) -> None:
        """Other names, but none that two models share or that is a model's own."""
        told = [
            (alias, model)
            for model, router in self.routers.items()
            if router.routes is not None
            for alias in router.routes.aliases
        ]
        self.scored = frozenset(
            model for model, router in self.routers.items() if router.routes and router.routes.split
        )
        shared = Counter(alias for alias, _ in told)
        self.names = {
            alias: model
            for alias, model in told
            if shared[alias] == 1 and alias not in self.routers
        }

    def wake(self, model: str) -> None:
        """Instances may have come to `model`."""
        for changed in self._watchers:
            changed(model)

    async def known(self, model: str, until: float) -> bool | None:
        """Whether `model` has routes; None if no model had any until `until` (monotonic s)."""
        while model not in self.routers and model not in self.names:
            limit = until if self._settled_at is None else min(until, self._settled_at)
            if not await self._wait(limit):
                return None if self._settled_at is None else False
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
    private_folder(path.parent)
    fresh = path.with_suffix(".new")
    write_private(fresh, data)
    fresh.replace(path)
