"""Ideal fleet: applies assignments after the predicted delays, without requests or faults.

An instance is ready `start_s` after its assignment and gone `DRAIN_S` after its drain begins. Use
it for questions about decisions, such as which instances would have run. `simulator` models
requests too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

DRAIN_S = 10.0
_HEARTBEAT_MS = 10_000


class IdealFleet:
    """A fleet without faults.

    initial: statuses at the start; instances that are serving then continue to serve.
    start_s(group): predicted seconds from launch to ready of an instance of this group.
    """

    def __init__(self, initial: Mapping[str, Status], start_s: Callable[[str], float]) -> None:
        self._start_s = start_s
        self._assignments: dict[str, Assignment] = {}
        self._statuses = dict(initial)
        self._instances = {
            item.instance: item for status in initial.values() for item in status.instances
        }
        self._draining_ms: dict[str, int] = {}

    def accept(self, assignment: Assignment) -> None:
        """Use `assignment` for its node from now on."""
        self._assignments[assignment.node] = assignment

    def statuses(self, now_ms: int) -> Mapping[str, Status]:
        """Latest status of every node at `now_ms`."""
        for node, assignment in self._assignments.items():
            observed = tuple(
                found
                for item in assignment.instances
                if (found := self._observe(item, now_ms)) is not None
            )
            before = self._statuses.get(node)
            same = before is not None and (before.instances, before.observed_generation) == (
                observed,
                assignment.generation,
            )
            if before is not None and same and now_ms - before.at_ms < _HEARTBEAT_MS:
                continue
            self._statuses[node] = Status(
                node, assignment.pool, "bystander", assignment.generation, now_ms, observed
            )
        for node, status in self._statuses.items():
            if node not in self._assignments and now_ms - status.at_ms >= _HEARTBEAT_MS:
                self._statuses[node] = replace(status, at_ms=now_ms)
        return dict(self._statuses)

    def _observe(self, item: DesiredInstance, now_ms: int) -> ObservedInstance | None:
        observed = self._instances.get(item.instance)
        if observed is None:
            observed = ObservedInstance(
                item.instance,
                item.model,
                item.phase,
                item.group,
                InstanceState.STARTING,
                item.gpus,
                since_ms=now_ms,
                launched_ms=now_ms,
            )
        waited_ms = now_ms - (observed.launched_ms or observed.since_ms)
        if item.drain:
            began_ms = self._draining_ms.setdefault(item.instance, now_ms)
            if now_ms - began_ms >= DRAIN_S * 1000:
                self._instances.pop(item.instance, None)
                return None
            if observed.state is not InstanceState.DRAINING:
                observed = replace(observed, state=InstanceState.DRAINING, since_ms=now_ms)
        elif observed.state is not InstanceState.READY and waited_ms >= (
            self._start_s(item.group) * 1000
        ):
            observed = replace(
                observed,
                state=InstanceState.READY,
                endpoint=observed.endpoint or f"{item.instance[:150]}:1",
                since_ms=now_ms,
            )
        self._instances[item.instance] = observed
        return observed
