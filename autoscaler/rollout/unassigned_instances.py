"""Instances that run without an assignment because a person changed a node by hand.

Executors stop them, because an assignment lists all instances of a node. The controller reports
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topics.fleet import Assignment, InstanceState, Status

_RUNS = (InstanceState.STARTING, InstanceState.READY)


def unassigned_instances(
    running: Iterable[Status], assignments: Mapping[str, Assignment]
) -> dict[str, tuple[str, str]]:
    """Instance -> (model, node) for instances that are missing in their node's assignment. Only
    nodes whose executor has applied the latest assignment are checked. running: statuses of nodes
    with instances.
    """
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
