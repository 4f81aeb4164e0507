"""Engine processes: starts, polls, signals and reaps them, and finds them after a restart of the
executor. Every engine leads its own session, so it outlives its executor. When its leader exits,
its workers are killed before another engine may use their GPUs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from executors.engines.engine_protocol import LaunchLine
from executors.node import procfs
from executors.node.containers import CONTAINER_VARIABLE, Container
from executors.node.engine_environment import LaunchTag, read_tag
from topics.edge.supervision import supervision_fds
from topics.storage.private_files import open_private

_TAIL_BYTES = 2000


@dataclass(slots=True)
class EngineProcess:
    """One engine, launched or adopted: the process `pid` and all its descendants.

    started: start time of the leader in kernel ticks, 0 if the leader is gone. launch, state_dir:
    from the engine's launch tag. log: its log file. child: set if this executor process started the
    engine. own_starved_s: as `starved_s` of this executor when it launched or adopted the engine.
    container: set if the engine runs in a container.
    """

    pid: int
    started: int
    launch: str
    state_dir: str
    log: Path
    child: subprocess.Popen[bytes] | None = None
    end_reason: str = ""
    own_starved_s: float = field(default_factory=lambda: procfs.starved_s(os.getpid()))
    container: Container | None = None

    def poll(self) -> str | None:
        """None while any process of the engine lives; otherwise the reason why the engine ended,
        "gone" if it is unknown.

        Workers without a leader are killed: no client can reach them, and they hold GPUs.
        """
        if self._leader_alive():
            return None
        rest = self._members()
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        self._reap()
        if self.container is not None and not self.container.remove():
            return None
        return None if rest else self.end_reason or "gone"

    def starved_s(self) -> float:
        """Seconds that the engine, or this executor meanwhile, had no processor. In this time the
        engine could not start or answer, or this executor could not notice it."""
        own_s = procfs.starved_s(os.getpid()) - self.own_starved_s
        return procfs.starved_s(self.pid) + own_s

    def terminate(self) -> None:
        """Send SIGTERM to the leader, which stops its workers."""
        if self._leader_alive():
            _signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the leader and all its descendants."""
        for pid in self._members():
            _signal(pid, signal.SIGKILL)
        if self.container is not None:
            self.container.remove()

    def _leader_alive(self) -> bool:
        if self.child is None:
            found = procfs.find_process(self.pid)
            return found is not None and found.started == self.started
        code = self.child.poll()
        if code is None:
            return True
        if not self.end_reason:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            tail = self._last_line()
            self.end_reason = f"{how}: {tail}" if tail else how
        return False

    def _members(self) -> list[int]:
        """The engine's living processes: the group that it leads, and processes outside the group
        with its tag.

        The group id cannot be reused while the group has a member, and frequent polling detects the
        end of the group before that.
        """
        found = []
        for process in procfs.all_processes():
            if process.group == self.pid:
                found.append(process.pid)
                continue
            tag = read_tag(process.pid, self.state_dir)
            if isinstance(tag, LaunchTag) and tag.launch == self.launch:
                found.append(process.pid)
        return found

    def _reap(self) -> None:
        """Reap the engine's workers if they became children of this process (as the first process
        of a container)."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass

    def _last_line(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]


def start_engine(
    line: LaunchLine,
    tag: LaunchTag,
    environment: Mapping[str, str],
    state_dir: str,
    log: Path,
    inherited_fds: tuple[int, ...] = (),
) -> EngineProcess:
    """Start an engine in its own session, with `inherited_fds` open. Raises OSError if the start
    fails."""
    output: IO[bytes] | int
    try:
        # Append mode, so that the file can be truncated while the engine writes.
        output = open_private(log, "ab")
    except OSError:  # a full or read-only disk must not keep an engine from serving
        output = subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            line.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            pass_fds=(*supervision_fds(), *inherited_fds),
        )
    finally:
        if not isinstance(output, int):
            output.close()
    found = procfs.find_process(child.pid)
    started = found.started if found else 0
    container = Container.from_variable(environment.get(CONTAINER_VARIABLE, ""))
    return EngineProcess(child.pid, started, tag.launch, state_dir, log, child, container=container)


def tagged_processes(state_dir: str) -> dict[str, list[tuple[procfs.Process, LaunchTag | None]]]:
    """Living engine processes that executors of this state folder started, by node.

    The tag is None if only the process's node is readable.
    """
    found: dict[str, list[tuple[procfs.Process, LaunchTag | None]]] = {}
    for process in procfs.all_processes():
        tag = read_tag(process.pid, state_dir)
        if isinstance(tag, LaunchTag):
            found.setdefault(tag.node, []).append((process, tag))
        elif tag is not None:
            found.setdefault(tag, []).append((process, None))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
