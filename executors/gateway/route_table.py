"""The routes of all models: received from the controller, saved to a file, loaded at a restart. A
gateway that starts without a broker uses the saved routes. If the file cannot be written, the
gateway reports the error and continues. Routes are applied only if their leader token does not
exceed the highest token of the leadership topic. Otherwise forged routes with a higher token would
take precedence over the routes of all later leaders.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from autoscaler.serving.request_router import Router, RouteUpdate
from autoscaler.serving.routing_policies import DEFAULT, RoutingPolicy
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.withdrawn_names import MOST_NAMES, WithdrawnNames, order_of
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.records import Routes
from topics.storage.checked_lines import checked_line, read_lines
from topics.storage.durable_files import replace_file
from topics.storage.private_files import private_folder

log = logging.getLogger(__name__)
_MAX_UNTRUSTED = 8  # maximum of stored routes per model with an unknown leader token
_UNRENEWED_REAL_S = 60.0


class RouteTable:
    """Routers by model, at most `MOST_NAMES`. settle_real_s: real seconds after the first routes
    during which routes of other models may still arrive. During this time, requests for unknown
    models wait instead of being refused. declared: models that the gateway's options declare.
    known: whether routes were loaded or applied, or the topic was read and has none."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        state_dir: Path | None,
        settle_real_s: float,
        policy: RoutingPolicy = DEFAULT,
        declared: Collection[str] = (),
    ) -> None:
        self.routers: dict[str, Router] = {}
        self.withdrawn = WithdrawnNames(declared)
        self.leaving: dict[str, Router] = {}  # withdrawn models, whose requests in flight finish
        self.aliases: dict[str, str] = {}  # alias -> model
        self.adapters: dict[str, str] = {}  # LoRA adapter -> model
        self.score_routed: frozenset[str] = frozenset()  # services that route to several models
        self._highest_token: int | None = None
        self._untrusted: dict[str, list[Routes]] = {}
        self._withdrawal_watchers: list[Callable[[str], None]] = []
        self._metrics = metrics
        self._policy = policy
        self._file = state_dir / "routes.jsonl" if state_dir else None
        self._settle_real_s = settle_real_s
        self._settled_s: float | None = None
        self.known = self._reading = False
        self._watchers: list[Callable[[str], None]] = []
        self._changed = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._unrenewed_since_s: dict[str, float] = {}

    def offer(self, routes: Routes) -> None:
        """Apply routes from the topic once their leader token is known."""
        highest = self._highest_token
        if highest is not None and routes.leader_token > highest:
            self._metrics.unbacked_routes.inc()
        elif highest is not None and not self._reading:
            self.apply(routes)
            return
        if routes.model not in self._untrusted and len(self._untrusted) >= MOST_NAMES:
            return
        untrusted = self._untrusted.setdefault(routes.model, [])
        untrusted.append(routes)
        del untrusted[:-_MAX_UNTRUSTED]

    def set_highest_token(self, highest: int) -> None:
        """Set the highest token of any leader, and stop trusting routes with a higher one."""
        self._highest_token = highest
        for router in self.routers.values():
            if router.routes is not None and router.routes.leader_token > highest:
                log.warning("routes of %s: unknown leader token above %d", router.model, highest)
                router.distrust()
        self.withdrawn.distrust(highest)
        self._apply_trusted()

    def _apply_trusted(self) -> None:
        if self._highest_token is None or self._reading:
            return
        untrusted, self._untrusted = self._untrusted, {}
        for offers in untrusted.values():
            for routes in offers:
                if routes.leader_token <= self._highest_token:
                    self.apply(routes)
                else:
                    self._untrusted.setdefault(routes.model, []).append(routes)

    def begin_cluster(self) -> None:
        """Keep all routes until those of a new cluster have been read (`end_settling`), and accept
        them then. The new cluster counts leaders and generations from the start. Its highest token
        may already be known, because another reader reads the leadership topic."""
        for router in self.routers.values():
            router.distrust()
        self.withdrawn.distrust(-1)
        self._untrusted.clear()
        self._reading = True

    def _withdraw(self, routes: Routes) -> RouteUpdate:
        """Apply withdrawn `routes`: new requests are refused, and those in flight finish."""
        router = self.routers.get(routes.model)
        if router is not None:
            if router.routes is not None and order_of(routes) < order_of(router.routes):
                self._metrics.stale_routes.inc()
                return RouteUpdate.STALE
            self.leaving[routes.model] = router
        self.withdrawn.add(routes)
        self._remove(routes.model)
        return RouteUpdate.CHANGED

    def finalize(self, model: str) -> None:
        """Remove `model`, whose routes were deleted from the topic."""
        self._untrusted.pop(model, None)
        self.withdrawn.finalize(model)
        self._remove(model)
        self.leaving.pop(model, None)

    def _remove(self, model: str) -> None:
        self._unsaved.set()
        self._unrenewed_since_s.pop(model, None)
        if self.routers.pop(model, None) is not None:
            log.info("routes of %s: withdrawn", model)
            self._update_aliases()
            self._announce_change()
        for withdrawn in self._withdrawal_watchers:
            withdrawn(model)

    def finalize_unrenewed(self, now_s: float) -> None:
        """Remove models whose routes the leader no longer renews. This gateway has then missed
        their deletion. A leader renews all routes, so if those of another model are newer by more
        than the validity, for a minute, the leader has deleted these. Without a leader, all routes
        stay. now_s: monotonic time."""
        held = [router.routes for router in self.routers.values() if router.routes]
        newest = max(((r.leader_token, r.said_ms) for r in held), default=(0, 0))
        for routes in held:
            expired_ms = routes.said_ms + routes.valid_ms
            renewed = not routes.valid_ms or (routes.leader_token, expired_ms) >= newest
            if renewed or expired_ms >= newest[1]:
                self._unrenewed_since_s.pop(routes.model, None)
            elif now_s - self._unrenewed_since_s.setdefault(routes.model, now_s) > (
                _UNRENEWED_REAL_S
            ):
                self.finalize(routes.model)

    def apply(self, routes: Routes) -> RouteUpdate:
        """Apply `routes` and notify watchers. Stale routes are refused and counted, and so are
        those of further models above `MOST_NAMES`."""
        router = self.routers.get(routes.model)
        full = router is None and len(self.routers) >= MOST_NAMES
        if self.withdrawn.supersedes(routes) or (full and not routes.withdrawn):
            self._metrics.stale_routes.inc()
            return RouteUpdate.STALE
        if routes.withdrawn:
            return self._withdraw(routes)
        if router is None:
            router = self.routers[routes.model] = Router(routes.model, policy=self._policy)
            if self._settled_s is None:
                self._settled_s = time.monotonic() + self._settle_real_s
        applied = router.apply(routes)
        self.known = True
        if applied is RouteUpdate.STALE:
            self._metrics.stale_routes.inc()
        elif applied is RouteUpdate.CHANGED:
            log.info("routes of %s: generation %d", routes.model, routes.generation)
            self.withdrawn.declare_again(routes.model)
            self.leaving.pop(routes.model, None)
            self._unsaved.set()
            self._update_aliases()
            self._announce_change()
            self.notify(routes.model)
        return applied

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def end_settling(self) -> None:
        """Note that all routes of the topic have been read: if there are some, every other model is
        unknown."""
        self.known, self._reading = True, False
        self._apply_trusted()
        if self._settled_s is not None:
            self._settled_s = time.monotonic()
            self._announce_change()

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a model's name whenever it may have gained capacity."""
        self._watchers.append(changed)

    def on_withdrawal(self, withdrawn: Callable[[str], None]) -> None:
        """Call `withdrawn` with the name of a model whose routes were withdrawn or deleted."""
        self._withdrawal_watchers.append(withdrawn)

    def _update_aliases(self) -> None:
        """Rebuild `aliases`, `adapters` and `score_routed`. A name that several models share, or
        that is itself a model's name, is no alias and no adapter."""
        pairs = [
            (alias, model)
            for model, router in self.routers.items()
            if router.routes is not None
            for alias in router.routes.aliases
        ]
        self.score_routed = frozenset(
            model for model, router in self.routers.items() if router.routes and router.routes.split
        )
        adapters = [
            (adapter, model)
            for model, router in self.routers.items()
            if router.routes is not None
            for adapter in router.routes.adapters
        ]
        shared = Counter(name for name, _ in (*pairs, *adapters))
        self.adapters = {
            adapter: model
            for adapter, model in adapters
            if shared[adapter] == 1 and adapter not in self.routers
        }
        self.aliases = {
            alias: model
            for alias, model in pairs
            if shared[alias] == 1 and alias not in self.routers
        }

    def resolve(self, name: str) -> tuple[str, str]:
        """(Model, adapter) for the name, alias or adapter `name`; adapter is "" unless the name is
        an adapter. An unknown name is returned as the model."""
        if name in self.adapters:
            return self.adapters[name], name
        return self.aliases.get(name, name), ""

    def notify(self, model: str) -> None:
        """Tell watchers that `model` may have gained capacity."""
        for changed in self._watchers:
            changed(model)

    async def wait_for_routes(self, model: str, until: float) -> bool | None:
        """Wait until `model` has routes and return True; False if it has none at `until` (monotonic
        s). None if no model has any routes then."""
        while not (model in self.routers or model in self.aliases or model in self.adapters):
            if model in self.withdrawn:
                return False
            limit = until if self._settled_s is None else min(until, self._settled_s)
            if not await self._wait(limit):
                return None if self._settled_s is None else False
        return True

    async def _wait(self, until: float) -> bool:
        remaining_s = until - time.monotonic()
        if remaining_s <= 0.0:
            return False
        try:
            async with asyncio.timeout(remaining_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def load(self) -> int:
        """Apply the saved routes and return their number. A damaged line is reported, and loses
        the routes of its model only."""
        if self._file is None or not self._file.exists():
            return 0
        count = damaged = 0
        try:
            for text in read_lines(self._file):
                try:
                    if text is not None:
                        self.apply(decode("routes", text))
                        count += 1
                        continue
                except InvalidValue as error:
                    log.warning("%s: %s", self._file, error)
                damaged += 1
        except OSError as error:
            self._metrics.state_errors.inc()
            log.warning("%s: cannot load routes: %s", self._file, error)
        if damaged:
            self._metrics.state_errors.inc(damaged)
            log.warning(
                "%s: %d damaged lines are skipped, %d routes are loaded", self._file, damaged, count
            )
        return count

    async def save_changes(self) -> None:
        """Save the routes after each change, outside the event loop. Never returns; failed writes
        are retried."""
        pause_s = 0.2
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            if self._file is None:
                continue
            saved = [router.routes for router in self.routers.values() if router.routes]
            saved += self.withdrawn
            data = b"".join(checked_line(encode(routes)) for routes in saved)
            try:
                await asyncio.to_thread(_replace, self._file, data)
                pause_s = 0.2
            except OSError as error:
                self._metrics.state_errors.inc()
                log.warning("%s: cannot save routes: %s", self._file, error)
                self._unsaved.set()
                pause_s = min(60.0, 2 * pause_s)
            await asyncio.sleep(pause_s)


def _replace(path: Path, data: bytes) -> None:
    private_folder(path.parent)
    replace_file(path, data)
