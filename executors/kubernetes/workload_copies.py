"""Local copies of the workloads of a namespace, and the pods that each of them owns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from executors.kubernetes.further_kinds import FurtherKinds
from executors.kubernetes.group_ranks import with_group
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_kinds import Kind
from executors.kubernetes.object_cache import ObjectCache
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_owner import PodOwners
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.workload_view import WorkloadView, parse_workload


class WorkloadCopies:
    """The workloads of `kinds`. on_change: called after each change."""

    def __init__(
        self, fleet: PodFleet, kinds: Iterable[Kind], on_change: Callable[[], None]
    ) -> None:
        self._fleet = fleet
        self._on_change = on_change
        self._caches = [
            ObjectCache(fleet.api, kind, _parser(kind), on_change=self._changed) for kind in kinds
        ]
        self._further = FurtherKinds(fleet.api)
        self._owners: PodOwners | None = None
        self._bases: dict[str, str] = {}

    def start(self) -> None:
        """Begin to follow the workloads."""
        for cache in self._caches:
            self._fleet.follow(cache)

    @property
    def synced(self) -> bool:
        """Whether all workloads are known that can be. A kind that the server does not have counts
        as known, and so does one that the account may not read."""
        listed = all(one.synced or one.absent or one.denied for one in self._caches)
        return listed and all(self._further.knows(one) for one in self._opted_in())

    @property
    def complete(self) -> bool:
        """Whether no kind of workload is denied to this account."""
        return not any(cache.denied for cache in self._caches)

    async def refresh(self) -> None:
        """Read `/scale` of the workloads of further kinds that changed."""
        if await self._further.refresh(self._opted_in()):
            self._changed()

    def managed(self) -> list[WorkloadView]:
        """All workloads that their owners opted in."""
        return [self._further.complete(one) for one in self._opted_in()]

    def find(self, model: str, role: str, pool: str) -> WorkloadView | None:
        """The workload for a model and role in a pool ("us/l4" stands for all its markets)."""
        names_of_pool = (pool, pool.rpartition("/")[0])
        for workload in sorted(self.managed(), key=lambda one: one.title):
            if (workload.model, workload.role) == (model, role) and workload.pool in names_of_pool:
                return workload
        return None

    def launch_basis(self, pool: str) -> str:
        """A text that changes with the workloads of `pool`, except with their replicas."""
        if pool not in self._bases:
            names_of_pool = (pool, pool.rpartition("/")[0])
            found = [
                (one.title, one.model, one.role, one.gpus, one.size, one.port, bool(one.fault))
                for one in self.managed()
                if one.pool in names_of_pool
            ]
            self._bases[pool] = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:8]
        return self._bases[pool]

    def owner(self, pod: PodView) -> WorkloadView | None:
        """See `PodOwners.owner`. A worker of a group has the owner of its leader."""
        leader = self._fleet.pods.objects.get(self._pod_owners().leader(pod))
        return self._pod_owners().owner(leader or pod)

    def pods(self, workload: WorkloadView) -> list[PodView]:
        """The pods that `workload` owns. A group of pods counts as its leader, which is Ready if
        all of them are."""
        owners, every = self._pod_owners(), self._fleet.pods.objects.values()
        if workload.size == 1:
            return [p for p in every if (own := owners.owner(p)) and own.ref == workload.ref]
        groups: dict[str, list[PodView]] = {}
        for pod in every:
            groups.setdefault(owners.leader(pod), []).append(pod)
        leaders = [
            p for p in groups.get("", ()) if (o := owners.owner(p)) and o.ref == workload.ref
        ]
        return [with_group(one, groups.get(one.name, []), workload.size) for one in leaders]

    # -- inside -------------------------------------------------------------------------------

    def _pod_owners(self) -> PodOwners:
        if self._owners is None:
            every = (one for cache in self._caches for one in cache.objects.values())
            self._owners = PodOwners(map(self._further.complete, every))
        return self._owners

    def _opted_in(self) -> list[WorkloadView]:
        """The workloads as their objects show them, without `/scale`."""
        return [one for cache in self._caches for one in cache.objects.values() if one.managed]

    def _changed(self) -> None:
        self._bases.clear()
        self._owners = None
        self._on_change()


def _parser(kind: Kind) -> Callable[[Manifest], WorkloadView]:
    return lambda raw: parse_workload(kind, raw)
