"""A fleet that does what it is told: assignments in, statuses out, no requests and no faults.

Owns only times: an instance is ready `start_s` after it was first assigned, and gone `DRAIN_S`
after it was told to drain. For questions about decisions ("what would have run?"); what requests
make of a fleet is for `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

DRAIN_S = 10.0
_HEARTBEAT_MS = 10_000


class BystanderFleet:
    """known: statuses at the start; what serves in them goes on to serve.

    start_s(group): predicted seconds from launch to ready of an instance of this group.
    """

    def __init__(self, known: Mapping[str, Status], start_s: Callable[[str], float]) -> None:
        self._start_s = start_s
        self._assigned: dict[str, Assignment] = {}
        self._statuses = dict(known)
        self._seen = {item.instance: item for status in known.values() for item in status.instances}
        self._draining_ms: dict[str, int] = {}

    def accept(self, assignment: Assignment) -> None:
        """What a node should run from now on."""
        self._assigned[assignment.node] = assignment

    def statuses(self, now_ms: int) -> Mapping[str, Status]:
        """The latest status of every node, at `now_ms`."""
        for node, assignment in self._assigned.items():
            seen = tuple(
                found
                for item in assignment.instances
                if (found := self._look(item, now_ms)) is not None
            )
            before = self._statuses.get(node)
            same = before is not None and (before.instances, before.observed_generation) == (
                seen,
                assignment.generation,
            )
            if before is not None and same and now_ms - before.at_ms < _HEARTBEAT_MS:
                continue
            self._statuses[node] = Status(
                node, assignment.pool, "bystander", assignment.generation, now_ms, seen
            )
        for node, status in self._statuses.items():
            if node not in self._assigned and now_ms - status.at_ms >= _HEARTBEAT_MS:
                self._statuses[node] = replace(status, at_ms=now_ms)
        return dict(self._statuses)

    def _look(self, item: DesiredInstance, now_ms: int) -> ObservedInstance | None:
        seen = self._seen.get(item.instance)
        if seen is None:
            seen = ObservedInstance(
                item.instance,
                item.model,
                item.phase,
                item.group,
                InstanceState.STARTING,
                item.gpus,
                since_ms=now_ms,
                launched_ms=now_ms,
            )
        waited_ms = now_ms - (seen.launched_ms or seen.since_ms)
        if item.drain:
            began_ms = self._draining_ms.setdefault(item.instance, now_ms)
            if now_ms - began_ms >= DRAIN_S * 1000:
                self._seen.pop(item.instance, None)
                return None
            if seen.state is not InstanceState.DRAINING:
                seen = replace(seen, state=InstanceState.DRAINING, since_ms=now_ms)
        elif seen.state is not InstanceState.READY and waited_ms >= (
            self._start_s(item.group) * 1000
        ):
            seen = replace(
                seen,
                state=InstanceState.READY,
                endpoint=seen.endpoint or f"{item.instance[:150]}:1",
                since_ms=now_ms,
            )
        self._seen[item.instance] = seen
        return seen
