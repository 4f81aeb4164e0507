"""Engine processes: start, watch, signal, reap, and find again after a restart of the executor.

Owns the operating system's side of an instance. It must not know what an engine is or why it
should stop. Every engine leads a session of its own, so it outlives its executor and is killed as
one process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from executors.engines.protocol import LaunchLine
from executors.supervision import supervision_fds

# Below the range that systems hand out by themselves, so no client socket takes a port between
# our choice and the engine's listening, which comes only after its start-up time.
_FIRST_PORT, _BLOCK, _BLOCKS = 20_000, 200, 60
_TAIL_BYTES = 2000


class NoPort(OSError):
    """Every block of ports is taken."""


class Ports:
    """A block of ports of this executor's own; holding the block's first port is the lock."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock: socket.socket | None = None
        self._first = 0
        self._next = 1

    def close(self) -> None:
        """Give the block back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def take(self, used: Collection[int], count: int = 1) -> tuple[int, ...]:
        """`count` consecutive ports that nobody listens on and that are not in `used`."""
        if self._lock is None:
            self._lock = self._lock_block()
        for offset in range(_BLOCK - 1):
            at = (self._next - 1 + offset) % (_BLOCK - 1)
            ports = tuple(range(self._first + 1 + at, self._first + 1 + at + count))
            inside = ports[-1] < self._first + _BLOCK
            if inside and all(port not in used and _is_free(self._host, port) for port in ports):
                # Go round the block: a port just left may still be known to a late client.
                self._next = at + 1 + count
                return ports
        raise NoPort(f"no free port from {self._first} to {self._first + _BLOCK - 1}")

    def _lock_block(self) -> socket.socket:
        for block in range(_BLOCKS):
            first = _FIRST_PORT + block * _BLOCK
            lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                lock.bind((self._host, first))
                lock.listen(1)
            except OSError:
                lock.close()
                continue
            self._first = first
            return lock
        raise NoPort("every block of ports for engines is taken")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


@dataclass(slots=True)
class EngineProcess:
    """One process, ours or adopted. started: its start time in kernel ticks, which together with
    the pid names a process for as long as the machine runs. log: what it says, to its end.
    """

    pid: int
    started: int
    log: Path
    child: subprocess.Popen[bytes] | None = None

    def ended(self) -> str | None:
        """None while it runs; else why it ended, as far as that is known. Reaps a child."""
        if self.child is not None:
            code = self.child.poll()
            if code is None:
                return None
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            tail = self._last_line()
            return f"{how}: {tail}" if tail else how
        return None if _start_ticks(self.pid) == self.started else "gone"

    def terminate(self) -> None:
        """SIGTERM to the engine itself."""
        with contextlib.suppress(ProcessLookupError):
            if self.ended() is None:
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything it started, and to it."""
        with contextlib.suppress(ProcessLookupError):
            if self.ended() is None:
                os.killpg(self.pid, signal.SIGKILL)

    def _last_line(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]


def start(line: LaunchLine, log: Path) -> EngineProcess:
    """Start an engine in a session of its own; OSError when that is not possible."""
    output: IO[bytes] | int
    try:
        output = log.open("wb")
    except OSError:  # a full or read-only disk must not keep an engine from serving
        output = subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            line.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **dict(line.env)},
            start_new_session=True,
            pass_fds=supervision_fds(),
        )
    finally:
        if not isinstance(output, int):
            output.close()
    return EngineProcess(child.pid, _start_ticks(child.pid), log, child)


def adopt(pid: int, started: int, log: Path) -> EngineProcess | None:
    """The process of an earlier life of this executor; None when it is gone."""
    if started <= 0 or _start_ticks(pid) != started:
        return None
    return EngineProcess(pid, started, log)


def _start_ticks(pid: int) -> int:
    """Start time of a living process in kernel ticks since boot; 0 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The name in parentheses may hold spaces and parentheses; after it come fields 3 and on.
    fields = stat.rpartition(b")")[2].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
