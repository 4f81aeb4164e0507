"""The API server as a standby sees it: it may look, but another executor acts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

from executors.kubernetes.kube_client import Change, KubeApi, Listing, Manifest, Scale
from executors.kubernetes.kube_kinds import Kind


class StandbyApi:
    """`KubeApi` whose writes never begin: they wait until they are cancelled."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    @property
    def namespace(self) -> str:
        """See `KubeApi`."""
        return self._api.namespace

    async def list_objects(self, kind: Kind, labels: str = "", everywhere: bool = False) -> Listing:
        """See `KubeApi`."""
        return await self._api.list_objects(kind, labels, everywhere)

    def watch(
        self, kind: Kind, version: str, labels: str, limit_s: int, everywhere: bool = False
    ) -> AsyncIterator[Change]:
        """See `KubeApi`."""
        return self._api.watch(kind, version, labels, limit_s, everywhere)

    async def read(self, kind: Kind, name: str) -> Manifest:
        """See `KubeApi`."""
        return await self._api.read(kind, name)

    async def read_scale(self, kind: Kind, name: str) -> Scale:
        """See `KubeApi`."""
        return await self._api.read_scale(kind, name)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Wait until cancelled."""
        await _never()

    async def patch(self, kind: Kind, name: str, change: Mapping[str, object]) -> Manifest:
        """Wait until cancelled."""
        await _never()

    async def patch_status(self, kind: Kind, name: str, change: Mapping[str, object]) -> Manifest:
        """Wait until cancelled."""
        await _never()

    async def delete(self, kind: Kind, name: str, grace_s: int) -> None:
        """Wait until cancelled."""
        await _never()

    async def write_scale(self, kind: Kind, name: str, replicas: int, version: str) -> Scale:
        """Wait until cancelled."""
        await _never()

    async def close(self) -> None:
        """Do nothing: the connections belong to the holder of the other interface."""


async def _never() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
