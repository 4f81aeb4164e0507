"""A local copy of one kind of objects, kept up to date by list and watch.

It survives restarts of the API server, expired versions (410), expired tokens, throttling and dead
connections. While the server is away, the copy keeps its last content. An object that cannot be
read keeps its last readable form and is named in `fault`; all others stay up to date.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from executors.kubernetes.kube_client import Change, KubeApi, Manifest
from executors.kubernetes.kube_errors import Expired, Forbidden, KubeError, NotFound, Temporary
from executors.kubernetes.kube_kinds import Kind

log = logging.getLogger(__name__)

T = TypeVar("T")

UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of parsing an object that another program wrote."""

_NONE: Mapping[str, Any] = {}

WATCH_S = 240  # a connection is renewed after this time
_DENIED_S = 10.0  # a starting server may not know the rights yet
_SILENT_S = 30.0  # a watch that is silent for WATCH_S plus this time is opened again
_NO_KIND_PAUSE_S = 60.0
_LASTED_S = 2.0  # a watch that was open for this long works
_LEAST_PAUSE_S, _MOST_PAUSE_S, _NO_RIGHT_PAUSE_S = 0.2, 5.0, 1.0


class ObjectCache(Generic[T]):
    """Objects by name. parse: the parsed object.

    labels: label selector. everywhere: objects of all namespaces, by "NAMESPACE/NAME". synced:
    whether the objects have been listed at least once. absent: whether the server lacks the kind.
    """

    def __init__(
        self,
        api: KubeApi,
        kind: Kind,
        parse: Callable[[Manifest], T],
        labels: str = "",
        everywhere: bool = False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self.kind = kind
        self._parse = parse
        self._labels = labels
        self._everywhere = everywhere
        self._on_change = on_change
        self.objects: dict[str, T] = {}
        self.synced = False
        self.absent = False
        self._forbidden_s = math.inf
        self._unreachable = ""
        self._unreadable: dict[str, str] = {}
        self._put_s: dict[str, float] = {}

    @property
    def denied(self) -> bool:
        """Whether this account has lacked the right to read the kind for a while."""
        return time.monotonic() - self._forbidden_s >= _DENIED_S

    @property
    def fault(self) -> str:
        """The reason why the copy may be old or incomplete, "" = it is current."""
        if self._unreachable or not self._unreadable:
            return self._unreachable
        first = next(iter(self._unreadable.values()))
        more = len(self._unreadable) - 1
        return f"{first}, and {more} more" if more else first

    def put(self, manifest: Manifest) -> None:
        """Store an object that a write returned, before the watch reports it."""
        self._put_s[self._name(manifest)] = time.monotonic()
        self._store(manifest)

    async def run(self) -> None:
        """List and watch until cancelled."""
        version, pause_s = "", 0.0
        while True:
            began_s = time.monotonic()
            try:
                if not version:
                    version = await self._list()
                version = await self._watch(version)
            except Expired:
                version = ""
            except NotFound as error:  # the server has no such kind
                self.absent, version = True, ""
                self._failed(error)
                await asyncio.sleep(_NO_KIND_PAUSE_S)
            except Forbidden as error:
                self._forbidden_s = min(self._forbidden_s, time.monotonic())
                pause_s = max(pause_s, _NO_RIGHT_PAUSE_S)
                self._failed(error)
            except Temporary as error:
                pause_s = max(pause_s, error.retry_after_s)
                self._failed(error)
            except KubeError as error:  # 401 among others: list again, with a new client
                version = ""
                self._failed(error)
            if time.monotonic() - began_s > _LASTED_S and not self._unreachable:
                pause_s = 0.0
            jitter = random.uniform(0.8, 1.2)  # noqa: S311  spreads the load of many clients
            await asyncio.sleep(min(_MOST_PAUSE_S, pause_s) * jitter)
            pause_s = min(_MOST_PAUSE_S, max(_LEAST_PAUSE_S, pause_s * 2))

    # -- inside -------------------------------------------------------------------------------

    async def _list(self) -> str:
        began_s = time.monotonic()
        listing = await self._api.list_objects(self.kind, self._labels, self._everywhere)
        former, self.objects = self.objects, {}
        for raw in listing.objects:
            self._store(raw, former)
        listed = {self._name(raw) for raw in listing.objects}
        self._unreadable = {k: why for k, why in self._unreadable.items() if k in listed}
        # An object that was written while the list was read may be missing in the list.
        for name, put_s in self._put_s.items():
            if put_s >= began_s and name in former:
                self.objects.setdefault(name, former[name])
        self._put_s.clear()
        self.synced, self.absent, self._unreachable = True, False, ""
        self._forbidden_s = math.inf
        self._on_change()
        return listing.version

    async def _watch(self, version: str) -> str:
        """Follow the changes after `version`; returns the last version when the watch ends."""
        changes = self._api.watch(self.kind, version, self._labels, WATCH_S, self._everywhere)
        following: asyncio.Future[Change] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(changes))
                done, _ = await asyncio.wait({following}, timeout=_LASTED_S)
                if not done:
                    self._unreachable = ""  # the watch is open, and there is no change
                    done, _ = await asyncio.wait({following}, timeout=WATCH_S + _SILENT_S)
                if not done:
                    return version
                try:
                    change = following.result()
                except StopAsyncIteration:
                    return version
                self._unreachable = ""
                version = str(change.object["metadata"]["resourceVersion"])
                if change.deleted:
                    self._forget(self._name(change.object))
                else:
                    self._store(change.object)
                self._on_change()
        finally:
            if following is not None and not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            close = getattr(changes, "aclose", None)
            if close is not None:
                with contextlib.suppress(KubeError):
                    await close()

    def _store(self, manifest: Manifest, former: Mapping[str, T] = _NONE) -> None:
        """Store an object, or else its form in `former`."""
        name = self._name(manifest)
        try:
            self.objects[name] = self._parse(manifest)
            self._unreadable.pop(name, None)
        except UNREADABLE as error:
            if name in former:
                self.objects[name] = former[name]
            why = f"{self.kind.plural}/{name} cannot be read: {type(error).__name__}: {error}"
            if self._unreadable.get(name) != why:
                log.error("%s", why)
            self._unreadable[name] = why

    def _forget(self, name: str) -> None:
        self.objects.pop(name, None)
        self._unreadable.pop(name, None)

    def _name(self, manifest: Manifest) -> str:
        meta = manifest["metadata"]
        name = str(meta["name"])
        return f"{meta.get('namespace', '')}/{name}" if self._everywhere else name

    def _failed(self, error: KubeError) -> None:
        why = f"cannot read {self.kind.plural}: {error}"
        if not self._unreachable:
            log.warning("%s", why)
        self._unreachable = why
