"""Launches that wait, and faults of nodes, as executors report them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topics.fleet import InstanceState, Status


def waiting_launches(statuses: Mapping[str, Status]) -> list[dict[str, Any]]:
    """The starting instances whose executor says why they wait."""
    return [
        {"model": seen.model, "instance": seen.instance, "node": node, "code": seen.code,
         "reason": seen.reason}
        for node, status in sorted(statuses.items())
        for seen in status.instances
        if seen.state is InstanceState.STARTING and seen.code
    ]  # fmt: skip


def node_faults(statuses: Mapping[str, Status]) -> list[dict[str, Any]]:
    """The faults of all nodes; nodes with the same fault, such as those of one executor, are
    together."""
    found: dict[str, list[str]] = {}
    for node, status in sorted(statuses.items()):
        for fault in status.faults:
            found.setdefault(fault, []).append(node)
    return [{"fault": fault, "nodes": nodes} for fault, nodes in found.items()]
