"""Instances that run although nobody assigned them: somebody changed a node by hand.

Owns how they are told from what is merely late. Executors stop them by themselves, because an
assignment says all that a node should run; here they are noticed, so that it can be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topics.fleet import Assignment, InstanceState, Status

_RUNS = (InstanceState.STARTING, InstanceState.READY)


def strays(
    running: Iterable[Status], assignments: Mapping[str, Assignment]
) -> dict[str, tuple[str, str]]:
    """Instance -> (model, node) of what runs on a node whose executor acts upon the latest
    assignment, and does not stand in it. running: of the nodes that run anything."""
    found = {}
    for status in running:
        assignment = assignments.get(status.node)
        if assignment is None or status.observed_generation < assignment.generation:
            continue
        assigned = {item.instance for item in assignment.instances}
        for seen in status.instances:
            if seen.instance not in assigned and seen.state in _RUNS:
                found[seen.instance] = seen.model, status.node
    return found
