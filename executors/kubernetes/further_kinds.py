"""Workloads of kinds that Shoal does not know: their replicas and selector come from `/scale`.

The fields of such an object have no fixed place. Every change of the object reads `/scale` again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import KubeApi, Scale
from executors.kubernetes.kube_errors import KubeError, Temporary
from executors.kubernetes.kube_kinds import SCALABLE
from executors.kubernetes.label_selector import parse_selector
from executors.kubernetes.workload_view import SELECTED_FAULT, WorkloadView

log = logging.getLogger(__name__)

_UNKNOWN = Scale(0, "")


class FurtherKinds:
    """The latest `/scale` of each workload of a further kind, with the object's version."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._scales: dict[str, tuple[str, Scale]] = {}
        self._faults: dict[str, str] = {}

    async def refresh(self, workloads: Iterable[WorkloadView]) -> bool:
        """Read `/scale` of the workloads that changed; returns whether a scale changed."""
        before = {title: scale for title, (_, scale) in self._scales.items()}
        for workload in workloads:
            if self._is_old(workload):
                await self._read(workload)
        return before != {title: scale for title, (_, scale) in self._scales.items()}

    def knows(self, workload: WorkloadView) -> bool:
        """Whether `/scale` of a workload was read, or needs not be."""
        return workload.kind in SCALABLE or workload.title in self._scales

    def complete(self, workload: WorkloadView) -> WorkloadView:
        """`workload` with the replicas and the selector of its `/scale`."""
        if workload.kind in SCALABLE:
            return workload
        scale = self._scales.get(workload.title, ("", _UNKNOWN))[1]
        fault = workload.fault or self._faults.get(workload.title, "")
        return replace(workload, replicas=scale.replicas, selector=scale.selector, fault=fault)

    # -- inside -------------------------------------------------------------------------------

    def _is_old(self, workload: WorkloadView) -> bool:
        if workload.kind in SCALABLE:
            return False
        return self._scales.get(workload.title, ("", _UNKNOWN))[0] != workload.version

    async def _read(self, workload: WorkloadView) -> None:
        title, version, fault = workload.title, workload.version, ""
        scale = self._scales.get(title, ("", _UNKNOWN))[1]
        try:
            found = await self._api.read_scale(workload.kind, workload.name)
            keys = {one.key for one in parse_selector(found.selector)}
            scale, fault = found, SELECTED_FAULT if names.SERVING in keys else ""
        except Temporary:
            version = ""  # read again soon
        except (KubeError, ValueError) as error:
            fault = f"/scale of {title} cannot be read: {error}"
        if fault != self._faults.get(title, ""):
            log.warning("%s: %s", title, fault or "/scale is read again")
        self._scales[title], self._faults[title] = (version, scale), fault
