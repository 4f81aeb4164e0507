"""Persistent state of an executor's nodes, which survives its restarts.

The state folder has a lock and one file per node, written whole and renamed into place. The folder
must be usable when an executor starts. If the folder fills up or turns read-only later, serving
continues, the status reports a fault, and the write is retried.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from executors.node import procfs
from executors.node.engine_logs import EngineLogs, file_name
from executors.node.node_state import InstanceRecord, NodeState
from executors.node.os_processes import EngineProcess
from topics.checks import InvalidValue
from topics.codec import decode_as, encode, read_value
from topics.fleet import Assignment, DesiredInstance, InstanceState
from topics.storage.checked_lines import checked_line, text_of
from topics.storage.durable_files import replace_file
from topics.storage.private_files import private_folder

log = logging.getLogger(__name__)

_NUMBERS: tuple[str, ...] = (
    "since_ms", "launched_ms", "restarts", "failures", "retry_ms", "drain_ms", "terminated_ms",
    "killed_ms", "switch_ms", "sleep_ms", "in_flight", "held_kv", "finished",
)  # fmt: skip
_TEXTS = ("phase", "from_phase", "refused_phase", "endpoint", "reason")


class StateFolderUnusable(Exception):
    """The state folder cannot be used; the text states the reason."""


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """The identity of a process in the state file. A process is adopted only if all three fields
    match."""

    pid: int
    started: int
    launch: str


@dataclass(slots=True)
class StateStore:
    """The state folder of one executor. fault: the reason why the last write failed, "" if it
    succeeded."""

    folder: Path
    fault: str = ""
    logs: EngineLogs = field(init=False)
    _lock: int = -1

    def __post_init__(self) -> None:
        self.folder = Path(os.path.abspath(self.folder))  # noqa: PTH100  no link is followed
        self.logs = EngineLogs(self.folder / "logs")

    def open(self) -> None:
        """Lock the folder for this process. Raises StateFolderUnusable if the folder cannot be
        locked or written. Exception: a folder of an earlier run that is now full or read-only is
        accepted, because the engines recorded in it need an executor.
        """
        path = self.folder / "lock"
        try:
            private_folder(self.folder)
            try:
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError:
                self._lock = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StateFolderUnusable(
                f"state folder {self.folder}: {error.strerror}; name another one with --state-dir"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = os.read(self._lock, 20).decode(errors="replace").strip() or "unknown"
            self.close()
            raise StateFolderUnusable(
                f"state folder {self.folder}: in use by another executor (pid {other})"
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        except OSError as error:
            self._failed(path, error)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def place(self) -> str:
        """Unique name of this machine and folder among all executors."""
        where = hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]
        return f"{socket.gethostname()}:{_machine_id()}:{where}"

    def path(self, node: str) -> Path:
        """The state file of a node."""
        return self.folder / f"{file_name(node)}.json"

    def save(self, state: NodeState, processes: Mapping[str, EngineProcess]) -> bool:
        """Write the state of a node. Returns False, and logs the first failure, if the write
        fails."""
        value = {
            "boot_id": procfs.boot_id(),
            "assignment": orjson.Fragment(encode(state.assignment)) if state.assignment else None,
            "expires_ms": state.expires_ms,
            "refused": dict(state.refused),
            "instances": [_dump(item, processes.get(item.instance)) for item in state.instances],
        }
        path = self.path(state.node)
        try:
            # Without a sync, because statuses must not wait for a slow disk. A loss of power ends
            # the engines too, and the checksum detects a file that it left incomplete.
            replace_file(path, checked_line(orjson.dumps(value)), sync=False)
        except OSError as error:
            self._failed(path, error)
            return False
        self.fault = ""
        return True

    def restore(self, state: NodeState) -> tuple[NodeState, dict[str, RecordedProcess]]:
        """`state` with the saved values, and the recorded processes by instance.

        Processes recorded before a reboot of the machine are dropped.
        """
        path = self.path(state.node)
        try:
            text = text_of(path.read_bytes().removesuffix(b"\n"))
            if text is None:
                raise ValueError("damaged: its checksum is wrong")
            return _restored(state, orjson.loads(text))
        except FileNotFoundError:
            return state, {}
        except (OSError, InvalidValue, AttributeError, KeyError, TypeError, ValueError) as error:
            log.error("%s cannot be used; the node's engines are looked up: %r", path, error)
            return state, {}

    def _failed(self, path: Path, error: OSError) -> None:
        why = f"cannot write {path}: {error.strerror}; a restart may lose changes"
        if not self.fault:
            log.error("%s", why)
        self.fault = why


def _restored(
    state: NodeState, raw: dict[str, Any]
) -> tuple[NodeState, dict[str, RecordedProcess]]:
    rows = raw["instances"]
    records = tuple(_load(row) for row in rows)
    recorded = {}
    if raw["boot_id"] == procfs.boot_id():
        recorded = {
            item.instance: RecordedProcess(int(row["pid"]), int(row["started"]), str(row["launch"]))
            for item, row in zip(records, rows, strict=True)
            if row["pid"]
        }
    assignment = raw["assignment"]
    if assignment is not None:
        assignment = decode_as(Assignment, orjson.dumps(assignment))
        if assignment.node != state.node:
            raise ValueError(f"the file is of node {assignment.node}")
    refused = {str(why): int(count) for why, count in raw["refused"].items()}
    # Files of earlier versions have no expiry: count them as expired, so that nothing new starts
    # until the leader republishes.
    expires_ms = int(raw.get("expires_ms", 1))
    found = replace(
        state, assignment=assignment, expires_ms=expires_ms, instances=records, refused=refused
    )
    return found, recorded


def _dump(item: InstanceRecord, process: EngineProcess | None) -> dict[str, Any]:
    return {
        "desired": item.desired,
        "state": item.state,
        "process": item.has_process,
        "answered": item.was_ready,
        "ports": item.ports,
        **{key: getattr(item, key) for key in (*_TEXTS, *_NUMBERS)},
        "pid": process.pid if process else 0,
        "started": process.started if process else 0,
        "launch": process.launch if process else "",
    }


def _load(row: dict[str, Any]) -> InstanceRecord:
    values: dict[str, Any] = {key: str(row[key]) for key in _TEXTS}
    values.update({key: int(row.get(key, 0)) for key in _NUMBERS})
    return InstanceRecord(
        desired=read_value(DesiredInstance, row["desired"]),
        state=InstanceState(row["state"]),
        has_process=bool(row["process"]),
        was_ready=bool(row["answered"]),
        ports=tuple(int(port) for port in row["ports"]),
        **values,
    )


def _machine_id() -> str:
    """An id of this machine, because host names of containers are not always unique."""
    try:
        text = Path("/etc/machine-id").read_text().strip()
    except OSError:
        text = ""
    return hashlib.sha256((text or procfs.boot_id()).encode()).hexdigest()[:8]
