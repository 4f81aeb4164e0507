"""Engine processes: start, watch, signal, reap, and find again after a restart of the executor.

Holds the operating system's side of an instance. It must not know what an engine is or why it
should stop. Every engine leads a session of its own, so it outlives its executor; it ends as a
whole: when its leader is gone, so are its workers, before anything else gets their GPUs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from executors.engines.engine_protocol import LaunchLine
from executors.node import procfs
from executors.node.containers import VARIABLE, Container
from executors.node.engine_environment import Tag, tag_of
from executors.private_files import open_private
from executors.supervision import supervision_fds

_TAIL_BYTES = 2000


@dataclass(slots=True)
class EngineProcess:
    """One engine, ours or adopted: the process `pid` and everything it started.

    started: start time of the leader in kernel ticks, 0 where it is gone. launch, state_dir: what
    its tag says. log: what it says, to its end. child: where we started it ourselves. container:
    that it runs in, where it does.
    """

    pid: int
    started: int
    launch: str
    state_dir: str
    log: Path
    child: subprocess.Popen[bytes] | None = None
    note: str = ""
    container: Container | None = None

    def ended(self) -> str | None:
        """None while any part of it lives; else why it ended, as far as that is known.

        Workers whose leader is gone are killed: nobody can reach them, and they hold GPUs.
        """
        if self._leads():
            return None
        rest = self._members()
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        self._reap()
        if self.container is not None and not self.container.remove():
            return None
        return None if rest else self.note or "gone"

    def terminate(self) -> None:
        """SIGTERM to the leader, who tells its workers."""
        if self._leads():
            _signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to it and to everything it started."""
        for pid in self._members():
            _signal(pid, signal.SIGKILL)
        if self.container is not None:
            self.container.remove()

    def _leads(self) -> bool:
        if self.child is None:
            found = procfs.look(self.pid)
            return found is not None and found.started == self.started
        code = self.child.poll()
        if code is None:
            return True
        if not self.note:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            tail = self._last_line()
            self.note = f"{how}: {tail}" if tail else how
        return False

    def _members(self) -> list[int]:
        """Its living processes: the group it leads, and who left the group but has its tag.

        The group's number cannot be given to others while anyone is left in it, and we look several
        times a second from the start of its leader on.
        """
        found = []
        for process in procfs.everyone():
            if process.group == self.pid:
                found.append(process.pid)
                continue
            tag = tag_of(process.pid, self.state_dir)
            if isinstance(tag, Tag) and tag.launch == self.launch:
                found.append(process.pid)
        return found

    def _reap(self) -> None:
        """Workers that fell to us (as a container's first process, say) leave no zombies."""
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


def start(
    line: LaunchLine, tag: Tag, environment: Mapping[str, str], state_dir: str, log: Path
) -> EngineProcess:
    """Start an engine in a session of its own; OSError when that is not possible."""
    output: IO[bytes] | int
    try:
        # Appending, so that the file can be cut while it is written.
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
            pass_fds=supervision_fds(),
        )
    finally:
        if not isinstance(output, int):
            output.close()
    found = procfs.look(child.pid)
    started = found.started if found else 0
    container = Container.named(environment.get(VARIABLE, ""))
    return EngineProcess(child.pid, started, tag.launch, state_dir, log, child, container=container)


def of_folder(state_dir: str) -> dict[str, list[tuple[procfs.Process, Tag | None]]]:
    """Every living engine process that executors of this state folder started, by node.

    The tag is None where only the node can be read from it.
    """
    found: dict[str, list[tuple[procfs.Process, Tag | None]]] = {}
    for process in procfs.everyone():
        tag = tag_of(process.pid, state_dir)
        if isinstance(tag, Tag):
            found.setdefault(tag.node, []).append((process, tag))
        elif tag is not None:
            found.setdefault(tag, []).append((process, None))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
