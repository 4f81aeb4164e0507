"""Faults of simulated nodes, as a scenario of `shoal up` scripts them: reclaims, losses, failing
launches.

The scenario writes a JSON file, and the executor reads it after each change. A file that is missing
or unreadable changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from topics.checks import InvalidValue, name, object_fields, time_ms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """Faults in force.

    reclaim_ms: domain time at which a node is reclaimed, by node. lost: nodes that are gone.
    failing: nodes and pools on which every launch fails.
    """

    reclaim_ms: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()

    def launch_fault(self, node: str, pool: str) -> str:
        """Why a launch on `node` fails now; "" if it does not."""
        for where in (node, pool):
            if where in self.failing:
                return f"launches on {where} fail"
        return ""


class ScriptedNode(Protocol):
    """The parts of a node that faults change; implemented by `NodeWorker`."""

    def on_reclaim_notice(self, left_s: float | None) -> None:
        """Handle a notice that the node is reclaimed in `left_s` real seconds; None = no
        notice."""
        ...

    def set_lost(self, lost: bool) -> None:
        """Take the node away, or return it."""
        ...


class FaultsFile:
    """Reads the faults from `path` whenever the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_ns = 0
        self.faults = NodeFaults()

    def refresh(self) -> bool:
        """Read the file if it has changed since the last call. Returns whether it was read."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns == self._read_ns:
                return False
            self._read_ns = changed_ns
            self.faults = parse_faults(orjson.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return False
        except (OSError, orjson.JSONDecodeError, InvalidValue) as error:
            log.error("faults of the scenario: %s: %s", self._path, error)
            return False
        return True

    def apply(self, node: str, worker: ScriptedNode, now_ms: int, speed: float) -> None:
        """Give `worker` the notice and the loss of its node. speed: domain s per real s."""
        at_ms = self.faults.reclaim_ms.get(node)
        worker.on_reclaim_notice(None if at_ms is None else (at_ms - now_ms) / 1000.0 / speed)
        worker.set_lost(node in self.faults.lost)


def parse_faults(raw: Any) -> NodeFaults:
    """The faults from the JSON value of the file. Raises InvalidValue."""
    top = object_fields("faults", raw, (), {"reclaim_ms": {}, "lost": [], "failing": []})
    if not isinstance(top["reclaim_ms"], dict):
        raise InvalidValue("faults.reclaim_ms", top["reclaim_ms"], "a JSON object")
    for node, at_ms in top["reclaim_ms"].items():
        name("faults.reclaim_ms", node)
        time_ms(f"faults.reclaim_ms.{node}", at_ms)
    for key in ("lost", "failing"):
        if not isinstance(top[key], list):
            raise InvalidValue(f"faults.{key}", top[key], "a JSON array")
        for item in top[key]:
            name(f"faults.{key}", item)
    return NodeFaults(top["reclaim_ms"], frozenset(top["lost"]), frozenset(top["failing"]))
