"""Of several executors with one Lease only its holder acts; the others stand by."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from executors.kubernetes.kube_client import KubeApi, Manifest
from executors.kubernetes.kube_errors import Conflict, KubeError, NotFound
from executors.kubernetes.kube_kinds import LEASE

_LOG = logging.getLogger(__name__)

DURATION_S = 15.0
"""A Lease that was not renewed for so long is free."""
GIVE_UP_S = 10.0
"""A holder that could not renew for so long ends. The rest of DURATION_S is for its last writes."""
_RETRY_S = 2.0


class Lease:
    """A Lease of coordination.k8s.io in the namespace of `api`.

    holder: name of this process, unlike all others. clock_s: a monotonic clock. Times in the object
    are for readers: like client-go, this class measures how long an object has not changed, so the
    clocks of two nodes may differ.
    """

    def __init__(
        self, api: KubeApi, name: str, holder: str, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._api = api
        self._holder = holder
        self._clock_s = clock_s
        self._version = ""
        self._changed_s = 0.0
        self._renewed_s = 0.0

    async def acquire(self, end: asyncio.Event) -> bool:
        """Wait until this process holds the Lease. False: `end` was set before."""
        while not end.is_set():
            if await self._tried():
                return True
            try:
                await asyncio.wait_for(end.wait(), _RETRY_S)
            except TimeoutError:
                continue
        return False

    async def hold(self) -> None:
        """Renew the Lease. Returns if it is lost: another process holds it, or it could not be
        renewed for GIVE_UP_S."""
        while True:
            await asyncio.sleep(_RETRY_S)
            left_s = GIVE_UP_S - (self._clock_s() - self._renewed_s)
            if left_s <= 0.0:
                return
            try:
                async with asyncio.timeout(left_s):
                    if not await self._tried():
                        found = await self._read()
                        if found is not None and _holder(found) not in ("", self._holder):
                            return
            except (TimeoutError, KubeError) as error:
                _LOG.warning("lease %s is not renewed: %s", self.name, error or "no answer")

    async def release(self) -> None:
        """Free the Lease at once, if this process holds it. A failure costs DURATION_S."""
        try:
            async with asyncio.timeout(_RETRY_S):
                found = await self._read()
                if found is not None and _holder(found) == self._holder:
                    await self._write(found, "")
        except (TimeoutError, KubeError) as error:
            _LOG.warning("lease %s is not released: %s", self.name, error or "no answer")

    async def _tried(self) -> bool:
        """Take or renew the Lease. False: another process has it, or the server does not answer."""
        try:
            found = await self._read()
            if found is None:
                sent_s = self._clock_s()
                await self._api.create(LEASE, {"metadata": {"name": self.name}, **self._spec()})
                self._renewed_s = sent_s
                return True
            version = str(found["metadata"].get("resourceVersion"))
            if version != self._version:
                self._version, self._changed_s = version, self._clock_s()
            held = _holder(found) not in ("", self._holder)
            if held and self._clock_s() - self._changed_s < DURATION_S:
                return False
            sent_s = self._clock_s()
            await self._write(found, self._holder)
            self._renewed_s = sent_s
        except Conflict:
            return False  # Another process wrote it in between.
        except KubeError as error:
            _LOG.warning("lease %s: %s", self.name, error)
            return False
        return True

    async def _read(self) -> Manifest | None:
        try:
            return await self._api.read(LEASE, self.name)
        except NotFound:
            return None

    async def _write(self, found: Manifest, holder: str) -> None:
        change: dict[str, Any] = self._spec(holder)
        change["metadata"] = {"resourceVersion": found["metadata"].get("resourceVersion")}
        await self._api.patch(LEASE, self.name, change)

    def _spec(self, holder: str | None = None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        held_by = self._holder if holder is None else holder
        return {
            "spec": {
                "holderIdentity": held_by,
                "leaseDurationSeconds": int(DURATION_S),
                "renewTime": now,
            }
        }


def _holder(found: Manifest) -> str:
    return str((found.get("spec") or {}).get("holderIdentity") or "")
