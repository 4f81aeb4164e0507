"""What an executor remembers of a node across its own restarts.

Owns one file per node, written whole and renamed into place. A folder that is full or read-only is
reported once and then lived without: serving goes on, and what was not written is tried again.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from executors.node.processes import EngineProcess, adopt
from executors.node.state import Held, NodeState
from topics.checks import InvalidRecord
from topics.codec import decode_as, encode
from topics.fleet import Assignment, DesiredInstance, InstanceState

log = logging.getLogger(__name__)

_TIMES = ("since_ms", "launched_ms", "restarts", "failures", "retry_ms", "drain_ms")
_NUMBERS: tuple[str, ...] = (*_TIMES, "terminated_ms", "killed_ms", "in_flight", "held_kv")


@dataclass(slots=True)
class Store:
    """The folder of one executor; broken: the last write failed."""

    folder: Path
    broken: bool = False

    def path(self, node: str) -> Path:
        """The file of a node; ids may hold characters that a file name must not."""
        readable = "".join(c if c.isalnum() else "-" for c in node)[:60]
        return self.folder / f"{readable}-{hashlib.sha256(node.encode()).hexdigest()[:8]}.json"

    def log_path(self, instance: str) -> Path:
        """Where an engine's output goes."""
        return self.path(instance).with_suffix(".log")

    def save(self, state: NodeState, processes: dict[str, EngineProcess]) -> bool:
        """Write the node; False (reported once) when the folder cannot be written."""
        value = {
            "assignment": orjson.Fragment(encode(state.assignment)) if state.assignment else None,
            "refused": state.refused,
            "instances": [_dump(item, processes.get(item.instance)) for item in state.held],
        }
        path = self.path(state.node)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".tmp")
            draft.write_bytes(orjson.dumps(value))
            draft.replace(path)
        except OSError as error:
            if not self.broken:
                log.error("cannot write %s: %s; a restart will forget what runs", path, error)
            self.broken = True
            return False
        self.broken = False
        return True

    def restore(self, state: NodeState) -> tuple[NodeState, dict[str, EngineProcess]]:
        """`state` with what was written of it, and the engines that still run."""
        path = self.path(state.node)
        try:
            raw = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return state, {}
        except (OSError, orjson.JSONDecodeError) as error:
            log.error("cannot read %s: %s", path, error)
            return state, {}
        try:
            return self._restored(state, raw)
        except (InvalidRecord, KeyError, TypeError, ValueError) as error:
            log.error("%s is not understood: %r", path, error)
            return state, {}

    def _restored(
        self, state: NodeState, raw: dict[str, Any]
    ) -> tuple[NodeState, dict[str, EngineProcess]]:
        held, processes = [], {}
        for row in raw["instances"]:
            item = _load(row)
            process = adopt(row["pid"], row["started"], self.log_path(item.instance))
            if process is not None:
                processes[item.instance] = process
            held.append(item)
        assignment = raw["assignment"]
        if assignment is not None:
            assignment = decode_as(Assignment, orjson.dumps(assignment))
        restored = replace(state, assignment=assignment, held=tuple(held), refused=raw["refused"])
        return restored, processes


def _dump(item: Held, process: EngineProcess | None) -> dict[str, Any]:
    return {
        "desired": item.desired,
        "state": item.state,
        "process": item.process,
        "answered": item.answered,
        "endpoint": item.endpoint,
        "reason": item.reason,
        **{key: getattr(item, key) for key in _NUMBERS},
        "pid": process.pid if process else 0,
        "started": process.started if process else 0,
    }


def _load(row: dict[str, Any]) -> Held:
    desired = dict(row["desired"])
    desired["gpus"] = tuple(desired["gpus"])
    return Held(
        desired=DesiredInstance(**desired),
        state=InstanceState(row["state"]),
        process=bool(row["process"]),
        answered=bool(row["answered"]),
        endpoint=str(row["endpoint"]),
        reason=str(row["reason"]),
        **{key: int(row[key]) for key in _NUMBERS},
    )
